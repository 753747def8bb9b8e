"""A pair that talks by asyncio: echo.py server|client|rank DIR [MESSAGES]. The client checks each answer, both print what they have seen.

With `rank` the role is that of RADIC_RANK: rank 0 is the server. The client learns the server's port from a file in DIR.
"""

import asyncio
import hashlib
import os
import sys

LIMIT = 100  # seconds
CONNECTIONS = 5


def message(connection, number):
    """Anything between 1 byte and 200 KiB, mostly short."""
    seed = hashlib.sha256(f"{connection} {number}".encode()).digest()
    size = 1 + int.from_bytes(seed[:4], "little") % (200 << 10 if seed[4] < 10 else 2000)
    return (seed * (size // len(seed) + 1))[:size]


async def answer(reader, writer, digests, ended):
    digest = hashlib.sha256()
    while head := await reader.read(4):
        if len(head) < 4:
            head += await reader.readexactly(4 - len(head))
        body = await reader.readexactly(int.from_bytes(head, "little"))
        digest.update(body)
        writer.write(head + body[::-1])
        await writer.drain()
    digests.append(digest.hexdigest())
    writer.close()
    if len(digests) == CONNECTIONS:
        ended.set()


async def serve(folder):
    digests, ended = [], asyncio.Event()
    server = await asyncio.start_server(lambda r, w: answer(r, w, digests, ended), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with open(f"{folder}/port.new", "w") as file:
        file.write(str(port))
    os.rename(f"{folder}/port.new", f"{folder}/port")
    await ended.wait()
    server.close()
    return digests


async def call(connection, port, messages):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    digest = hashlib.sha256()
    for number in range(messages):
        body = message(connection, number)
        digest.update(body)
        writer.write(len(body).to_bytes(4, "little"))
        writer.write(body)
        head = await reader.readexactly(4)
        echo = await reader.readexactly(int.from_bytes(head, "little"))
        if echo != body[::-1]:
            sys.exit(f"connection {connection}: message {number} came back changed")
    writer.write_eof()
    if await reader.read():
        sys.exit(f"connection {connection}: more than was sent came back")
    writer.close()
    return digest.hexdigest()


async def port_of_server(folder):
    while not os.path.exists(f"{folder}/port"):
        await asyncio.sleep(0.01)
    with open(f"{folder}/port") as file:
        return int(file.read())


async def main(role, folder, messages):
    if role == "server":
        digests = await serve(folder)
    else:
        port = await port_of_server(folder)
        digests = await asyncio.gather(*(call(number, port, messages) for number in range(CONNECTIONS)))
    print("OK echo", hashlib.sha256("".join(sorted(digests)).encode()).hexdigest(), flush=True)


role = sys.argv[1]
if role == "rank":
    role = "server" if os.environ["RADIC_RANK"] == "0" else "client"
asyncio.run(asyncio.wait_for(main(role, sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 500), LIMIT))
