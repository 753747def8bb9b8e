"""A client of redis on one connection, which it opens once: counter.py HOST PORT COUNT. The server is to count; each answer must be the one after the last.

In the end the server is told to end. An error of the connection is a failure: nobody but the library below this program may connect again.
"""

import socket
import sys
import time

PATIENCE = 60  # seconds
LINES = 20


def connect(host, port):
    """The server may not listen yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((host, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def count_to(connection, answers, last):
    for due in range(1, last + 1):
        connection.sendall(b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n")
        answer = answers.readline()
        if answer != b":%d\r\n" % due:
            sys.exit(f"{answer!r} instead of {due}")
        if due % max(last // LINES, 1) == 0:
            print("counted to", due, flush=True)


def end(connection, answers):
    connection.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
    rest = answers.read()
    if rest:
        sys.exit(f"{rest!r} instead of the end")


host, port, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with connect(host, port) as connection, connection.makefile("rb") as answers:
    count_to(connection, answers, last)
    end(connection, answers)
print("OK counter", last, flush=True)
