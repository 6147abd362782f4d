"""gRPC by generic handlers, without generated code. Usage: echo_grpc.py server HOST PORT | client HOST PORT CALLS"""

import os
import sys
import time
from concurrent import futures

import grpc

role, host, port = sys.argv[1], sys.argv[2], sys.argv[3]

if role == "server":
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(lambda request, context: request),
        "Stream": grpc.stream_stream_rpc_method_handler(lambda requests, context: requests),
    }
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    assert server.add_insecure_port(f"{host}:{port}"), "the port is not free"
    server.start()
    server.wait_for_termination()
else:
    calls = int(sys.argv[4])
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        unary = channel.unary_unary("/test.Echo/Unary")
        stream = channel.stream_stream("/test.Echo/Stream")
        begin = time.monotonic()
        for turn in range(calls):
            message = os.urandom((2, 100, 8192)[turn % 3])
            assert unary(message, timeout=60) == message
        speed = calls / (time.monotonic() - begin)
        messages = [os.urandom(1000 + turn) for turn in range(200)]
        assert list(stream(iter(messages), timeout=60)) == messages
        large = os.urandom(3_000_000)
        assert unary(large, timeout=60) == large
    print(f"speed {speed:.0f} calls/s")
