"""A server that has accepted a connection, and children that have inherited it: inherits.py PORT.

Rank 0 accepts one connection, on which bytes lie already, and starts two children, one by fork and one that executes `cat` with the connection as its standard input. Neither
may see a byte that the client has not sent, nor send one. Then rank 0 itself answers rank 1.
"""

import os
import socket
import subprocess
import sys
import time

QUESTION = b"what the client has sent"


def serve(port):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    connection, _ = listener.accept()
    # The bytes lie in the socket before the children are there.
    first = connection.recv(1)
    child = os.fork()
    if child == 0:
        got = connection.recv(100)
        try:
            connection.send(b"a child's word")
            sent = True
        except OSError:
            sent = False
        os._exit(0 if got == b"" and not sent else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0, "a child has used its parent's connection"
    os.set_inheritable(connection.fileno(), True)
    reader = os.fork()
    if reader == 0:
        os.dup2(connection.fileno(), 0)
        os.execvp("cat", ["cat"])
    _, status = os.waitpid(reader, 0)
    assert status == 0, "cat has not come to the end of what it reads"
    subprocess.run(["true"], check=True)
    rest = b""
    while len(first + rest) < len(QUESTION):
        rest += connection.recv(100)
    assert first + rest == QUESTION, rest
    connection.sendall(b"heard " + first + rest)
    connection.close()


def call(port):
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    connection.sendall(QUESTION)
    answer = b""
    while part := connection.recv(100):
        answer += part
    assert answer == b"heard " + QUESTION, answer
    print("OK inherits", flush=True)


if os.environ["RADIC_RANK"] == "0":
    serve(int(sys.argv[1]))
else:
    call(int(sys.argv[1]))
