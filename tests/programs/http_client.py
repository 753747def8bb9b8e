"""A client of a web server: http_client.py ADDRESS PORT COUNT. It asks for files of known content, by turns on a connection that stays and on one for each question.

An answer that is wrong, and an error of a connection, is a failure; with `again` as a fourth argument a connection that ends without an answer is made anew. That nobody listens any
more is a failure in any case.
"""

import http.client
import socket
import sys

from counting import check, connect, progress

FILES = 20


def content(number):
    """What the test has written."""
    return b"".join(b"line %d of file %d\n" % (line, number) for line in range(number * 40 + 1))


class Client:
    def __init__(self, address, port, again):
        self.address, self.port, self.again = address, port, again
        self.stays = self.connection(connect)

    def connection(self, how=lambda *to: socket.create_connection(to)):
        made = http.client.HTTPConnection(self.address, self.port)
        made.sock = how(self.address, self.port)
        return made

    def ask(self, number, closes):
        while True:
            connection = self.connection() if closes else self.stays
            try:
                connection.request("GET", f"/{number}", headers={"Connection": "close"} if closes else {})
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (ConnectionError, http.client.HTTPException):
                if not self.again:
                    raise
                self.stays = self.connection()
            finally:
                if closes:
                    connection.close()


def main():
    address, port, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    client = Client(address, port, sys.argv[4:] == ["again"])
    for number in range(1, last + 1):
        file = number % FILES
        check(client.ask(file, number % 5 == 0), (200, content(file)), f"question {number}")
        progress(number, last)
    print("OK http", last, flush=True)


if __name__ == "__main__":
    main()
