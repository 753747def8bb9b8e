"""A client of redis on one connection, which it opens once: counter.py HOST PORT COUNT. The server is to count; each answer must be the one after the last.

In the end the server is told to end. An error of the connection is a failure: nobody but the library below this program may connect again.
"""

import sys

from counting import check, connect, progress


def count_to(connection, answers, last):
    for due in range(1, last + 1):
        connection.sendall(b"*2\r\n$4\r\nINCR\r\n$7\r\ncounter\r\n")
        check(answers.readline(), b":%d\r\n" % due, f"question {due}")
        progress(due, last)


def end(connection, answers):
    connection.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
    check(answers.read(), b"", "the end")


host, port, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with connect(host, port) as connection, connection.makefile("rb") as answers:
    count_to(connection, answers, last)
    end(connection, answers)
print("OK counter", last, flush=True)
