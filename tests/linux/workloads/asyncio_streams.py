import asyncio
from asyncio.subprocess import PIPE


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def main() -> None:
    tcp = await asyncio.start_server(shout, "127.0.0.1", 0)
    unix = await asyncio.start_unix_server(shout, "sock")
    address = tcp.sockets[0].getsockname()
    for reader, writer in (await asyncio.open_connection(*address), await asyncio.open_unix_connection("sock")):
        writer.write(b"hello\n")
        print(await reader.read())
        writer.close()
    process = await asyncio.create_subprocess_exec("echo", "x", stdout=PIPE)
    print(await process.communicate())
    print(await asyncio.gather(*(asyncio.sleep(0.01, n) for n in range(5))))
    tcp.close()
    unix.close()


asyncio.run(main())
