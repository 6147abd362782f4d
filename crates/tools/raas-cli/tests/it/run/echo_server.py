"""A server that sends back what it gets. One thread, blocking sockets."""
import socket
import sys

listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
for _ in range(int(sys.argv[2])):
    connection, peer = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.close()
