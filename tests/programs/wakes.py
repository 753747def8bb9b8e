"""A server whose threads wake each other by an eventfd, and its client: wakes.py PORT QUESTIONS [LOCK].

In rank 1 one thread has the connection, and another one the work: an epoll tells the first that the second has something for it. If it is told too early it finds nothing, and
nobody tells it again. As long as there is a file LOCK, the second one looks at the clock after its work, as if it had found a lock taken, and nothing depends on what it sees.
"""

import collections
import os
import select
import socket
import sys
import threading
import time

from counting import check, connect, is_server, whole


class Work:
    def __init__(self, lock):
        self.lock = lock
        self.questions, self.answers = collections.deque(), collections.deque()
        self.asked, self.done = os.eventfd(0, os.EFD_SEMAPHORE), os.eventfd(0, os.EFD_NONBLOCK)
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            os.eventfd_read(self.asked)
            # Long enough for the other thread to wait again.
            time.sleep(0.001)
            self.answers.append(self.questions.popleft() + 1)
            if self.lock and os.path.exists(self.lock):
                time.time()
            os.eventfd_write(self.done, 1)


def serve(port, questions, lock):
    listener = socket.create_server(("127.0.0.1", port))
    connection, _ = listener.accept()
    work, epoll, answered = Work(lock), select.epoll(), 0
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
    connection = connect("127.0.0.1", port)
    for number in range(questions):
        connection.sendall(b"%8d" % number)
        check(int(whole(connection, 8)), number + 1, f"question {number}")
        if number % (questions // 4) == 0:
            print("asked", number, flush=True)
    print("OK wakes", questions, flush=True)


port, questions, lock = int(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] + [None])[0]
serve(port, questions, lock) if is_server() else ask(port, questions)
