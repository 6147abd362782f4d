"""Sends back what one connection has sent, by epoll. Then it waits for a second in which nothing happens, and says how
long it computed meanwhile."""
import select
import socket
import sys
import time

listener = socket.create_server((sys.argv[1], 0))
print("port", listener.getsockname()[1], flush=True)
waits = select.epoll()
waits.register(listener, select.EPOLLIN)
waits.poll()
connection, _ = listener.accept()
waits.register(connection, select.EPOLLIN)
while True:
    waits.poll()
    if not (part := connection.recv(65536)):
        break
    connection.sendall(part)
waits.unregister(connection)
connection.close()
before = time.thread_time()
assert waits.poll(1.0) == [], "nobody else connects"
print("computed", round((time.thread_time() - before) * 1e6), "us", flush=True)
