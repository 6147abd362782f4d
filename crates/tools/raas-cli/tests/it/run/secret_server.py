"""Answers with a secret, one connection; blocking, or with epoll and its first words unasked ("epoll")."""
import errno
import select
import socket
import sys

listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
connection, peer = listener.accept()
waits = None
if len(sys.argv) > 2:
    connection.setblocking(False)
    waits = select.epoll()
    waits.register(connection.fileno(), select.EPOLLIN)
try:
    while True:
        if waits:
            waits.poll()
        try:
            data = connection.recv(17)
        except BlockingIOError:
            continue
        if not data:
            break
        while len(data) < 17:
            data += connection.recv(17 - len(data))
        connection.sendall(b"the-server-secret")
    print("done", flush=True)
except OSError as error:
    print("failed", errno.errorcode[error.errno], flush=True)
