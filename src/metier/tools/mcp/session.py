"""The seam to the official SDK of the Model Context Protocol: the only module of the package that imports it.

It is loaded when the first server is started, because the SDK takes most of a second to import. Sampling, elicitation
and roots are not offered to servers: a server cannot make the model speak or ask a person past the rules of a run.
"""

import base64
import binascii
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import mcp_types as types
from anyio.to_thread import run_sync
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from metier.errors import ToolFailed
from metier.telemetry.otel.trace_context import HEADER
from metier.tls import LateContext
from metier.tools.base import Media
from metier.tools.mcp.conversation import Conversation, Ending, Reply, SessionEnded, Target
from metier.tools.mcp.http import BoundedTransport
from metier.tools.mcp.listing import MAX_TOOLS, OfferedTool
from metier.tools.mcp.stdio import stdio_transport
from metier.tools.media import prepare_media
from metier.version import __version__

CONNECTION_CLOSED = types.CONNECTION_CLOSED
_MAX_PAGES = 100
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue)
_OBJECT: TypeAdapter[dict[str, JsonValue]] = TypeAdapter(dict[str, JsonValue])


class _Request(types.Request[dict[str, JsonValue], str]):
    """Of an extension, which the SDK has no type for."""


class _AnyResult(BaseModel):
    """Whatever the extension answers with."""

    model_config = ConfigDict(extra="allow")


@asynccontextmanager
async def open_conversation(target: Target, ending: Ending) -> AsyncGenerator[Conversation]:
    """A conversation with one server, for as long as the block lasts. `ending` is told when a process ends by itself.

    Whatever the SDK raises comes out of here as it is: the caller knows that anything can happen.
    """
    # The SDK logs what servers do wrong; the user reads that in the result of the call instead.
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    if target.command is not None:
        transport = stdio_transport(target.command, ending, log=target.log, max_message_bytes=target.max_message_bytes)
        async with _open_client(transport) as conversation:
            yield conversation
        return
    # Reading may take as long as a call may: the caller keeps that limit.
    timeout = httpx2.Timeout(target.timeout_seconds, read=None)
    bounded = BoundedTransport(httpx2.AsyncHTTPTransport(verify=LateContext()), max_bytes=target.max_message_bytes)
    async with httpx2.AsyncClient(headers=dict(target.headers), timeout=timeout, transport=bounded) as http:
        transport = streamable_http_client(target.url, http_client=http, max_sse_event_size=target.max_message_bytes)
        async with _open_client(transport, bounded) as conversation:
            yield conversation


@asynccontextmanager
async def _open_client(transport: Transport, http: BoundedTransport | None = None) -> AsyncGenerator[Conversation]:
    news = _News()
    info = types.Implementation(name="metier", version=__version__)
    # Without a cache: what a server offers is asked for rarely, and then it is the answer of now that counts.
    async with Client(transport, client_info=info, cache=None, message_handler=news.take) as client:
        yield _SdkConversation(client, news, http)


class _News:
    """Remembers that a server changed its list of tools."""

    def __init__(self) -> None:
        self.has_changed_tools = False

    async def take(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.has_changed_tools = True


class _SdkConversation:
    """The two questions that are asked of a server."""

    def __init__(self, client: Client, news: _News, http: BoundedTransport | None) -> None:
        self._client = client
        self._news = news
        self._http = http

    @property
    def is_stale(self) -> bool:
        return self._news.has_changed_tools

    async def list_tools(self) -> tuple[OfferedTool, ...]:
        self._news.has_changed_tools = False
        found: list[OfferedTool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor)
            found += [_read_tool(tool) for tool in page.tools]
            cursor = page.next_cursor
            # A server that never ends its list is stopped here; what is too much is said by the listing.
            if cursor is None or len(found) > MAX_TOOLS:
                break
        return tuple(found)

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

    async def call(self, tool: str, arguments: dict[str, JsonValue], *, trace_parent: str = "") -> Reply:
        if self._http is not None:
            self._http.refused = 0
        try:
            meta: types.RequestParamsMeta | None = {HEADER: trace_parent} if trace_parent else None
            result = await self._client.call_tool(tool, arguments, meta=meta)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise SessionEnded(error.message) from error
            if self._http is not None and self._http.refused:
                # A server that was started anew does not know our session: the next call begins another one.
                raise SessionEnded(f"it answered with status {self._http.refused} ({error.message})") from error
            raise ToolFailed(f"The server refused the call: {error.message}", code="server_error") from error
        except ValidationError as error:
            raise ToolFailed("The server answered with something else than the result of a tool") from error
        except RuntimeError as error:
            # So the SDK says that a result does not fit its own schema, or that the server wants to ask something.
            raise ToolFailed(f"The server's answer cannot be used: {error}", code="invalid_output") from error
        except httpx2.HTTPError as error:
            raise SessionEnded(f"{type(error).__name__}: {error}") from error
        shown = [await run_sync(_render, block) for block in result.content]
        texts, media = [text for text, _ in shown], tuple(each for _, each in shown if each is not None)
        structured = result.structured_content
        if structured is not None and not any(isinstance(block, types.TextContent) for block in result.content):
            return Reply(ok=not result.is_error, output=_JSON.validate_python(structured), media=media)
        return Reply(ok=not result.is_error, output="\n".join(texts), media=media)


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
    """Text as it is, a picture as one; of everything else what it is, because a model reads text here."""
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
    """What the bytes are decides, not what the server calls them."""
    try:
        media = prepare_media(base64.b64decode(block.data, validate=True), name="picture")
    except (ToolFailed, binascii.Error):
        return _describe_data(block), None
    return f"[{media.media_type}, {media.width} × {media.height} pixels: shown to you]", media


def _describe_data(block: types.ImageContent | types.AudioContent) -> str:
    return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
