"""The connection to Anthropic, through its SDK's low-level request: auth, base URL and errors are the SDK's.

The typed methods of the SDK are not used: they walk the whole history on every call.
"""

import anthropic
import httpx2

from metier.messages import ModelReply
from metier.providers import anthropic_wire as wire
from metier.providers.base import ModelRequest, Observer
from metier.providers.connection import Connection, Server
from metier.providers.failures import CallFailed
from metier.providers.http_status import failure_of_event, failure_of_status, single_line
from metier.providers.json_values import Wire, as_count, as_object
from metier.providers.transcript import HistoryCache
from metier.providers.transport import (
    Translate,
    connection_lost,
    exchange,
    is_event_stream,
    open_http_client,
    raw_response,
    read_events,
    read_object,
    timed_out,
)

_ERRORS = (anthropic.AnthropicError,)


class AnthropicProvider:
    """Claude models, or any server that speaks the Messages format."""

    name = wire.NAME

    def __init__(self, connection: Connection) -> None:
        self._facts = connection.facts
        self._server = Server(self.name, connection.key)
        self._cache = HistoryCache()
        self._client = anthropic.AsyncAnthropic(
            api_key=connection.key,
            base_url=connection.base_url or None,
            max_retries=0,
            http_client=open_http_client(),
        )
        self._root = str(self._client.base_url).rstrip("/")

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        facts = self._facts.find(self.name, request.model)
        body = wire.build_body(request, facts, self._cache, stream=observe is not None)
        with exchange(self.name, request.timeout_seconds, sdk_errors=_ERRORS, translate=self._translate(request)):
            response = await self._post("/v1/messages", body, request)
            try:
                message = await self._read(response, observe)
            finally:
                await response.aclose()
            return wire.parse_reply(message, request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        body = wire.build_count_body(request, self._cache)
        with exchange(self.name, request.timeout_seconds, sdk_errors=_ERRORS, translate=self._translate(request)):
            response = await self._post("/v1/messages/count_tokens", body, request)
            try:
                counted = await read_object(response, self.name)
            finally:
                await response.aclose()
        return as_count(counted.get("input_tokens")) or None

    async def close(self) -> None:
        await self._client.close()

    async def _read(self, response: httpx2.Response, observe: Observer | None) -> Wire:
        if observe is None or not is_event_stream(response):
            return await read_object(response, self.name)
        assembly = wire.StreamAssembly(observe)

        def each(event: Wire) -> None:
            if event.get("type") == "error":
                raise failure_of_event(self._server, as_object(event.get("error")))
            assembly.add(event)

        await read_events(response, self.name, each)
        return assembly.message()

    async def _post(self, path: str, body: bytes, request: ModelRequest) -> httpx2.Response:
        response = await self._client.post(
            self._root + path,  # whole, so that the SDK need not put it together on every call
            content=body,
            cast_to=httpx2.Response,
            stream=True,
            stream_cls=anthropic.AsyncStream[object],
            options={
                "timeout": httpx2.Timeout(request.timeout_seconds),
                "headers": {"Content-Type": "application/json"},
            },
        )
        return raw_response(response)

    def _translate(self, request: ModelRequest) -> Translate:
        def translate(error: Exception) -> CallFailed:
            match error:
                case anthropic.APIStatusError():
                    return failure_of_status(
                        self._server, error.status_code, error.body, headers=error.response.headers
                    )
                case anthropic.APITimeoutError():
                    return timed_out(self.name, request.timeout_seconds)
                case anthropic.APIConnectionError():
                    return connection_lost(self.name, error.__cause__ or error)
                case _:
                    return CallFailed(f"{self.name} failed: {single_line(str(error))}")

        return translate


def open_provider(connection: Connection) -> AnthropicProvider:
    return AnthropicProvider(connection)
