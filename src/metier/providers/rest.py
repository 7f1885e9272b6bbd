"""One server with a REST interface: address, headers, the exchange of one request and its reply. Knows no vendor."""

from collections.abc import Callable, Mapping
from typing import Protocol

import httpx2

from metier.providers.connection import Connection, Server
from metier.providers.http_status import failure_of_status
from metier.providers.json_values import Wire, as_objects, as_text, parse_json
from metier.providers.transport import (
    is_event_stream,
    open_http_client,
    read_body,
    read_events,
    read_object,
)
from metier.telemetry.otel.trace_context import HEADER
from metier.version import __version__

_HEADERS = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": f"metier/{__version__}"}


class Assembly(Protocol):
    """Builds from stream events the reply that the server would have sent at once."""

    def add(self, event: Wire, /) -> None: ...

    def message(self) -> Wire: ...


type CheckEvent = Callable[[Wire], None]
"""Raises the `CallFailed` that an event of a stream stands for, where it reports an error."""


class Rest:
    """Sends requests to one server with a client of its own, opened at the first request."""

    def __init__(self, connection: Connection, server: Server, *, root: str, headers: Mapping[str, str]) -> None:
        self.root = root.rstrip("/")
        self._server = server
        self._client: httpx2.AsyncClient | None = None
        self._headers = httpx2.Headers(_HEADERS)
        self._headers.update(headers)
        self._headers.update(connection.headers)

    async def fetch(
        self,
        path: str,
        body: bytes,
        *,
        assembly: Assembly | None = None,
        check: CheckEvent | None = None,
        trace_parent: str = "",
    ) -> Wire:
        """The JSON object of the reply; with an `assembly` the reply may also be a stream of events.

        Raises `CallFailed` for an error status. Use it inside `exchange`, which bounds it and translates the rest.
        """
        response = await self._send("POST", path, body, trace_parent=trace_parent)
        try:
            if not response.is_success:
                raise await self._read_failure(response)
            if assembly is None or not is_event_stream(response):
                return await read_object(response, self._server.provider)
            await read_events(response, self._server.provider, _checked(assembly, check))
            return assembly.message()
        finally:
            await response.aclose()

    async def get(self, path: str) -> Wire:
        """The JSON object at an address. Raises as `fetch` does; use it inside `exchange` too."""
        response = await self._send("GET", path)
        try:
            if not response.is_success:
                raise await self._read_failure(response)
            return await read_object(response, self._server.provider)
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _send(
        self, method: str, path: str, body: bytes | None = None, *, trace_parent: str = ""
    ) -> httpx2.Response:
        """Return the response, its body unread. Close it."""
        if self._client is None:
            self._client = open_http_client(self.root)
        request = self._client.build_request(method, self.root + path, content=body, headers=self._headers)
        if trace_parent:
            request.headers[HEADER] = trace_parent
        return await self._client.send(request, stream=True)

    async def _read_failure(self, response: httpx2.Response) -> Exception:
        raw = await read_body(response)
        try:
            body = parse_json(raw)
        except ValueError:
            body = raw
        return failure_of_status(self._server, response.status_code, body, headers=response.headers)


def _checked(assembly: Assembly, check: CheckEvent | None) -> Callable[[Wire], None]:
    if check is None:
        return assembly.add

    def add(event: Wire) -> None:
        check(event)
        assembly.add(event)

    return add


MAX_MODELS = 1000
_MAX_NAME_LENGTH = 200


def name_models(reply: Wire, *, items: str = "data", name: str = "id") -> tuple[str, ...]:
    """Names without duplicates; what is no name is passed over, since anything may answer at an address."""
    names = [as_text(each.get(name)) for each in as_objects(reply.get(items))[:MAX_MODELS]]
    return tuple(dict.fromkeys(each for each in names if each and len(each) <= _MAX_NAME_LENGTH and each.isprintable()))
