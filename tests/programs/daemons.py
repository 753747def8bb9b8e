"""A process that ends while its daemon threads are in the middle of calls: daemons.py DIR. Rank 0 ends with code 7, rank 1 when it sees that."""
import os
import select
import socket
import sys
import threading
import time

CODE = 7
TALKS = 20
folder = sys.argv[1]
talked = threading.Event()


def run(function, *arguments):
    def again():
        while True:
            function(*arguments)

    threading.Thread(target=again, daemon=True).start()


def talk(connection):
    for _ in range(TALKS):
        connection.sendall(b"x")
        connection.recv(1)
    talked.set()
    while True:
        connection.sendall(b"x")
        connection.recv(1)


def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    with open(f"{folder}/port.new", "w") as file:
        file.write(str(listener.getsockname()[1]))
    os.rename(f"{folder}/port.new", f"{folder}/port")
    talks, quiet, polled = (listener.accept()[0] for _ in range(3))
    run(quiet.recv, 1)
    run(select.select, [polled], [], [])
    run(select.select, [quiet], [], [], 0.001)
    run(listener.accept)
    run(talk, talks)
    talked.wait()
    print("talked")
    sys.exit(CODE)


def call():
    while not os.path.exists(f"{folder}/port"):
        time.sleep(0.005)
    with open(f"{folder}/port") as file:
        port = int(file.read())
    talks, quiet, polled = (socket.create_connection(("127.0.0.1", port)) for _ in range(3))
    while talks.recv(1):
        try:
            talks.sendall(b"x")
        except OSError:
            break
    assert not quiet.recv(1) and not polled.recv(1)


serve() if os.environ["RADIC_RANK"] == "0" else call()
