"""JSON-RPC with an editor, one message per line. Imports little, so that the first reply is fast."""

import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, BinaryIO, cast

import anyio
from anyio.abc import TaskGroup

logger = logging.getLogger("metier.protocols")

MAX_LINE_LENGTH = 20_000_000
"""Bytes of one message, including pictures."""
MAX_REQUESTS = 100
"""Concurrent requests of the editor."""
MAX_WAITING = 10_000
"""Messages waiting to be written. An editor with a longer backlog counts as disconnected."""

GRACE_SECONDS = 2.0
"""Time that open requests get to end after the editor closed its side."""

INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR = -32600, -32601, -32602, -32603
# JSON-RPC leaves -32000 to -32099 to implementations.
BUSY = -32000

type Params = dict[str, Any]
type Handle = Callable[[str, Params], Awaitable[Params]]
"""Handles a request or a notification, whose result is not sent. Raises `Refusal`."""


class Refusal(Exception):
    """The error reply to a request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class EditorGone(Exception):
    """The editor closed the connection or stopped reading before it replied."""


class Connection:
    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source = source
        self._sink = sink
        self._number = 0
        self._running = 0
        self._answers: dict[int, tuple[anyio.Event, list[Params]]] = {}
        self.is_closed = False
        self._group: TaskGroup | None = None
        self._waiting: list[Params] = []
        self._has_more = anyio.Event()
        self._has_ended = anyio.Event()
        self._is_writer_done = anyio.Event()

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task that lasts at most as long as the connection, after the current request."""
        if self._group is not None and not self.is_closed:
            self._group.start_soon(work)

    async def serve(self, handle: Handle, closing: Callable[[], Awaitable[None]]) -> None:
        """Handle messages until the editor closes its side. Then call `closing` and cancel the rest."""
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._write_all)
            while not self.is_closed:
                # A blocked read of stdin cannot be interrupted, so its thread is abandoned at the end.
                line = await anyio.to_thread.run_sync(self._source.readline, MAX_LINE_LENGTH, abandon_on_cancel=True)
                if not line:
                    break
                if (message := self._parse(line)) is None:
                    continue
                if "method" not in message:
                    self._take_answer(message)
                elif "id" in message and self._running >= MAX_REQUESTS:
                    self._refuse(message["id"], Refusal(BUSY, "Too many requests at a time"))
                else:
                    self._running += 1
                    group.start_soon(self._answer, handle, message)
            self.close()
            # Also when canceled: turns are paused in the store before the process ends.
            with anyio.CancelScope(shield=True):
                await closing()
                await self._end_requests()
            group.cancel_scope.cancel()

    async def _end_requests(self) -> None:
        """Give open requests a moment to be answered."""
        with anyio.move_on_after(GRACE_SECONDS):
            while self._running:
                self._has_ended = anyio.Event()
                await self._has_ended.wait()
            # Two threads must not write at once, and the writer may still be in its last batch.
            await self._is_writer_done.wait()
            with suppress(OSError):
                await anyio.to_thread.run_sync(self._write, self._take_waiting(), abandon_on_cancel=True)

    def close(self) -> None:
        self.is_closed = True
        self._has_more.set()
        for event, _ in self._answers.values():
            event.set()

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        self._send({"method": method, "params": dict(params)})

    async def request(self, method: str, params: Mapping[str, Any]) -> Params:
        """Send a request and return the result. Raises `EditorGone`, or `Refusal` with the editor's error."""
        self._number += 1
        number = self._number
        event, reply = self._answers[number] = anyio.Event(), []
        self._send({"id": number, "method": method, "params": dict(params)})
        try:
            if not self.is_closed:
                await event.wait()
        finally:
            del self._answers[number]
        if not reply:
            raise EditorGone
        error = reply[0].get("error")
        if isinstance(error, dict):
            said = cast("dict[str, object]", error)
            raise Refusal(INTERNAL_ERROR, str(said.get("message", "")))
        result = reply[0].get("result")
        return cast("Params", result) if isinstance(result, dict) else {}

    def _parse(self, line: bytes) -> Params | None:
        try:
            message: object = json.loads(line)
            if b"\\ud" in line.lower():
                # A lone surrogate cannot be encoded, so it could be neither stored nor sent.
                message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
        except (ValueError, RecursionError):
            if len(line) >= MAX_LINE_LENGTH:
                # Without the end of this line, the start of the next message is unknown.
                self.close()
            else:
                self._refuse(None, Refusal(-32700, "This is not JSON"))
            return None
        if isinstance(message, dict) and isinstance(cast("Params", message).get("params", {}), dict):
            return cast("Params", message)
        self._refuse(None, Refusal(INVALID_REQUEST, "A message is an object with its parameters by name"))
        return None

    def _take_answer(self, message: Params) -> None:
        number = message.get("id")
        found = self._answers.get(number) if isinstance(number, int) else None
        if found is not None:
            found[1].append(message)
            found[0].set()

    async def _answer(self, handle: Handle, message: Params) -> None:
        try:
            result = await handle(str(message["method"]), cast("Params", message.get("params") or {}))
            if "id" in message:
                self._send({"id": message["id"], "result": result})
        except Refusal as refusal:
            if "id" in message:
                self._refuse(message["id"], refusal)
        except Exception:
            # A failing request must not end the editor's other sessions.
            logger.exception("request %.100r failed", message["method"])
            if "id" in message:
                self._refuse(message["id"], Refusal(INTERNAL_ERROR, "Internal error; see the log on stderr"))
        finally:
            self._running -= 1
            self._has_ended.set()

    def _refuse(self, number: object, refusal: Refusal) -> None:
        self._send({"id": number, "error": {"code": refusal.code, "message": refusal.message}})

    def _send(self, message: Params) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self.close()
            return
        self._waiting.append({"jsonrpc": "2.0", **message})
        self._has_more.set()

    async def _write_all(self) -> None:
        while True:
            await self._has_more.wait()
            self._has_more = anyio.Event()
            try:
                await anyio.to_thread.run_sync(self._write, self._take_waiting(), abandon_on_cancel=True)
            except OSError:
                self.close()
            if self.is_closed:
                self._is_writer_done.set()
                return

    def _take_waiting(self) -> bytes:
        waiting, self._waiting = self._waiting, []
        # JSON escapes line feeds, so each message is one line.
        return b"".join(json.dumps(message).encode() + b"\n" for message in waiting)

    def _write(self, data: bytes) -> None:
        self._sink.write(data)
        self._sink.flush()


def claim_streams() -> tuple[BinaryIO, BinaryIO]:
    """Reserve stdin and stdout for the protocol: prints go to stderr, and children read nothing."""
    if not _is_descriptor(sys.stdin, 0) or not _is_descriptor(sys.stdout, 1):
        return sys.stdin.buffer, sys.stdout.buffer
    # By descriptor: libraries and children use 0 and 1 by number, whatever `sys.stdin` and `sys.stdout` are.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    # A stray print would break the protocol, and on stderr it is at least visible.
    os.dup2(2, 1)
    return source, sink


def _is_descriptor(stream: Any, number: int) -> bool:  # noqa: ANN401 - a stream of the system, or one of a test
    try:
        return stream.fileno() == number
    except (OSError, ValueError, AttributeError):
        return False
