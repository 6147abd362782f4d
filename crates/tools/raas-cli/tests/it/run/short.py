"""Short connections one after the other: 4 bytes, 4 bytes back, and the server closes. `server ADDRESS N` or
`client ADDRESS PORT N`."""
import socket
import sys

if sys.argv[1] == "server":
    listener = socket.create_server((sys.argv[2], 0))
    print("port", listener.getsockname()[1], flush=True)
    for _ in range(int(sys.argv[3])):
        connection, _ = listener.accept()
        got = b""
        while len(got) < 4:
            got += connection.recv(4 - len(got))
        connection.sendall(got)
        connection.close()
else:
    for number in range(int(sys.argv[4])):
        connection = socket.create_connection((sys.argv[2], int(sys.argv[3])))
        connection.sendall(b"%04d" % number)
        got = b""
        while part := connection.recv(100):
            got += part
        assert got == b"%04d" % number, (number, got)
        connection.close()
