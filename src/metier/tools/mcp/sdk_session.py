"""The adapter of the official SDK of the Model Context Protocol; no other module of this package imports the SDK.

It is loaded when the first server starts, because the SDK takes most of a second to import. Servers are not offered
sampling, elicitation and roots: they must not query the model or the user outside the rules of a run.

Over HTTP, the size of responses is limited and error statuses are remembered. A server process does not use the SDK's
own transport, because it is untrusted: here its messages are bounded, its environment is built from a list, its log
goes to a file, and its whole process tree ends with it.
"""

import base64
import binascii
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import override

import anyio
import httpx2
import mcp_types as types
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from anyio.to_thread import run_sync
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from metier.errors import ToolFailed, UsageError
from metier.telemetry.tracing import HEADER
from metier.tls import choose_context
from metier.tools.base import Media
from metier.tools.mcp.offered_tools import MAX_TOOLS, OfferedTool
from metier.tools.mcp.server_connection import Conversation, Ending, Reply, ServerLog, SessionEnded, Target
from metier.tools.media import prepare_media
from metier.tools.process.run import Command, ProcessLimits, ProcessTree, collect
from metier.tools.schemas import SchemaCheck
from metier.version import __version__


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Limits the size of responses. The SDK limits event streams itself, per event."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self.refused = 0
        """The last error status. The SDK reports a lost session and a failed call with the same error."""

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        # Messages are sent by POST. Servers without a stream of their own rightly refuse the GET for it with 405.
        if request.method == "POST" and not response.is_success:
            self.refused = response.status_code
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return response
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        bounded = _Bounded(response.stream, self._max_bytes)
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=bounded, extensions=response.extensions
        )

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    @override
    async def __aiter__(self) -> AsyncGenerator[bytes]:
        left = self._max_bytes
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.ReadError(f"The server answered with more than {self._max_bytes} bytes")
            yield chunk

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


MAX_GARBAGE_LINES = 1_000
"""Some servers print a greeting to standard output. One that prints more than this does not follow the protocol."""
_WORDS_SECONDS = 2.0
"""Time to learn how a process ended after it closed its output."""

type Streams = tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]


@asynccontextmanager
async def stdio_transport(
    command: Command, ending: Ending, *, log: ServerLog, max_message_bytes: int
) -> AsyncGenerator[Streams]:
    """Start a server and yield its message streams. Leaving the block kills its whole process tree."""
    # Without buffers, so that a server that floods is slowed down instead of filling the memory.
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tree = await ProcessTree.start(command, ProcessLimits(), with_stdin=True)
    async with tree, anyio.create_task_group() as pipes:
        pipes.start_soon(collect, tree.stderr, log.add)
        pipes.start_soon(_write_messages, tree, outgoing)
        pipes.start_soon(_Reader(tree, ending, log, max_message_bytes).run, incoming)
        try:
            yield read_stream, write_stream
        finally:
            pipes.cancel_scope.cancel()
            for stream in (read_stream, write_stream, incoming, outgoing):
                stream.close()


class _Reader(Struct, frozen=True):
    tree: ProcessTree
    ending: Ending
    log: ServerLog
    max_message_bytes: int

    async def run(self, incoming: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        """Forward messages until the stream ends, then report the reason."""
        lines = BufferedByteReceiveStream(self.tree.stdout)
        garbage = 0
        reason = ""
        try:
            while garbage <= MAX_GARBAGE_LINES:
                line = await lines.receive_until(b"\n", self.max_message_bytes)
                message = _parse(line)
                if message is None:
                    # Kept in the log, where the author of the server finds what disturbs the protocol.
                    garbage += 1
                    self.log.add(b"(on standard output, not a message) " + line[:1000] + b"\n")
                else:
                    await incoming.send(message)
            reason = "it prints other text than messages to its standard output"
        except anyio.DelimiterNotFound:
            reason = f"it sent a message of more than {self.max_message_bytes} bytes"
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            reason = await self._get_reason()
        self.ending.report(reason)
        # This wakes callers that wait for a response.
        incoming.close()

    async def _get_reason(self) -> str:
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
        # The reader notices the end too, and reports the reason.
        return


CONNECTION_CLOSED = types.CONNECTION_CLOSED
# A server may send empty pages without end, which the limit on tools would not stop.
_MAX_PAGES = 100
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


class _Request(types.Request[dict[str, JsonValue], str]):
    """A request of a protocol extension, for which the SDK has no type."""


class _AnyResult(BaseModel):
    """The result of an extension, with any fields."""

    model_config = ConfigDict(extra="allow")


@asynccontextmanager
async def open_conversation(target: Target, ending: Ending) -> AsyncGenerator[Conversation]:
    """Open a conversation with one server for the duration of the block. `ending` learns if its process exits.

    Errors of the SDK are passed on unchanged; the caller handles any exception.
    """
    # The SDK would log the errors of servers to the terminal; the user sees them in the results of calls.
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    if target.command is not None:
        transport = stdio_transport(target.command, ending, log=target.log, max_message_bytes=target.max_message_bytes)
        async with _open_client(transport) as conversation:
            yield conversation
        return
    # No read timeout: the caller enforces the time limit of each call.
    timeout = httpx2.Timeout(target.timeout_seconds, read=None)
    http_transport = httpx2.AsyncHTTPTransport(verify=choose_context(target.url))
    bounded = BoundedTransport(http_transport, max_bytes=target.max_message_bytes)
    async with httpx2.AsyncClient(headers=dict(target.headers), timeout=timeout, transport=bounded) as http:
        transport = streamable_http_client(target.url, http_client=http, max_sse_event_size=target.max_message_bytes)
        async with _open_client(transport, bounded) as conversation:
            yield conversation


@asynccontextmanager
async def _open_client(transport: Transport, http: BoundedTransport | None = None) -> AsyncGenerator[Conversation]:
    changes = _ToolListChanges()
    info = types.Implementation(name="metier", version=__version__)
    # No cache: tools are listed rarely, and then the current list is needed.
    async with Client(transport, client_info=info, cache=None, message_handler=changes.take) as client:
        yield _SdkConversation(client, changes, http)


class _ToolListChanges:
    """Remembers that a server changed its list of tools."""

    def __init__(self) -> None:
        self.has_changed_tools = False

    async def take(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.has_changed_tools = True


class _SdkConversation:
    """A conversation by the SDK's client."""

    def __init__(self, client: Client, changes: _ToolListChanges, http: BoundedTransport | None) -> None:
        self._client = client
        self._changes = changes
        self._http = http
        self._output_schemas: dict[str, SchemaCheck] = {}
        # The SDK would match the patterns of the server's schema with `re` on the event loop: one could block it.
        client.session.validate_tool_result = self._check_output

    @property
    def is_stale(self) -> bool:
        return self._changes.has_changed_tools

    async def list_tools(self) -> tuple[OfferedTool, ...]:
        self._changes.has_changed_tools = False
        found: list[OfferedTool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found += [_read_tool(tool) for tool in page.tools]
            self._output_schemas |= await run_sync(_read_output_schemas, page.tools)
            cursor = page.next_cursor
            # Stop reading an endless list here; `build_listing` reports the surplus.
            if cursor is None or len(found) > MAX_TOOLS:
                break
        return tuple(found)

    async def _check_output(self, name: str, result: types.CallToolResult) -> None:
        """Replaces a method of the SDK, and raises `RuntimeError` like it."""
        check = self._output_schemas.get(name)
        if check is None:
            return
        if result.structured_content is None and "structured_content" not in result.model_fields_set:
            raise RuntimeError(f"Tool {name} has an output schema but did not return structured content")
        if wrong := await check.get_error_in_thread(_JSON.validate_python(result.structured_content)):
            raise RuntimeError(f"Invalid structured content returned by tool {name}: {wrong}")

    async def ask(self, method: str, params: dict[str, JsonValue]) -> dict[str, JsonValue]:
        request = _Request(method=method, params=params)
        try:
            result = await self._client.session.send_request(request, _AnyResult)
            return _OBJECT.validate_python(result.model_extra or {})
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise SessionEnded(error.message) from error
            raise ToolFailed(f"The server refused {method}: {error.message}", code="server_error") from error
        except (ValidationError, RuntimeError, ValueError) as error:
            raise ToolFailed(f"The server's answer to {method} cannot be used") from error
        except httpx2.HTTPError as error:
            raise SessionEnded(f"{type(error).__name__}: {error}") from error

    async def call(
        self, tool: str, arguments: dict[str, JsonValue], *, on_progress: Callable[[str], None], trace_parent: str = ""
    ) -> Reply:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            on_progress(_describe_progress(progress, total, message))

        if self._http is not None:
            # The status of an earlier request must not explain a failure of this one.
            self._http.refused = 0
        try:
            meta: types.RequestParamsMeta | None = {HEADER: trace_parent} if trace_parent else None
            result = await self._client.call_tool(tool, arguments, progress_callback=report, meta=meta)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise SessionEnded(error.message) from error
            if self._http is not None and self._http.refused:
                # A restarted server does not know our session, so the next call has to open another one.
                raise SessionEnded(f"it answered with status {self._http.refused} ({error.message})") from error
            raise ToolFailed(f"The server refused the call: {error.message}", code="server_error") from error
        except ValidationError as error:
            raise ToolFailed("The server's answer is not the result of a tool") from error
        except RuntimeError as error:
            # The SDK's error for a result that violates its schema, and for a server that asks the client something.
            raise ToolFailed(f"The server's answer cannot be used: {error}", code="invalid_output") from error
        except httpx2.HTTPError as error:
            raise SessionEnded(f"{type(error).__name__}: {error}") from error
        shown = [await run_sync(_render, block) for block in result.content]
        texts, media = [text for text, _ in shown], tuple(each for _, each in shown if each is not None)
        structured = result.structured_content
        # By the specification, structured content is repeated as text; only some servers leave the text out.
        if structured is not None and not any(isinstance(block, types.TextContent) for block in result.content):
            return Reply(ok=not result.is_error, output=_JSON.validate_python(structured), media=media)
        return Reply(ok=not result.is_error, output="\n".join(texts), media=media)


def _describe_progress(progress: float, total: float | None, message: str | None) -> str:
    done = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
    return f"{done}: {message}" if message else done


def _read_output_schemas(tools: Iterable[types.Tool]) -> dict[str, SchemaCheck]:
    """Compile the output schemas and skip invalid ones: failing a call afterwards would not undo its effect."""
    found: dict[str, SchemaCheck] = {}
    for tool in tools:
        if tool.output_schema is not None:
            with suppress(UsageError, ValidationError):
                found[tool.name] = SchemaCheck(tool.name, _OBJECT.validate_python(tool.output_schema))
    return found


def _read_tool(tool: types.Tool) -> OfferedTool:
    hints = tool.annotations or types.ToolAnnotations()
    return OfferedTool(
        name=tool.name,
        description=tool.description or tool.title or "",
        input_schema=TypeAdapter(dict[str, JsonValue]).validate_python(tool.input_schema),
        read_only=hints.read_only_hint is True,
        destructive=hints.destructive_hint is not False,
        idempotent=hints.idempotent_hint is True,
    )


def _render(block: types.ContentBlock) -> tuple[str, Media | None]:
    """Return text unchanged and images as media. Other content is only described."""
    match block:
        case types.TextContent():
            return block.text, None
        case types.ImageContent():
            return _show_picture(block)
        case types.AudioContent():
            return _describe_data(block), None
        case types.ResourceLink():
            return f"[resource {block.uri} {block.name}]", None
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text, None
        case _:
            return f"[resource {block.resource.uri}, not shown]", None


def _show_picture(block: types.ImageContent) -> tuple[str, Media | None]:
    """Build an image from its bytes. The bytes decide its type, not the server's label."""
    try:
        media = prepare_media(base64.b64decode(block.data, validate=True), name="picture")
    except (ToolFailed, binascii.Error):
        return _describe_data(block), None
    return f"[{media.media_type}, {media.width} × {media.height} pixels: shown to you]", media


def _describe_data(block: types.ImageContent | types.AudioContent) -> str:
    return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
