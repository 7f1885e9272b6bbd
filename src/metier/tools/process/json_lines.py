"""A Python child process that exchanges JSON lines with the agent.

Foreign code runs in such a process: a skill's toolsets, its `impl.py`, the check functions of an eval. The agent sends
a line and reads a line; the child's other output goes to its log. `json_lines_worker` is the child's side.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Self

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct, field
from pydantic import JsonValue

from metier.errors import ToolFailed, unwrapped
from metier.tools.process.bounded_output import Capture
from metier.tools.process.run import Command, ProcessLimits, ProcessTree, collect
from metier.tools.process.sandbox.confinement import Confinement

MAX_LINE_BYTES = 1_048_576
_MAX_LOG_BYTES = 65_536
_LOG_TAIL_BYTES = 500
_DRAIN_SECONDS = 1.0
"""Time to read the last output of an ended child. Another process may keep the stream open."""

type Line = dict[str, JsonValue]
type Respond = Callable[[Line], Awaitable[Line | None]]
"""Answers a question of the child; returns None if the line is the reply."""


class ChildModule(Struct, frozen=True, kw_only=True):
    """A module to run as a child: `python -m module`."""

    module: str
    subject: str
    """Its name in messages, such as "The toolset"."""
    folder: Path
    environment: Mapping[str, str]
    confinement: Confinement = field(default_factory=Confinement)
    spool: Path | None = None
    max_line_bytes: int = MAX_LINE_BYTES


class JsonLinesChild:
    """A running child. Leaving the `async with` block ends it with everything it started."""

    def __init__(self, tree: ProcessTree, child: ChildModule) -> None:
        self._tree = tree
        self._child = child
        self._lines = BufferedByteReceiveStream(tree.stdout)
        self._log = Capture(_MAX_LOG_BYTES)

    @classmethod
    async def start(cls, child: ChildModule) -> Self:
        """Start the child. Raises `ToolFailed`."""
        command = Command(
            # The Python of this environment, because the module imports Metier. -I ignores PYTHONPATH and the working
            # folder, where foreign files could replace that module.
            # -B: bytecode next to a skill's modules would change the bytes that the user trusted.
            arguments=[sys.executable, "-I", "-B", "-X", "utf8", "-m", child.module],
            folder=child.folder,
            environment=child.environment,
            spool=child.spool,
            confinement=child.confinement,
        )
        return cls(await ProcessTree.start(command, ProcessLimits(), with_stdin=True), child)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._tree.__aexit__(None, None, None)

    async def ask(
        self,
        request: Mapping[str, JsonValue],
        *,
        timeout_seconds: float,
        respond: Respond | None = None,
        ends: bool = False,
    ) -> Line:
        """Send a request and return its reply. `ends`: wait for the child to exit after the reply.

        Raises `ToolFailed`, with the code `timeout` or `execution_failed`. After that, and after cancellation, the
        child's state is unknown: close it.
        """
        # A failure quotes the end of the log, which must not be about an earlier request.
        self._log = Capture(_MAX_LOG_BYTES)
        try:
            with anyio.fail_after(timeout_seconds):
                return await self._exchange(request, respond, ends=ends)
        except TimeoutError as error:
            message = f"{self._child.subject} did not answer within {timeout_seconds:g} s"
            raise ToolFailed(self._with_log(message), code="timeout") from error

    async def read_partial_log(self) -> str:
        """End the child, and return its log since the last request."""
        with anyio.move_on_after(_DRAIN_SECONDS, shield=True):
            await self._tree.stop()
            await collect(self._tree.stderr, self._log.add)
        return self._log.output().text.strip()

    async def _exchange(self, request: Mapping[str, JsonValue], respond: Respond | None, *, ends: bool) -> Line:
        reply: Line = {}
        ended: _ChildEnded | None = None
        # The task group would wrap a `ToolFailed` into an exception group.
        with unwrapped():
            async with anyio.create_task_group() as reader:
                # Read the log while waiting: a child that has filled the pipe would block and never reply.
                reader.start_soon(collect, self._tree.stderr, self._log.add)
                try:
                    reply = await self._converse(request, respond)
                # Raised after the log was read to its end, because the log says why the child ended.
                except _ChildEnded as error:
                    ended = error
                    await self._tree.stop()
                    reader.cancel_scope.deadline = anyio.current_time() + _DRAIN_SECONDS
                else:
                    if ends:
                        # The supervisor writes the end to disk. After a crash, the run's next owner reads it there.
                        with anyio.move_on_after(_DRAIN_SECONDS):
                            await self._tree.wait()
                    reader.cancel_scope.cancel()
        if ended is not None:
            raise ToolFailed(self._with_log(ended.message)) from ended
        return reply

    async def _converse(self, request: Mapping[str, JsonValue], respond: Respond | None) -> Line:
        subject, limit = self._child.subject, self._child.max_line_bytes
        try:
            await self._send(request)
            while True:
                line = await self._lines.receive_until(b"\n", limit)
                reply = _parse(line)
                if reply is None:
                    raise ToolFailed(f"{subject} did not answer with a JSON object")
                answer = await respond(reply) if respond is not None else None
                if answer is None:
                    return reply
                await self._send(answer)
        except anyio.DelimiterNotFound as error:
            raise ToolFailed(f"{subject} answered with more than {limit} bytes") from error
        except (anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream) as error:
            raise _ChildEnded(f"{subject} ended without an answer") from error

    async def _send(self, line: Mapping[str, JsonValue]) -> None:
        await self._tree.stdin.send(json.dumps(line).encode() + b"\n")

    def _with_log(self, message: str) -> str:
        tail = self._log.output().last(_LOG_TAIL_BYTES).strip()
        return f"{message}\nstderr: {tail}" if tail else message


class _ChildEnded(ToolFailed):
    """The child closed its streams; its log says why."""


def _parse(line: bytes) -> Line | None:
    try:
        value: JsonValue = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
