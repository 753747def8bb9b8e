"""A server that has a child, and its client: loses.py PORT QUESTIONS.

Rank 1 answers, and its child does nothing: it is there to be lost. In the end the server says what it has heard of its child, which it never ends itself.
"""

import os
import signal
import socket
import sys

from counting import check, connect, is_server, whole

END = 0


def ended(child):
    """How the child has ended: asked without waiting, by both calls that there are."""
    info = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    pid, status = os.waitpid(-1, os.WNOHANG)
    if info is None:
        return f"not ended, {pid}"
    return f"ended by {info.si_status} ({info.si_code == os.CLD_KILLED}), {pid == child}, {os.waitstatus_to_exitcode(status)}"


def serve(port):
    told = []
    signal.signal(signal.SIGCHLD, lambda *_: told.append(True))
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    while (number := int(whole(connection, 8))) != END:
        connection.sendall(b"%8d" % (number + 1))
    print("server:", ended(child), "told", len(told), flush=True)
    try:
        os.wait()
    except ChildProcessError:
        print("server: no child is left", flush=True)
    connection.sendall(b"%8d" % END)


def ask(port, questions):
    connection = connect("127.0.0.1", port)
    for number in range(1, questions + 1):
        connection.sendall(b"%8d" % number)
        check(int(whole(connection, 8)), number + 1, f"question {number}")
        if number % (questions // 20) == 0:
            print("asked", number, flush=True)
    connection.sendall(b"%8d" % END)
    whole(connection, 8)
    print("OK loses", questions, flush=True)


port, questions = int(sys.argv[1]), int(sys.argv[2])
serve(port) if is_server() else ask(port, questions)
