"""A caller (rank 0) that connects anew for each question, and a server (rank 1): calls.py ADDRESS PORT CALLS."""
import os
import select
import socket
import sys

address, port, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])


def whole(connection, length):
    got = b""
    while len(got) < length:
        piece = connection.recv(length - len(got))
        if not piece:
            raise SystemExit("the connection has ended early")
        got += piece
    return got


def serve():
    listener = socket.create_server((address, port), backlog=64)
    for _ in range(calls):
        connection, _ = listener.accept()
        number = int(whole(connection, 8))
        connection.sendall(b"%8d" % (number + 1))
        connection.close()


def connect(waits):
    """To a server that may not have started yet: that is the only refusal there may be."""
    connection = socket.socket()
    connection.setblocking(waits)
    error = connection.connect_ex((address, port))
    if not waits:
        select.select([], [connection], [])
        error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        connection.setblocking(True)
    return connection, error


def call():
    connection, error = connect(True)
    while error:
        connection, error = connect(True)
    for number in range(calls):
        if number > 0:
            connection, error = connect(number % 2 == 0)
            if error:
                raise SystemExit(f"call {number}: {os.strerror(error)}")
        connection.sendall(b"%8d" % number)
        if int(whole(connection, 8)) != number + 1:
            raise SystemExit(f"call {number}: a wrong answer")
        connection.close()
        if number % (calls // 20) == 0:
            print(f"called {number}", flush=True)
    print(f"OK calls {calls}")


call() if os.environ["RADIC_RANK"] == "0" else serve()
