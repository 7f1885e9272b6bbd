"""A server as a process: messages over its pipes, one a line, and nothing of it left when the conversation ends.

Instead of the SDK's own transport, because a server is a hostile program until shown otherwise: here its messages are
bounded, its environment is a list, its log goes to a file, and its whole tree of processes ends with it.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from metier.dataclass import dataclass
from metier.tools.mcp.conversation import Ending
from metier.tools.mcp.server_log import ServerLog
from metier.tools.process.run import Command, ProcessLimits, ProcessTree

MAX_GARBAGE_LINES = 1_000
"""Some servers greet on the wrong stream; one that goes on like this is not speaking the protocol."""
_WORDS_SECONDS = 2.0

type Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_transport(
    command: Command, ending: Ending, *, log: ServerLog, max_message_bytes: int
) -> AsyncGenerator[Streams]:
    """Streams of messages to and from a fresh process. Leaving the block kills all that it started."""
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tree = await ProcessTree.start(command, ProcessLimits(), with_stdin=True)
    async with tree, anyio.create_task_group() as pipes:
        pipes.start_soon(_read_log, tree, log)
        pipes.start_soon(_write_messages, tree, outgoing)
        pipes.start_soon(_Reader(tree, ending, log, max_message_bytes).run, incoming)
        try:
            yield read_stream, write_stream
        finally:
            pipes.cancel_scope.cancel()
            for stream in (read_stream, write_stream, incoming, outgoing):
                stream.close()


@dataclass(frozen=True, slots=True)
class _Reader:
    tree: ProcessTree
    ending: Ending
    log: ServerLog
    max_message_bytes: int

    async def run(self, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Hand on message after message until there are no more; then say why."""
        lines = BufferedByteReceiveStream(self.tree.stdout)
        garbage = 0
        reason = ""
        try:
            while garbage <= MAX_GARBAGE_LINES:
                line = await lines.receive_until(b"\n", self.max_message_bytes)
                message = _parse(line)
                if message is None:
                    garbage += 1
                    self.log.add(b"(on standard output, not a message) " + line[:1000] + b"\n")
                else:
                    await incoming.send(message)
            reason = "it writes something else than messages to its standard output"
        except anyio.DelimiterNotFound:
            reason = f"it sent a message of more than {self.max_message_bytes} bytes"
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            reason = await self._find_reason()
        self.ending.tell(reason)
        # A caller that waits for an answer learns now that none will come.
        incoming.close()

    async def _find_reason(self) -> str:
        with anyio.move_on_after(_WORDS_SECONDS):
            ended = await self.tree.wait()
            if ended.problem:
                return f"it could not be started: {ended.problem}"
            if ended.signal is not None:
                return f"signal {ended.signal} ended it"
            return f"it ended with exit code {ended.exit_code}"
        return "it closed its standard output"


def _parse(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except (ValueError, RecursionError):
        return None


async def _write_messages(tree: ProcessTree, outgoing: MemoryObjectReceiveStream[SessionMessage]) -> None:
    try:
        async for each in outgoing:
            text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
            await tree.stdin.send(text.encode("utf-8", "replace") + b"\n")
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        # The reader sees the end too, and says why.
        return


async def _read_log(tree: ProcessTree, log: ServerLog) -> None:
    try:
        while True:
            log.add(await tree.stderr.receive())
    except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        return
