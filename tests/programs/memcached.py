"""A client of memcached on three connections: memcached.py ADDRESS PORT COUNT. The server is to count; each answer must be the one after the last, and each value what was stored.

In the end the server is told to end. An error of a connection is a failure.
"""

import sys

from counting import check, connect, progress

CONNECTIONS = 3


class Client:
    def __init__(self, address, port):
        self.connection = connect(address, port)
        self.answers = self.connection.makefile("rb")

    def ask(self, command, due):
        self.connection.sendall(command + b"\r\n")
        for line in due:
            check(self.answers.readline(), line + b"\r\n", command)


def value(number):
    return b"%d of %s" % (number, b"x" * (number % 700))


def main():
    address, port, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    clients = [Client(address, port) for _ in range(CONNECTIONS)]
    clients[0].ask(b"set counter 0 0 1\r\n0", [b"STORED"])
    for number in range(1, last + 1):
        client, next_client = clients[number % CONNECTIONS], clients[(number + 1) % CONNECTIONS]
        client.ask(b"incr counter 1", [b"%d" % number])
        stored = value(number)
        client.ask(b"set key%d 0 0 %d\r\n%s" % (number % 100, len(stored), stored), [b"STORED"])
        next_client.ask(b"get key%d" % (number % 100), [b"VALUE key%d 0 %d" % (number % 100, len(stored)), stored, b"END"])
        progress(number, last)
    clients[0].ask(b"shutdown", [])
    check(clients[0].answers.read(), b"", "after the end")
    print("OK memcached", last, flush=True)


main()
