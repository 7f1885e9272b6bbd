"""OpenAI's chat and responses APIs over HTTP, for OpenAI itself and compatible servers."""

from typing import override
from urllib.parse import urlsplit

from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer
from metier.providers.connection import Connection
from metier.providers.failures import NotFound
from metier.providers.http_status import failure_of_event
from metier.providers.openai import chat_wire as chat
from metier.providers.openai import responses_wire as responses
from metier.providers.transport import RestProvider, exchange
from metier.providers.wire import Wire, as_count, as_object

ADDRESS = "https://api.openai.com/v1"
_OWN_HOST = "api.openai.com"


class OpenAIProvider(RestProvider):
    """Models of OpenAI, or of servers with its format: llama.cpp, Ollama, vLLM, LM Studio and others."""

    name = chat.NAME

    def __init__(self, connection: Connection) -> None:
        root = connection.base_url or ADDRESS
        # No header without a key, because some servers reject unknown keys.
        headers = {"Authorization": f"Bearer {connection.key}"} if connection.key else {}
        super().__init__(connection, root=root, headers=headers)
        self._is_own_server = urlsplit(root).hostname == _OWN_HOST
        # Most compatible servers only have chat completions; OpenAI returns reasoning for later requests only in
        # responses.
        self._speaks_responses = connection.api == "responses" or (connection.api == "auto" and self._is_own_server)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        with exchange(self.name, request.timeout_seconds):
            try:
                ask = self._ask_responses if self._speaks_responses else self._ask_chat
                return await ask(request, observe)
            except NotFound as failure:
                if self._speaks_responses and not self._is_own_server:
                    failure.hint = (
                        "Check model.name; a server without responses needs `model.providers.openai.api: chat`"
                    )
                raise

    async def count_tokens(self, request: ModelRequest) -> int | None:
        if not self._speaks_responses:
            return None  # chat completions have no endpoint that counts tokens
        body = responses.build_count_body(request, self._cache)
        with exchange(self.name, request.timeout_seconds):
            try:
                counted = await self._rest.fetch("/responses/input_tokens", body)
            except NotFound:
                return None
        return as_count(counted.get("input_tokens")) or None

    async def _ask_chat(self, request: ModelRequest, observe: Observer | None) -> ModelReply:
        facts = self._facts.get(self.name, request.model)
        stream = observe is not None
        body = chat.build_body(request, facts, self._cache, stream=stream, own_server=self._is_own_server)
        assembly = chat.StreamAssembly(observe) if observe is not None else None
        return chat.parse_reply(
            await self._fetch("/chat/completions", body, assembly, trace_parent=request.trace_parent), request
        )

    async def _ask_responses(self, request: ModelRequest, observe: Observer | None) -> ModelReply:
        facts = self._facts.get(self.name, request.model)
        body = responses.build_body(request, facts, self._cache, stream=observe is not None)
        assembly = responses.StreamAssembly(observe) if observe is not None else None
        reply = await self._fetch("/responses", body, assembly, trace_parent=request.trace_parent)
        # The HTTP status is 200 even so.
        if reply.get("status") == "failed":
            raise failure_of_event(self._rest.server, as_object(reply.get("error")))
        return responses.parse_reply(reply, request)

    @override
    def _check_event(self, event: Wire) -> None:
        # An event with a response reports its failure there, and `_ask_responses` reads it.
        if event.get("error") and "response" not in event:
            raise failure_of_event(self._rest.server, as_object(event.get("error")))
        # Its type is always `error`; without it, `code` decides about the kind of failure.
        if event.get("type") == "error":
            raise failure_of_event(self._rest.server, {**event, "type": ""})


def open_provider(connection: Connection) -> OpenAIProvider:
    return OpenAIProvider(connection)
