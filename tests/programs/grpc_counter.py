"""A server and a client of gRPC: grpc_counter.py PORT COUNT. Every question is answered once, by a pool of threads; every tenth has a stream of answers."""

import concurrent.futures
import sys
import threading

import grpc
from counting import check, is_server, progress

ANSWERS = 5
PATIENCE = 60  # seconds


class Counter(grpc.GenericRpcHandler):
    def __init__(self):
        self.lock, self.given, self.ended = threading.Lock(), 0, threading.Event()

    def one(self, said, _):
        with self.lock:
            self.given += 1
            return b"%d %s" % (self.given, said)

    def many(self, said, context):
        first = self.one(said, context)
        for answer in range(ANSWERS):
            yield b"%d %s" % (answer, first)

    def end(self, *_):
        self.ended.set()
        return b""

    def service(self, details):
        match details.method:
            case "/counter/one":
                return grpc.unary_unary_rpc_method_handler(self.one)
            case "/counter/many":
                return grpc.unary_stream_rpc_method_handler(self.many)
            case "/counter/end":
                return grpc.unary_unary_rpc_method_handler(self.end)
        return None


def serve(port):
    counter = Counter()
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), [counter], options=[("grpc.so_reuseport", 0)])
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    counter.ended.wait()
    server.stop(5).wait()


def call(port, last):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        one, many, end = channel.unary_unary("/counter/one"), channel.unary_stream("/counter/many"), channel.unary_unary("/counter/end")
        for number in range(1, last + 1):
            said = b"question %d" % number
            due = b"%d %s" % (number, said)
            if number % 10 == 0:
                check(list(many(said, timeout=PATIENCE)), [b"%d %s" % (answer, due) for answer in range(ANSWERS)], "answers")
            else:
                check(one(said, wait_for_ready=True, timeout=PATIENCE), due, "an answer")
            progress(number, last)
        end(b"", timeout=PATIENCE)
    print("OK grpc", last, flush=True)


port, last = int(sys.argv[1]), int(sys.argv[2])
serve(port) if is_server() else call(port, last)
