"""The connection to Gemini, through the low-level request of Google's SDK: auth, base URL and errors are the SDK's.

The typed methods of the SDK are not used: they validate the whole history again on every call. Its low-level client
has no public name; `_LowLevel` lists all that is used of it, and the tests run it against a server.
"""

from typing import Protocol, cast
from urllib.parse import quote

import httpx2
from google import genai
from google.genai import errors, types

from metier.messages import ModelReply
from metier.providers import gemini_wire as wire
from metier.providers.base import ModelRequest, Observer
from metier.providers.connection import Connection, Server
from metier.providers.failures import CallFailed
from metier.providers.http_status import failure_of_event, failure_of_status, single_line
from metier.providers.json_values import Wire, as_count, as_object
from metier.providers.transcript import HistoryCache
from metier.providers.transport import (
    exchange,
    is_event_stream,
    open_http_client,
    raw_response,
    read_events,
    read_object,
)

_ERRORS = (errors.APIError, errors.UnknownApiResponseError)


class _Request(Protocol):
    """A request with its URL and headers, whose body is still to be filled in."""

    data: dict[str, object] | bytes
    timeout: float | None


class _Response(Protocol):
    response_stream: object


class _LowLevel(Protocol):
    def _build_request(self, http_method: str, path: str, request_dict: dict[str, object]) -> _Request: ...

    async def _async_request(self, http_request: _Request, *, stream: bool) -> _Response: ...


class GeminiProvider:
    """Gemini models, or any server that speaks their format."""

    name = wire.NAME

    def __init__(self, connection: Connection) -> None:
        self._facts = connection.facts
        self._server = Server(self.name, connection.key)
        self._cache = HistoryCache()
        self._http = open_http_client()
        self._client = genai.Client(
            api_key=connection.key,
            vertexai=False,
            http_options=types.HttpOptions(
                base_url=connection.base_url or None, httpx_async_client=self._http, retry_options=None
            ),
        )
        # The client keeps it under this name only.
        self._low_level = cast("_LowLevel", self._client._api_client)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        facts = self._facts.find(self.name, request.model)
        body = wire.build_body(request, facts, self._cache)
        method = "generateContent" if observe is None else "streamGenerateContent?alt=sse"
        with exchange(self.name, request.timeout_seconds, sdk_errors=_ERRORS, translate=self._translate):
            response = await self._post(method, body, request)
            return wire.parse_reply(await self._read(response, observe), request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        facts = self._facts.find(self.name, request.model)
        body = wire.build_count_body(request, facts, self._cache)
        with exchange(self.name, request.timeout_seconds, sdk_errors=_ERRORS, translate=self._translate):
            counted = await self._read(await self._post("countTokens", body, request), None)
        return as_count(counted.get("totalTokens")) or None

    async def close(self) -> None:
        await self._client.aio.aclose()
        self._client.close()
        await self._http.aclose()

    async def _read(self, response: httpx2.Response, observe: Observer | None) -> Wire:
        assembly = wire.StreamAssembly(observe) if observe is not None else None

        def each(chunk: Wire) -> None:
            if chunk.get("error"):
                raise failure_of_event(self._server, as_object(chunk["error"]))
            if assembly is not None:
                assembly.add(chunk)

        try:
            if assembly is None or not is_event_stream(response):
                return await read_object(response, self.name)
            await read_events(response, self.name, each)
            return assembly.message()
        finally:
            await response.aclose()

    async def _post(self, method: str, body: bytes, request: ModelRequest) -> httpx2.Response:
        path = f"models/{quote(request.model.removeprefix('models/'), safe='')}:{method}"
        low_level = self._low_level
        prepared = low_level._build_request("post", path, {})  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        prepared.data = body
        prepared.timeout = request.timeout_seconds
        response = await low_level._async_request(prepared, stream=True)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        return raw_response(response.response_stream)

    def _translate(self, error: Exception) -> CallFailed:
        if not isinstance(error, errors.APIError):
            return CallFailed(f"{self.name} failed: {single_line(str(error))}")
        response = cast("object", error.response)  # a union over HTTP libraries that need not be installed
        headers = response.headers if isinstance(response, httpx2.Response) else httpx2.Headers()
        return failure_of_status(self._server, error.code or 500, cast("object", error.details), headers=headers)


def open_provider(connection: Connection) -> GeminiProvider:
    return GeminiProvider(connection)
