"""A server and a client that asyncio drives, with many connections at once: asyncio_counter.py PORT COUNT. Each number is given to one caller."""

import asyncio
import sys

from counting import check, is_server, progress

CONNECTIONS = 8


async def serve(port, last):
    given, ended = 0, asyncio.Event()

    async def answer(reader, writer):
        nonlocal given
        while line := await reader.readline():
            given += 1
            writer.write(b"%d %s" % (given, line))
            await writer.drain()
        writer.close()
        if given == last:
            ended.set()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    async with server:
        await ended.wait()


async def connect(port):
    while True:
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)


async def ask(port, name, count, numbers, last):
    reader, writer = await connect(port)
    for question in range(count):
        said = b"question %d of %d\n" % (question, name)
        writer.write(said)
        number, rest = (await reader.readline()).split(b" ", 1)
        check(rest, said, "an answer")
        numbers.append(int(number))
        progress(len(numbers), last)
    writer.close()
    check(await reader.read(), b"", "after the end")


async def call(port, last):
    numbers = []
    await asyncio.gather(*(ask(port, name, last // CONNECTIONS, numbers, last) for name in range(CONNECTIONS)))
    check(sorted(numbers), list(range(1, last + 1)), "the numbers")
    print("OK asyncio", last, flush=True)


port, last = int(sys.argv[1]), int(sys.argv[2])
asyncio.run(serve(port, last) if is_server() else call(port, last))
