"""Rank 1 listens; rank 0 wants the same address again and again, and calls rank 1 now and then: binds.py ADDRESS PORT CALLS."""
import errno
import os
import socket
import sys

address, port, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
TRIES = 100


def serve():
    listener = socket.create_server((address, port))
    for _ in range(calls):
        connection, _ = listener.accept()
        connection.sendall(b"rank 1")
        connection.close()


def call():
    with socket.create_connection((address, port)) as connection:
        got = connection.recv(6, socket.MSG_WAITALL)
        if got != b"rank 1":
            raise SystemExit(f"{got} answers")


def want():
    """Nobody but rank 1 may ever have the address."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        error = 0
        try:
            other.bind((address, port))
        except OSError as refused:
            error = refused.errno
        if error != errno.EADDRINUSE:
            raise SystemExit(f"bind: {os.strerror(error)}")
        # The socket is as good as before.
        other.bind((address, 0))
        if not other.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR):
            raise SystemExit("an option is lost")


def begin():
    """Rank 1 may not have started yet."""
    while True:
        try:
            return call()
        except ConnectionRefusedError:
            pass


if os.environ["RADIC_RANK"] == "0":
    begin()
    for number in range(1, calls):
        for _ in range(TRIES):
            want()
        call()
        print(f"called {number}", flush=True)
    print(f"OK calls {calls}")
else:
    serve()
