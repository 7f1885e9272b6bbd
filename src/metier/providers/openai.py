"""The connection to OpenAI or any compatible server, through the SDK's low-level request.

Auth, base URL and errors are the SDK's. Its typed methods are not used: they walk the whole history on every call.
"""

from typing import Protocol

import httpx2
import openai

from metier.messages import ModelReply
from metier.providers import openai_chat_wire as chat
from metier.providers import openai_responses_wire as responses
from metier.providers.base import ModelRequest, Observer
from metier.providers.connection import Connection, Server
from metier.providers.failures import CallFailed, NotFound
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

_ERRORS = (openai.OpenAIError,)
_OWN_HOST = "api.openai.com"
_NO_KEY = "none"
"""Sent where a server of your own wants no key; the SDK insists on some text."""


class _Assembly(Protocol):
    def add(self, event: Wire) -> None: ...

    def message(self) -> Wire: ...


class OpenAIProvider:
    """OpenAI itself, and llama.cpp, Ollama, vLLM, LM Studio and every other server with its format."""

    name = chat.NAME

    def __init__(self, connection: Connection) -> None:
        self._facts = connection.facts
        self._server = Server(self.name, connection.key)
        self._cache = HistoryCache()
        self._client = openai.AsyncOpenAI(
            api_key=connection.key or _NO_KEY,
            base_url=connection.base_url or None,
            max_retries=0,
            http_client=open_http_client(),
        )
        self._root = str(self._client.base_url).rstrip("/")
        self._is_own_server = self._client.base_url.host == _OWN_HOST
        self._speaks_responses = connection.api == "responses" or (connection.api == "auto" and self._is_own_server)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        with exchange(self.name, request.timeout_seconds, sdk_errors=_ERRORS, translate=self._translate(request)):
            if self._speaks_responses:
                return await self._ask_responses(request, observe)
            return await self._ask_chat(request, observe)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Only the responses format has a way to ask."""
        if not self._speaks_responses:
            return None
        body = responses.build_count_body(request, self._cache)
        with exchange(self.name, request.timeout_seconds, sdk_errors=_ERRORS, translate=self._translate(request)):
            try:
                counted = await self._post("/responses/input_tokens", body, request)
            except openai.NotFoundError:
                return None
            return as_count((await self._read(counted, None)).get("input_tokens")) or None

    async def close(self) -> None:
        await self._client.close()

    async def _ask_chat(self, request: ModelRequest, observe: Observer | None) -> ModelReply:
        facts = self._facts.find(self.name, request.model)
        stream = observe is not None
        body = chat.build_body(request, facts, self._cache, stream=stream, own_server=self._is_own_server)
        response = await self._post("/chat/completions", body, request)
        assembly = chat.StreamAssembly(observe) if observe is not None else None
        return chat.parse_reply(await self._read(response, assembly), request)

    async def _ask_responses(self, request: ModelRequest, observe: Observer | None) -> ModelReply:
        facts = self._facts.find(self.name, request.model)
        body = responses.build_body(request, facts, self._cache, stream=observe is not None)
        response = await self._post("/responses", body, request)
        assembly = responses.StreamAssembly(observe) if observe is not None else None
        reply = await self._read(response, assembly)
        if reply.get("status") == "failed":
            raise failure_of_event(self._server, as_object(reply.get("error")))
        return responses.parse_reply(reply, request)

    async def _read(self, response: httpx2.Response, assembly: _Assembly | None) -> Wire:
        def each(event: Wire) -> None:
            if event.get("error") and "response" not in event:
                raise failure_of_event(self._server, as_object(event.get("error")))
            if event.get("type") == "error":
                raise failure_of_event(self._server, {**event, "type": ""})
            if assembly is not None:
                assembly.add(event)

        try:
            if assembly is None or not is_event_stream(response):
                return await read_object(response, self.name)
            await read_events(response, self.name, each)
            return assembly.message()
        finally:
            await response.aclose()

    async def _post(self, path: str, body: bytes, request: ModelRequest) -> httpx2.Response:
        response = await self._client.post(
            self._root + path,  # whole, so that the SDK need not put it together on every call
            content=body,
            cast_to=httpx2.Response,
            stream=True,
            stream_cls=openai.AsyncStream[object],
            options={
                "timeout": httpx2.Timeout(request.timeout_seconds),
                "headers": {"Content-Type": "application/json"},
            },
        )
        return raw_response(response)

    def _translate(self, request: ModelRequest) -> Translate:
        def translate(error: Exception) -> CallFailed:
            match error:
                case openai.APIStatusError():
                    return self._failure(error)
                case openai.APITimeoutError():
                    return timed_out(self.name, request.timeout_seconds)
                case openai.APIConnectionError():
                    return connection_lost(self.name, error.__cause__ or error)
                case _:
                    return CallFailed(f"{self.name} failed: {single_line(str(error))}")

        return translate

    def _failure(self, error: openai.APIStatusError) -> CallFailed:
        failure = failure_of_status(self._server, error.status_code, error.body, headers=error.response.headers)
        if isinstance(failure, NotFound) and self._speaks_responses and not self._is_own_server:
            failure.hint = "Check model.name; a server without responses needs `model.providers.openai.api: chat`"
        return failure


def open_provider(connection: Connection) -> OpenAIProvider:
    return OpenAIProvider(connection)
