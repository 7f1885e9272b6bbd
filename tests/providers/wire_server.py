"""A scripted local HTTP server: complete bodies, event streams, and every kind of disconnect.

It knows nothing of vendors: a test sets the bytes of a vendor's reply and reads the request of our code.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal, cast

type Ending = Literal["whole", "reset", "close", "hang", "drip", "flood"]
"""`whole`: a proper end; `reset` and `close`: the connection ends before the body does; `hang`: nothing more comes;
`drip`: a byte of nothing every moment, for ever; `flood`: megabytes, for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict[str, str])
    ending: Ending = "whole"


@dataclass(frozen=True, slots=True)
class Received:
    method: str
    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, object]:
        return cast("dict[str, object]", json.loads(self.raw))


def whole(value: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    return Answer(body=json.dumps(value).encode(), status=status, headers=headers or {})


def stream(events: Sequence[object], *, named: bool = False, done: bool = False, ending: Ending = "whole") -> Answer:
    """Build server-sent events; `named` repeats each `type` in an event line, `done` ends with `[DONE]`."""
    lines: list[str] = []
    for event in events:
        kind = cast("dict[str, object]", event).get("type") if isinstance(event, dict) else None
        name = f"event: {kind}\n" if named else ""
        lines.append(f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n")
    lines.extend(["data: [DONE]\n\n"] if done else [])
    return Answer(body="".join(lines).encode(), content_type="text/event-stream", ending=ending)


class WireServer:
    """A server that returns `answers` in order, repeats the last one, and keeps requests in `received`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[Answer] = []
        self.received: list[Received] = []

    def will_answer(self, *answers: Answer) -> None:
        self.answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await _read_request(reader)) is not None:
                self.received.append(request)
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if not await _send(answer, reader, writer):
                    break
        writer.close()


@asynccontextmanager
async def running_server() -> AsyncGenerator[WireServer]:
    server = WireServer("")
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(server.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, path, _ = first.split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, raw)


async def _send(answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Return whether the connection can be reused."""
    length = len(answer.body) if answer.ending == "whole" else None
    headers = {"content-type": answer.content_type, **answer.headers}
    headers |= {"content-length": str(length)} if length is not None else {"transfer-encoding": "chunked"}
    lines = [f"HTTP/1.1 {answer.status} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if length is not None:
        writer.write(answer.body)
        await writer.drain()
        return True
    writer.write(_chunk(answer.body))
    await writer.drain()
    await _ENDINGS[answer.ending](reader, writer)
    return False


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()  # returns when the client gives up


async def _drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        writer.write(_chunk(b" "))
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.read(), timeout=0.02)


async def _flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while not reader.at_eof():
        writer.write(_chunk(b" " * 1024 * 1024))
        await writer.drain()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data) if data else b""


_ENDINGS: dict[Ending, Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]] = {
    "reset": _reset,
    "close": _close,
    "hang": _hang,
    "drip": _drip,
    "flood": _flood,
}
