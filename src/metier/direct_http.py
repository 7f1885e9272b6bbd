"""Connections to a server with no proxy between, on which a request leaves in one piece.

The library writes the head of a request and its body apart: two packets, and twice the work of sending one.
"""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any, cast, override

import httpcore2
import httpx2

_MOST_KEPT = 64 * 1024


class DirectTransport(httpx2.AsyncBaseTransport):
    """What `httpx2.AsyncHTTPTransport` is, for HTTP/1.1 without proxies."""

    def __init__(self, context: ssl.SSLContext, limits: httpx2.Limits) -> None:
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=limits.max_connections,
            max_keepalive_connections=limits.max_keepalive_connections,
            keepalive_expiry=limits.keepalive_expiry,
            network_backend=_JoiningBackend(),
        )

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises what the library's own transport raises, with the request at it."""
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        url = request.url
        sent = httpcore2.Request(
            method=request.method,
            url=httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            got = await self._pool.handle_async_request(sent)
        except Exception as error:
            raise _translate(error, request) from error
        stream = _ReplyStream(got, request)
        extensions = cast("dict[str, Any]", got.extensions)
        return httpx2.Response(got.status, headers=got.headers, stream=stream, extensions=extensions, request=request)

    @override
    async def aclose(self) -> None:
        await self._pool.aclose()


class _ReplyStream(httpx2.AsyncByteStream):
    def __init__(self, reply: httpcore2.Response, request: httpx2.Request) -> None:
        self._reply = reply
        self._request = request

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._reply.aiter_stream():
                yield part
        except Exception as error:
            raise _translate(error, self._request) from error

    @override
    async def aclose(self) -> None:
        await self._reply.aclose()


def _translate(error: Exception, request: httpx2.Request) -> Exception:
    """The exception of `httpx2` that has the name of that of `httpcore2`; any other as it is."""
    for kind in type(error).__mro__:
        known: object = getattr(httpx2, kind.__name__, None) if hasattr(httpcore2, kind.__name__) else None
        if isinstance(known, type) and issubclass(known, httpx2.RequestError):
            return known(str(error), request=request)
    return error


class _JoiningBackend(httpcore2.AsyncNetworkBackend):
    def __init__(self) -> None:
        # The library declares it in one of two ways, depending on what is installed.
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    @override
    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _JoinedStream(await self._inner.connect_tcp(host, port, timeout, local_address, socket_options))

    @override
    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _JoinedStream(httpcore2.AsyncNetworkStream):
    """Keeps what is written until the answer is read, or until it is much."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._kept: list[bytes] = []
        self._size = 0

    @override
    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._kept.append(buffer)
        self._size += len(buffer)
        if self._size > _MOST_KEPT:
            await self._send_kept(timeout)

    @override
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._kept:
            # As the library does: a server that hung up may have said why before.
            with suppress(httpcore2.WriteError):
                await self._send_kept(timeout)
        return await self._stream.read(max_bytes, timeout)

    async def _send_kept(self, seconds: float | None) -> None:
        joined = b"".join(self._kept)
        self._kept.clear()
        self._size = 0
        await self._stream.write(joined, seconds)

    @override
    async def aclose(self) -> None:
        self._kept.clear()
        await self._stream.aclose()

    @override
    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _JoinedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    @override
    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
