"""The HTTP client of providers, the deadline of one exchange, and reading a reply from the wire.

Knows no vendor. Whatever goes wrong below becomes a `CallFailed`.
"""

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager

import anyio
import httpx2
from pydantic import ValidationError

from metier.providers.failures import ConnectionLost, ReplyBroken, TimedOut
from metier.providers.json_values import Wire, as_object, parse_json
from metier.telemetry.excerpt import one_line
from metier.tls import choose_context

MAX_REPLY_BYTES = 32 * 1024 * 1024
CONNECT_TIMEOUT_SECONDS = 15.0
_QUOTED_BYTES = 400
_QUOTED_CHARACTERS = 80


class ReplyTooLarge(httpx2.TransportError):
    """The server sent more than any reply can be."""


def open_http_client(url: str) -> httpx2.AsyncClient:
    """Open a client for one server. It uses the proxies and certificates that the environment names.

    `read_body` and `read_events` read its replies. Raises `httpx2.ConnectError` if certificates cannot be read.
    """
    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity"},  # decompressing costs more than the few bytes saved on the wire
        # A call in flight holds a connection, and a run may have several in flight.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS),
        verify=choose_context(url),
    )


@contextmanager
def exchange(provider: str, seconds: float) -> Generator[None]:
    """Bound everything inside by one deadline and let nothing out but `CallFailed`s."""
    try:
        with anyio.fail_after(seconds):
            yield
    except ReplyTooLarge as error:
        raise ReplyBroken(f"{provider} sent more than {MAX_REPLY_BYTES} bytes as a reply") from error
    except httpx2.ConnectTimeout as error:
        raise connection_lost(provider, error) from error
    except (TimeoutError, httpx2.TimeoutException) as error:
        raise timed_out(provider, seconds) from error
    except httpx2.HTTPError as error:
        raise connection_lost(provider, error) from error
    except ValidationError as error:
        raise ReplyBroken(f"{provider} sent a reply of an unknown shape: {_describe_shape(error)}") from error
    except (ValueError, httpx2.InvalidURL) as error:
        raise ReplyBroken(f"{provider} sent a reply that cannot be read: {error}") from error


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
    """Host and port that were called, without what else an address may carry."""
    try:
        url = error.request.url if isinstance(error, httpx2.RequestError) else None
    except RuntimeError:  # an error that no request belongs to
        return ""
    if url is None:
        return ""
    port = url.port or (443 if url.scheme == "https" else 80)
    return f"{url.host}:{port}"


def _describe_shape(error: ValidationError) -> str:
    """Where the first thing is that does not fit, never what is there."""
    first = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def _quote(body: bytes) -> str:
    """How something began that is no JSON, in one line."""
    return one_line(body[:_QUOTED_BYTES].decode("utf-8", "replace"), _QUOTED_CHARACTERS)


async def read_body(response: httpx2.Response, *, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
    """The whole of a reply. Raises `ReplyTooLarge` beyond `max_bytes`."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in _read_chunks(response):
        size = _add_size(size, chunk, max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _read_chunks(response: httpx2.Response) -> AsyncIterator[bytes]:
    """As they came; unfolded where the server folded them though it was not asked to."""
    return response.aiter_bytes() if "content-encoding" in response.headers else response.aiter_raw()


def _add_size(size: int, chunk: bytes, max_bytes: int = MAX_REPLY_BYTES) -> int:
    size += len(chunk)
    if size > max_bytes:
        raise ReplyTooLarge("reply too large")
    return size


async def read_object(response: httpx2.Response, provider: str) -> Wire:
    """The one JSON object that a reply without streaming consists of."""
    body = await read_body(response)
    kind = response.headers.get("content-type", "nothing")
    if not body.strip():
        raise ReplyBroken(f"{provider} sent an empty reply")
    try:
        value = parse_json(body)
    except ValueError as error:
        message = f"{provider} sent {kind!r} that is not JSON and begins with {_quote(body)!r}"
        raise ReplyBroken(message, hint="Check the base URL") from error
    if not as_object(value):
        raise ReplyBroken(f"{provider} sent JSON that is not a reply", hint="Check the base URL")
    return as_object(value)


def is_event_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").partition(";")[0].strip() == "text/event-stream"


async def read_events(response: httpx2.Response, provider: str, each: Callable[[Wire], None]) -> None:
    """Give `each` the JSON objects of a server-sent event stream, until it ends or says `[DONE]`."""
    data: list[bytes] = []
    rest: list[bytes] = []
    size = 0
    async for chunk in _read_chunks(response):
        size = _add_size(size, chunk)
        # Split at line feeds only: JSON text may hold the other characters that Python takes for line ends.
        first, *more = chunk.split(b"\n")
        rest.append(first)
        if not more:
            continue
        lines = (b"".join(rest), *more[:-1])
        rest = [more[-1]]
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line.strip() and data:
                if data == [b"[DONE]"]:
                    return
                each(_parse_event(b"\n".join(data), provider))
                data = []
    last = b"".join(rest)
    if last.startswith(b"data:"):
        data.append(last[5:].strip())
    if data and data != [b"[DONE]"]:
        each(_parse_event(b"\n".join(data), provider))


def _parse_event(text: bytes, provider: str) -> Wire:
    try:
        return as_object(parse_json(text))
    except ValueError as error:
        raise ReplyBroken(f"{provider} sent a stream event that is not JSON: {_quote(text)!r}") from error
