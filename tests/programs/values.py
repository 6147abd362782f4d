"""Random values into memcached or redis and back again, each compared. Usage: values.py memcached|redis HOST PORT COUNT"""

import random
import socket
import sys

kind, host, port, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
chance = random.Random(7)
values = {b"key-%d" % i: chance.randbytes(chance.choice((1, 8, 60, 200, 1500))) for i in range(count)}
connection = socket.create_connection((host, port))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
answers = connection.makefile("rb")


def set_request(key, value):
    if kind == "memcached":
        return b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value)
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value)


def get_request(key):
    if kind == "memcached":
        return b"get %s\r\n" % key
    return b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key)


def get_answer():
    head = answers.readline().split()
    size = int(head[3] if kind == "memcached" else head[0][1:])
    value = answers.read(size + 2)[:-2]
    if kind == "memcached":
        assert answers.readline() == b"END\r\n"
    return value


def batches(keys, size=100):
    keys = list(keys)
    return (keys[at : at + size] for at in range(0, len(keys), size))


for part in batches(values):
    connection.sendall(b"".join(set_request(key, values[key]) for key in part))
    for _ in part:
        answer = answers.readline()
        assert answer in (b"STORED\r\n", b"+OK\r\n"), answer
order = list(values)
chance.shuffle(order)
for part in batches(order):
    connection.sendall(b"".join(get_request(key) for key in part))
    for key in part:
        assert get_answer() == values[key], key
print(f"{count} values came back as they were")
