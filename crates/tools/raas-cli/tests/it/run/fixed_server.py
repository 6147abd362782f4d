"""As echo_server.py for one connection, at a port that is given."""
import socket
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("port", listener.getsockname()[1], flush=True)
connection, peer = listener.accept()
while data := connection.recv(65536):
    connection.sendall(data)
