"""Watches over what a server sends over HTTP: answers that are too long are cut off, refusals are remembered."""

from collections.abc import AsyncGenerator
from typing import override

import httpx2


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Passes requests on and counts the bytes of answers. Event streams are bounded per event by the SDK instead."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes
        self.refused = 0
        """The last status that was not a success. The SDK tells a lost session and a failed call in the same words."""

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
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
