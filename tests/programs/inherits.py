"""A server that has accepted a connection, and children that have inherited it: inherits.py PORT.

Rank 1 accepts one connection, on which bytes lie already, and starts two children, one by fork and one that executes `cat` with the connection as its standard input. Neither
may see a byte that the client has not sent, nor send one. Then the server itself answers the client.
"""

import os
import socket
import subprocess
import sys

from counting import check, connect, is_server, whole

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
    check(first + whole(connection, len(QUESTION) - 1), QUESTION, "the question")
    connection.sendall(b"heard " + QUESTION)
    connection.close()


def call(port):
    connection = connect("127.0.0.1", port)
    connection.sendall(QUESTION)
    answer = b"heard " + QUESTION
    check(whole(connection, len(answer)), answer, "the answer")
    check(connection.recv(100), b"", "the end")
    print("OK inherits", flush=True)


port = int(sys.argv[1])
serve(port) if is_server() else call(port)
