"""A server whose listener has two descriptors, and its client: twice.py PORT CALLS.

Rank 1 takes each call at the other descriptor than the call before. Both are one socket: what is set of one holds for the other, and any call can be taken at either.
"""

import socket
import sys
import time

from counting import check, connect, is_server, progress, whole


def finds_none(listener):
    try:
        listener.accept()
    except BlockingIOError:
        return True
    return False


def serve(port, calls):
    listener = socket.create_server(("127.0.0.1", port))
    both = [listener, listener.dup()]
    both[1].setblocking(False)
    check(finds_none(listener), True, "one that does not wait")
    both[1].setblocking(True)
    for call in range(calls):
        connection, _ = both[call % 2].accept()
        with connection:
            connection.sendall(whole(connection, 8))


def ask(port, calls):
    for call in range(calls):
        said = b"%8d" % call
        with connect("127.0.0.1", port) as connection:
            connection.sendall(said)
            check(whole(connection, 8), said, "an answer")
        progress(call, calls)
        time.sleep(0.002)
    print("OK twice", calls, flush=True)


port, calls = int(sys.argv[1]), int(sys.argv[2])
serve(port, calls) if is_server() else ask(port, calls)
