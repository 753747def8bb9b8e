"""A server whose listener has three descriptors, and its client: thrice.py PORT CALLS.

Rank 1 takes each call at another descriptor than the call before. All are one socket: what is set of one holds for the others, and any call can be taken at each.
"""

import socket
import sys
import time

from counting import check, connect, is_server, progress, whole


def three(port):
    """One was made before the socket listened, one after."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    before = listener.dup()
    listener.listen()
    return [listener, before, listener.dup()]


def look_at_flags():
    """Nobody calls there."""
    one, _, other = three(0)
    other.setblocking(False)
    try:
        check(one.accept(), None, "a call that waits")
    except BlockingIOError:
        pass


def serve(port, calls):
    listeners = three(port)
    for call in range(calls):
        connection, _ = listeners[call % 3].accept()
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
    print("OK thrice", calls, flush=True)


port, calls = int(sys.argv[1]), int(sys.argv[2])
look_at_flags()
serve(port, calls) if is_server() else ask(port, calls)
