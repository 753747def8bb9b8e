"""What clients and servers that count have in common: one finds the other, and the client says how far it has come.

A server counts what it is asked, over all its callers. So a question that is lost, or that is asked twice, is seen in the numbers that its callers get.
"""

import os
import socket
import sys
import time

PATIENCE = 60  # seconds
LINES = 20


def is_server():
    """Rank 1 is the server of a job of two."""
    return os.environ["RADIC_RANK"] == "1"


def connect(address, port):
    """A connection to a server that may not listen yet."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, port))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def whole(connection, length):
    """So many bytes."""
    got = b""
    while len(got) < length:
        piece = connection.recv(length - len(got))
        if not piece:
            sys.exit("the connection has ended early")
        got += piece
    return got


def check(found, due, what):
    """Both are the same, or the program ends here."""
    if found != due:
        sys.exit(f"{what}: {found!r} instead of {due!r}")


def progress(done, last):
    """A line for each twentieth."""
    if done % max(last // LINES, 1) == 0:
        print("counted to", done, flush=True)
