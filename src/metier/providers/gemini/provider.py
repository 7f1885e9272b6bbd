"""Gemini's generateContent API over HTTP. What the JSON means is in `wire`."""

from functools import partial
from urllib.parse import quote

from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer
from metier.providers.connection import Connection, Server
from metier.providers.gemini import wire
from metier.providers.http_status import failure_of_event
from metier.providers.json_values import Wire, as_count, as_object
from metier.providers.rest import Assembly, Rest, name_models
from metier.providers.transcript import HistoryCache
from metier.providers.transport import exchange

ADDRESS = "https://generativelanguage.googleapis.com"
VERSION = "v1"


class GeminiProvider:
    """Gemini models, or any server that speaks their format."""

    name = wire.NAME

    def __init__(self, connection: Connection) -> None:
        self._facts = connection.facts
        self._server = Server(self.name, connection.key)
        self._cache = HistoryCache()
        headers = {"x-goog-api-key": connection.key}
        self._rest = Rest(connection, self._server, root=connection.base_url or ADDRESS, headers=headers)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        facts = self._facts.find(self.name, request.model)
        body = wire.build_body(request, facts, self._cache)
        method = "generateContent" if observe is None else "streamGenerateContent?alt=sse"
        assembly = wire.StreamAssembly(observe) if observe is not None else None
        with exchange(self.name, request.timeout_seconds):
            return wire.parse_reply(await self._fetch(method, body, request, assembly=assembly), request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        facts = self._facts.find(self.name, request.model)
        body = wire.build_count_body(request, facts, self._cache)
        with exchange(self.name, request.timeout_seconds):
            counted = await self._fetch("countTokens", body, request)
        return as_count(counted.get("totalTokens")) or None

    async def list_models(self, *, seconds: float) -> tuple[str, ...]:
        with exchange(self.name, seconds):
            listed = name_models(await self._rest.get(f"/{VERSION}/models?pageSize=1000"), items="models", name="name")
        return tuple(name.removeprefix("models/") for name in listed)

    async def close(self) -> None:
        await self._rest.aclose()

    async def _fetch(
        self, method: str, body: bytes, request: ModelRequest, *, assembly: Assembly | None = None
    ) -> Wire:
        path = f"/{VERSION}/models/{quote(request.model.removeprefix('models/'), safe='')}:{method}"
        check = partial(_check, self._server)
        return await self._rest.fetch(path, body, assembly=assembly, check=check, trace_parent=request.trace_parent)


def _check(server: Server, chunk: Wire) -> None:
    if chunk.get("error"):
        raise failure_of_event(server, as_object(chunk["error"]))


def open_provider(connection: Connection) -> GeminiProvider:
    return GeminiProvider(connection)
