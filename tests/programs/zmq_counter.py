"""A server and a client of ZeroMQ: zmq_counter.py PORT COUNT HOW. HOW is `reqrep` (each question is answered) or `pushpull` (what is pushed comes once and in order)."""

import sys

import zmq
from counting import check, is_server, progress

END = b"end"


def answer(context, port):
    socket = context.socket(zmq.REP)
    socket.bind(f"tcp://127.0.0.1:{port}")
    given = 0
    while (said := socket.recv()) != END:
        given += 1
        socket.send(b"%d %s" % (given, said))
    socket.send(END)


def ask(context, port, last):
    socket = context.socket(zmq.REQ)
    socket.connect(f"tcp://127.0.0.1:{port}")
    for number in range(1, last + 1):
        said = b"question %d" % number
        socket.send(said)
        check(socket.recv(), b"%d %s" % (number, said), "an answer")
        progress(number, last)
    socket.send(END)
    check(socket.recv(), END, "the end")


def push(context, port, last):
    """The server pushes."""
    socket = context.socket(zmq.PUSH)
    socket.bind(f"tcp://127.0.0.1:{port}")
    for number in range(1, last + 1):
        socket.send(b"number %d" % number)


def pull(context, port, last):
    socket = context.socket(zmq.PULL)
    socket.connect(f"tcp://127.0.0.1:{port}")
    for number in range(1, last + 1):
        check(socket.recv(), b"number %d" % number, "what was pushed")
        progress(number, last)


def main():
    port, last, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with zmq.Context() as context:
        if is_server():
            answer(context, port) if how == "reqrep" else push(context, port, last)
        else:
            ask(context, port, last) if how == "reqrep" else pull(context, port, last)
        context.destroy(linger=None)
    if not is_server():
        print("OK zmq", how, last, flush=True)


main()
