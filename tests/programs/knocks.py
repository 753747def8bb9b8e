"""Rank 1 listens anew for each call; rank 0 calls until somebody listens: knocks.py ADDRESS PORT CALLS."""
import errno
import os
import select
import socket
import sys

address, port, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def serve():
    for number in range(calls):
        listener = socket.create_server((address, port))
        connection, _ = listener.accept()
        with connection:
            asked = connection.recv(4, socket.MSG_WAITALL)
            # Before the answer: the next call is not for this listener.
            listener.close()
            if asked != number.to_bytes(4, "big"):
                raise SystemExit(f"{asked} instead of {number}")
            connection.sendall(b"heard")


def connect(waits):
    """None: nobody listens."""
    caller = socket.socket()
    caller.setblocking(waits)
    error = caller.connect_ex((address, port))
    if not waits:
        select.select([], [caller], [])
        error = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        caller.setblocking(True)
    if not error:
        return caller
    caller.close()
    if error != errno.ECONNREFUSED:
        raise SystemExit(f"connect: {os.strerror(error)}")
    return None


if os.environ["RADIC_RANK"] == "0":
    refused = 0
    for number in range(calls):
        while (connection := connect(number % 2 == 0)) is None:
            refused += 1
        with connection:
            connection.sendall(number.to_bytes(4, "big"))
            if connection.recv(5, socket.MSG_WAITALL) != b"heard":
                raise SystemExit(f"call {number} was not heard")
    print(f"OK knocks {calls}, refused {refused > 0}")
else:
    serve()
