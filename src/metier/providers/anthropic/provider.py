"""Anthropic's Messages API over HTTP. What the JSON means is in `wire`."""

from functools import partial

from metier.messages import ModelReply
from metier.providers.anthropic import wire
from metier.providers.base import ModelRequest, Observer
from metier.providers.connection import Connection, Server
from metier.providers.http_status import failure_of_event
from metier.providers.json_values import Wire, as_count, as_object
from metier.providers.rest import Rest, name_models
from metier.providers.transcript import HistoryCache
from metier.providers.transport import exchange

ADDRESS = "https://api.anthropic.com"
VERSION = "2026-10-21"
"""The version of the API whose replies `wire` reads."""
MAX_CONTINUATIONS = 8
"""How often a turn that the server paused is continued within one reply."""


class AnthropicProvider:
    """Claude models, or any server that speaks the Messages format."""

    name = wire.NAME

    def __init__(self, connection: Connection) -> None:
        self._facts = connection.facts
        self._server = Server(self.name, connection.key)
        self._cache = HistoryCache()
        headers = {"Authorization": f"Bearer {connection.key}", "anthropic-version": VERSION}
        self._rest = Rest(connection, self._server, root=connection.base_url or ADDRESS, headers=headers)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        facts = self._facts.find(self.name, request.model)
        body = wire.build_body(request, facts, self._cache, stream=observe is not None)
        with exchange(self.name, request.timeout_seconds):
            message = await self._ask(body, observe, request.trace_parent)
            for _ in range(MAX_CONTINUATIONS):
                if not wire.is_paused(message):
                    break
                more = await self._ask(wire.continue_body(body, message), observe, request.trace_parent)
                message = wire.join_messages(message, more)
            return wire.parse_reply(message, request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        body = wire.build_count_body(request, self._cache)
        with exchange(self.name, request.timeout_seconds):
            counted = await self._rest.fetch("/v1/messages/count_tokens", body)
        return as_count(counted.get("input_tokens")) or None

    async def list_models(self, *, seconds: float) -> tuple[str, ...]:
        with exchange(self.name, seconds):
            return name_models(await self._rest.get("/v1/models?limit=1000"))

    async def close(self) -> None:
        await self._rest.aclose()

    async def _ask(self, body: bytes, observe: Observer | None, trace_parent: str) -> Wire:
        assembly = wire.StreamAssembly(observe) if observe is not None else None
        check = partial(_check, self._server)
        return await self._rest.fetch("/v1/messages", body, assembly=assembly, check=check, trace_parent=trace_parent)


def _check(server: Server, event: Wire) -> None:
    if event.get("type") == "error":
        raise failure_of_event(server, as_object(event.get("error")))


def open_provider(connection: Connection) -> AnthropicProvider:
    return AnthropicProvider(connection)
