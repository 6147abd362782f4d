"""gRPC by generic handlers, without generated code. Usage: echo_grpc.py server HOST PORT | client HOST PORT CALLS |
times HOST PORT CALLS SIZE... | rates HOST PORT SECONDS CLIENTS...

`client` checks data of several kinds of calls. `times` prints the median time of a call of each size, and `rates` how
many calls of 8 bytes a second so many threads reach, each with a connection of its own: a line of JSON for each."""

import json
import os
import statistics
import sys
import threading
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

elif role == "times":
    calls = int(sys.argv[4])
    with grpc.insecure_channel(f"{host}:{port}") as channel:
        unary = channel.unary_unary("/test.Echo/Unary")
        for size in map(int, sys.argv[5:]):
            message, times = os.urandom(size), []
            for turn in range(calls + calls // 4):
                begin = time.perf_counter()
                assert unary(message, timeout=60) == message
                times.append(time.perf_counter() - begin)
            # The first ones warm up.
            print(json.dumps({"bytes": size, "us": statistics.median(times[-calls:]) * 1e6}))

elif role == "rates":
    seconds, message = float(sys.argv[4]), b"8 bytes."
    # Channels with equal options would share a connection.
    options = [("grpc.use_local_subchannel_pool", 1)]

    def call(unary, is_over, counts, number):
        while not is_over.is_set():
            assert unary(message, timeout=60) == message
            counts[number] += 1

    for clients in map(int, sys.argv[5:]):
        is_over, counts = threading.Event(), [0] * clients
        channels = [grpc.insecure_channel(f"{host}:{port}", options) for _ in range(clients)]
        calls = [channel.unary_unary("/test.Echo/Unary") for channel in channels]
        for unary in calls:
            assert unary(message, timeout=60) == message
        threads = [
            threading.Thread(target=call, args=(unary, is_over, counts, number)) for number, unary in enumerate(calls)
        ]
        for thread in threads:
            thread.start()
        # They get going first.
        time.sleep(seconds / 4)
        before, begin = sum(counts), time.perf_counter()
        time.sleep(seconds)
        rate = (sum(counts) - before) / (time.perf_counter() - begin)
        is_over.set()
        for thread in threads:
            thread.join()
        for channel in channels:
            channel.close()
        print(json.dumps({"clients": clients, "calls_per_s": rate}))

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
