"""A server whose master only listens, and whose worker takes the connections, with a client: master.py PORT CALLS.

Rank 1 is the master. When its worker has ended it begins another one, after a moment in which nobody takes connections. Rank 0 calls CALLS times, each time on a connection of its
own, and calls again when one ends, or is refused. It has no patience of its own: a call that is neither answered nor ended is waited for for ever. When it has been refused for a
while it says so and is through. Then the master is ended by SIGTERM.
"""

import os
import signal
import socket
import sys
import time

from counting import connect, is_server, progress

MOMENT = 0.5  # seconds
REFUSED = 3.0


def work(listener):
    while True:
        connection, _ = listener.accept()
        while said := connection.recv(100):
            connection.sendall(b"heard " + said)
        connection.close()


def serve(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        if os.fork() == 0:
            work(listener)
        os.wait()
        time.sleep(MOMENT)


def ask(port, say):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(say)
        return connection.recv(100)


def call(port, say):
    """The answer; none if nobody listens any more."""
    refused = None
    while refused is None or time.monotonic() < refused + REFUSED:
        try:
            if answer := ask(port, say):
                return answer
        except ConnectionRefusedError:
            refused = refused or time.monotonic()
            time.sleep(0.01)
        except ConnectionError:
            pass
    return None


def main():
    port, calls = int(sys.argv[1]), int(sys.argv[2])
    if is_server():
        return serve(port)
    connect("127.0.0.1", port).close()
    for number in range(1, calls + 1):
        say = b"call %d" % number
        answer = call(port, say)
        if answer is None:
            print("refused", flush=True)
            break
        if answer != b"heard " + say:
            sys.exit(f"wrong: {answer!r}")
        progress(number, calls)
    # The signal that ends the master comes to both ranks.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("OK master", flush=True)
    os._exit(0)


main()
