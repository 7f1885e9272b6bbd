"""The HTTP transport of all providers: client, deadline, and JSON or event-stream replies.

Independent of vendors. Every failure becomes a `CallFailed`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import ClassVar, Protocol
from urllib.parse import urlsplit

import anyio
import httpx2
from pydantic import ValidationError

from metier.providers.base import ServerAddress
from metier.providers.connection import Connection, Server
from metier.providers.failures import ConnectionLost, ReplyBroken, TimedOut
from metier.providers.http_status import failure_of_status
from metier.providers.transcript import HistoryCache
from metier.providers.wire import Wire, as_object, as_objects, as_text, parse_json
from metier.telemetry.excerpt import one_line
from metier.telemetry.tracing import HEADER
from metier.tls import choose_context
from metier.version import __version__

# Far above any reply: it bounds the memory that a broken or hostile server can take.
MAX_REPLY_BYTES = 32 * 1024 * 1024
CONNECT_TIMEOUT_SECONDS = 15.0
_QUOTED_BYTES = 400
_QUOTED_CHARACTERS = 80


class ReplyTooLarge(httpx2.TransportError):
    """The server sent more than the size limit of a reply."""


def open_http_client(url: str) -> httpx2.AsyncClient:
    """Open a client for one server, with the proxies and certificates of the environment.

    `read_body` and `read_events` read its replies. Raises `httpx2.ConnectError` if certificates cannot be read.
    """
    return httpx2.AsyncClient(
        # Decompressing small replies costs more time than it saves on the wire.
        headers={"Accept-Encoding": "identity"},
        # Every call in flight holds a connection, and a run may have several: a limit would make calls wait for others.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        # `exchange` limits the whole call. A model may send nothing for minutes, so reads have no limit of their own.
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS),
        verify=choose_context(url),
    )


@contextmanager
def exchange(provider: str, seconds: float) -> Generator[None]:
    """Apply one deadline to the block, and convert every failure to a `CallFailed`."""
    try:
        with anyio.fail_after(seconds):
            yield
    except ReplyTooLarge as error:
        raise ReplyBroken(f"{provider} sent more than {MAX_REPLY_BYTES} bytes as a reply") from error
    # Before the other timeouts, of which it is a subclass: the server is unreachable, not slow.
    except httpx2.ConnectTimeout as error:
        raise connection_lost(provider, error) from error
    except (TimeoutError, httpx2.TimeoutException) as error:
        raise timed_out(provider, seconds) from error
    except httpx2.HTTPError as error:
        raise connection_lost(provider, error) from error
    except ValidationError as error:
        raise ReplyBroken(f"{provider} sent a reply in an unknown format: {_describe_mismatch(error)}") from error
    except (ValueError, httpx2.InvalidURL) as error:
        raise ReplyBroken(f"{provider} sent an unreadable reply: {error}") from error


def timed_out(provider: str, seconds: float) -> TimedOut:
    return TimedOut(
        f"{provider} gave no complete answer within {seconds:g} seconds",
        hint="Raise model.timeout_seconds, or use a faster model",
    )


def connection_lost(provider: str, error: BaseException) -> ConnectionLost:
    cause = error.__cause__ if error.__cause__ is not None and not str(error) else error
    detail = str(cause) or type(cause).__name__
    if isinstance(error, httpx2.ConnectTimeout):
        detail = f"no answer within {CONNECT_TIMEOUT_SECONDS:g} seconds"
    address = _get_address(error)
    setting = f"model.providers.{provider}.base_url"
    return ConnectionLost(
        f"The connection to {provider}{f' at {address}' if address else ''} failed: {detail}",
        hint=f"Check the network and the proxy settings, or run `agent config set {setting} URL`",
    )


def _get_address(error: BaseException) -> str:
    """Return host and port only: the rest of an address may hold credentials."""
    try:
        url = error.request.url if isinstance(error, httpx2.RequestError) else None
    except RuntimeError:  # an error without a request
        return ""
    if url is None:
        return ""
    port = url.port or (443 if url.scheme == "https" else 80)
    return f"{url.host}:{port}"


def parse_address(url: str) -> ServerAddress:
    """Return host and port of a valid address: the rest may hold credentials."""
    parts = urlsplit(url)
    default = 443 if parts.scheme == "https" else 80
    return ServerAddress(parts.hostname or "", 0 if parts.port in (None, default) else parts.port)


def _describe_mismatch(error: ValidationError) -> str:
    """Describe the first mismatch without the value: replies are untrusted and may hold secrets."""
    first = error.errors(include_input=False, include_url=False)[0]
    location = ".".join(map(str, first["loc"]))
    return f"{location}: {first['msg']}" if location else first["msg"]


def _quote(body: bytes) -> str:
    """Return the first characters of a body as one line."""
    return one_line(body[:_QUOTED_BYTES].decode("utf-8", "replace"), _QUOTED_CHARACTERS)


async def read_body(response: httpx2.Response, *, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
    """Read a whole reply. Raises `ReplyTooLarge` beyond `max_bytes`."""
    # Counted while reading: a server may send no length, or a wrong one.
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > max_bytes:
            raise ReplyTooLarge("reply too large")
    return bytes(body)


async def read_object(response: httpx2.Response, provider: str) -> Wire:
    """Read a reply that is one JSON object."""
    body = await read_body(response)
    kind = response.headers.get("content-type", "nothing")
    if not body.strip():
        raise ReplyBroken(f"{provider} sent an empty reply")
    try:
        value = parse_json(body)
    except ValueError as error:
        message = f"{provider} sent {kind!r} instead of JSON, starting with {_quote(body)!r}"
        raise ReplyBroken(message, hint="Check the base URL") from error
    if not as_object(value):
        raise ReplyBroken(f"{provider} sent JSON that is not a reply", hint="Check the base URL")
    return as_object(value)


def is_event_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").partition(";")[0].strip() == "text/event-stream"


async def read_events(response: httpx2.Response, provider: str, each: Callable[[Wire], None]) -> None:
    """Pass each JSON object of a server-sent event stream to `each`, until the stream ends or sends `[DONE]`."""
    size = 0
    try:
        async for event in httpx2.EventSource(response, max_event_size=MAX_REPLY_BYTES):
            if event.data == "[DONE]":
                return
            # The event source limits single events only; a flood of small ones must end too.
            size += len(event.data)
            if size > MAX_REPLY_BYTES:
                raise ReplyTooLarge("reply too large")
            if event.data:
                each(_parse_event(event.data, provider))
    except httpx2.SSEError as error:
        raise ReplyTooLarge("event too large") from error


def _parse_event(text: str, provider: str) -> Wire:
    try:
        return as_object(parse_json(text))
    except ValueError as error:
        raise ReplyBroken(f"{provider} sent a stream event that is not JSON: {_quote(text.encode())!r}") from error


_HEADERS = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": f"metier/{__version__}"}


class Assembly(Protocol):
    """Builds a complete reply from stream events."""

    def add(self, event: Wire, /) -> None: ...

    def message(self) -> Wire: ...


type CheckEvent = Callable[[Wire], None]
"""Raises `CallFailed` if a stream event reports an error."""


class Rest:
    """A REST client for one server. Its connection is opened with the first request."""

    def __init__(self, connection: Connection, provider: str, *, root: str, headers: Mapping[str, str]) -> None:
        self.address = parse_address(root)
        self.server = Server(provider, connection.key)
        self._root = root.rstrip("/")
        self._client: httpx2.AsyncClient | None = None
        self._headers = httpx2.Headers(_HEADERS)
        self._headers.update(headers)
        self._headers.update(connection.headers)

    async def fetch(
        self,
        path: str,
        body: bytes | None = None,
        *,
        assembly: Assembly | None = None,
        check: CheckEvent | None = None,
        trace_parent: str = "",
    ) -> Wire:
        """Return the JSON object of the reply; with an `assembly` the reply may also be an event stream.

        Sends a GET without a body. Raises `CallFailed` for an error status. Use it inside `exchange`.
        """
        if self._client is None:
            self._client = open_http_client(self._root)
        method = "GET" if body is None else "POST"
        request = self._client.build_request(method, self._root + path, content=body, headers=self._headers)
        if trace_parent:
            request.headers[HEADER] = trace_parent
        # Always as a stream: `send` alone would read a body of any size into memory.
        response = await self._client.send(request, stream=True)
        try:
            if not response.is_success:
                raise await self._read_failure(response)
            # Some servers ignore `"stream": true` and send the whole reply.
            if assembly is None or not is_event_stream(response):
                return await read_object(response, self.server.provider)
            await read_events(response, self.server.provider, _checked(assembly, check))
            return assembly.message()
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _read_failure(self, response: httpx2.Response) -> Exception:
        raw = await read_body(response)
        try:
            body = parse_json(raw)
        except ValueError:
            body = raw
        return failure_of_status(self.server, response.status_code, body, headers=response.headers)


def _checked(assembly: Assembly, check: CheckEvent | None) -> Callable[[Wire], None]:
    if check is None:
        return assembly.add

    def add(event: Wire) -> None:
        check(event)
        assembly.add(event)

    return add


class RestProvider(ABC):
    """The part of a provider that doesn't depend on its wire format."""

    name: ClassVar[str]
    models_path: ClassVar[str] = "/models"

    def __init__(self, connection: Connection, *, root: str, headers: Mapping[str, str]) -> None:
        self._facts = connection.facts
        self._cache = HistoryCache()
        self._rest = Rest(connection, self.name, root=root, headers=headers)

    @property
    def server_address(self) -> ServerAddress:
        return self._rest.address

    async def list_models(self, *, seconds: float) -> tuple[str, ...]:
        with exchange(self.name, seconds):
            return name_models(await self._rest.fetch(self.models_path))

    async def close(self) -> None:
        await self._rest.aclose()

    async def _fetch(self, path: str, body: bytes, assembly: Assembly | None, *, trace_parent: str) -> Wire:
        return await self._rest.fetch(path, body, assembly=assembly, check=self._check_event, trace_parent=trace_parent)

    @abstractmethod
    def _check_event(self, event: Wire) -> None:
        """Raise the `CallFailed` that a stream event reports."""


MAX_MODELS = 1000
_MAX_NAME_LENGTH = 200


def name_models(reply: Wire, *, items: str = "data", name: str = "id") -> tuple[str, ...]:
    """List the model names of a reply. Invalid ones are skipped: any server may answer at a configured address."""
    names = [as_text(each.get(name)) for each in as_objects(reply.get(items))[:MAX_MODELS]]
    return tuple(dict.fromkeys(each for each in names if each and len(each) <= _MAX_NAME_LENGTH and each.isprintable()))
