"""A server whose threads wake each other by an eventfd, and its client: wakes.py PORT QUESTIONS.

In rank 1 one thread has the connection, and another one the work: an epoll tells the first that the second has something for it. If it is told too early it finds nothing, and
nobody tells it again.
"""

import collections
import os
import select
import socket
import sys
import threading
import time


def whole(connection, length):
    got = b""
    while len(got) < length:
        piece = connection.recv(length - len(got))
        if not piece:
            sys.exit("the connection has ended early")
        got += piece
    return got


class Work:
    def __init__(self):
        self.questions, self.answers = collections.deque(), collections.deque()
        self.asked, self.done = os.eventfd(0, os.EFD_SEMAPHORE), os.eventfd(0, os.EFD_NONBLOCK)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            os.eventfd_read(self.asked)
            # Long enough for the other thread to wait again.
            time.sleep(0.001)
            self.answers.append(self.questions.popleft() + 1)
            os.eventfd_write(self.done, 1)


def serve(port, questions):
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    work, epoll, answered = Work(), select.epoll(), 0
    epoll.register(connection, select.EPOLLIN)
    epoll.register(work.done, select.EPOLLIN)
    while answered < questions:
        for fd, _ in epoll.poll():
            if fd == connection.fileno():
                work.questions.append(int(whole(connection, 8)))
                os.eventfd_write(work.asked, 1)
                continue
            try:
                os.eventfd_read(work.done)
            except BlockingIOError:
                continue
            while work.answers:
                connection.sendall(b"%8d" % work.answers.popleft())
                answered += 1


def ask(port, questions):
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    for number in range(questions):
        connection.sendall(b"%8d" % number)
        if int(whole(connection, 8)) != number + 1:
            sys.exit(f"question {number}: a wrong answer")
        if number % (questions // 4) == 0:
            print("asked", number, flush=True)
    print("OK wakes", questions, flush=True)


port, questions = int(sys.argv[1]), int(sys.argv[2])
serve(port, questions) if os.environ["RADIC_RANK"] == "1" else ask(port, questions)
