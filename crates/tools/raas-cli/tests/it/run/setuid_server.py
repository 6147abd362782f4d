"""A server that sends back what it gets. At SIGUSR1 it gives up root."""
import os
import signal
import socket
import sys


def give_up_root(signal, frame):
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    print("user", os.getuid(), flush=True)


signal.signal(signal.SIGUSR1, give_up_root)
listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
connection, peer = listener.accept()
while data := connection.recv(65536):
    connection.sendall(data)
connection.close()
