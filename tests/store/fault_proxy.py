"""A proxy between a store and its server that can drop a selected reply."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field


@dataclass
class FaultProxy:
    upstream_port: int
    port: int = 0
    needle: bytes = b""
    """The answer to the next message with these bytes is lost, and the connection with it."""
    lost: int = 0
    connections: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    def lose_answer_to(self, needle: bytes) -> None:
        self.needle = needle

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.upstream_port)
        cut = asyncio.Event()

        async def up() -> None:
            while data := await reader.read(65536):
                if self.needle and self.needle in data:
                    self.needle = b""
                    cut.set()
                to_server.write(data)
                await to_server.drain()

        async def down() -> None:
            while data := await from_server.read(65536):
                if cut.is_set():  # the server has answered, so it is done
                    self.lost += 1
                    return
                writer.write(data)
                await writer.drain()

        tasks = [asyncio.create_task(up()), asyncio.create_task(down())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (writer, to_server):
            stream.close()
            with contextlib.suppress(OSError):
                await stream.wait_closed()


@contextlib.asynccontextmanager
async def fault_proxy(upstream_port: int) -> AsyncGenerator[FaultProxy]:
    proxy = FaultProxy(upstream_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    async with server:
        yield proxy
