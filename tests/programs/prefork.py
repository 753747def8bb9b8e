"""A server whose children take the connections, and its clients: prefork.py PORT HOW CALLS.

Rank 0 listens, and forks two children that wait for callers by `accept`, `epoll`, `poll` or `select` (HOW), or that execute themselves anew with the listener (`exec`). Rank 1
calls CALLS times, from before the server listens. A connection may end before the answer: the first callers may have been told of the rank. Then the client calls again. An
answer that is wrong is never right.
"""

import os
import select
import socket
import sys
import time

END = b"end"


def wait(listener, how):
    if how == "epoll":
        epoll = select.epoll()
        epoll.register(listener, select.EPOLLIN)
        epoll.poll()
        epoll.close()
    elif how == "poll":
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.poll()
    elif how == "select":
        select.select([listener], [], [])


def child(listener, how):
    listener.setblocking(how in ("accept", "exec"))
    while True:
        wait(listener, how)
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            continue
        connection.setblocking(True)
        said = connection.recv(100)
        connection.sendall(b"heard " + said)
        connection.close()
        if said == END:
            os._exit(0)


def serve(port, how):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    listener.set_inheritable(True)
    children = []
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            # The first callers come before a child takes any.
            time.sleep(0.05)
            if how == "exec":
                os.execv(sys.executable, [sys.executable, __file__, "child", str(listener.fileno())])
            child(listener, how)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print("server", codes, flush=True)


def call(port, say):
    """The answer, and how many connections ended without one."""
    lost = 0
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(say)
                if answer := connection.recv(100):
                    return answer, lost
                lost += 1
        except ConnectionRefusedError:
            time.sleep(0.001)
        except ConnectionError:
            lost += 1


def main():
    if sys.argv[1] == "child":
        child(socket.socket(fileno=int(sys.argv[2])), "accept")
    port, how, calls = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    if os.environ["RADIC_RANK"] == "0":
        return serve(port, how)
    lost = 0
    for number in range(calls + 2):
        say = b"call %d" % number if number < calls else END
        answer, again = call(port, say)
        if answer != b"heard " + say:
            print("wrong", answer, flush=True)
            os._exit(3)
        lost += again
    print("client", calls, "answers", "some lost" if lost else "none lost", flush=True)


main()
