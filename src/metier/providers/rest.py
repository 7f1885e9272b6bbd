"""One server with a REST interface: address, headers, the exchange of one request and its reply. Knows no vendor."""

from collections.abc import Callable, Mapping
from typing import Protocol

import httpx2

from metier.providers.connection import Connection, Server
from metier.providers.http_status import failure_of_status
from metier.providers.json_values import Wire, parse_json
from metier.providers.transport import (
    CONNECT_TIMEOUT_SECONDS,
    HttpClients,
    is_event_stream,
    open_http_client,
    read_body,
    read_events,
    read_object,
)
from metier.telemetry.otel.trace_context import HEADER
from metier.version import __version__

_EXTENSIONS = {"timeout": httpx2.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS).as_dict()}
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": f"metier/{__version__}"}


class Assembly(Protocol):
    """Builds from stream events the reply that the server would have sent at once."""

    def add(self, event: Wire, /) -> None: ...

    def message(self) -> Wire: ...


type CheckEvent = Callable[[Wire], None]
"""Raises the `CallFailed` that an event of a stream stands for, where it reports an error."""


class Rest:
    """Sends requests to one server with the host's client; without a host it has a client of its own."""

    def __init__(self, connection: Connection, server: Server, *, root: str, headers: Mapping[str, str]) -> None:
        self.root = root.rstrip("/")
        self._server = server
        self._clients = connection.shared.get(HttpClients, HttpClients) if connection.shared is not None else None
        self._client = self._clients.lend() if self._clients is not None else open_http_client()
        # Put together once: parsing an address and merging headers on every call costs more than sending them.
        host = httpx2.URL(self.root).netloc.decode("ascii")
        merged = {"host": host, **self._client.client.headers, **_HEADERS, **headers, **connection.headers}
        self._headers = httpx2.Headers({name.lower(): value for name, value in merged.items()})
        self._urls: dict[str, httpx2.URL] = {}

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
        request = self._build_request("POST", path, body)
        if trace_parent:
            request.headers[HEADER] = trace_parent
        response = await self._client.send(request)
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
        response = await self._client.send(self._build_request("GET", path, b""))
        try:
            if not response.is_success:
                raise await self._read_failure(response)
            return await read_object(response, self._server.provider)
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close the client, unless it is the host's."""
        if self._clients is not None:
            self._clients.give_back(self._client)
        else:
            await self._client.aclose()

    def _build_request(self, method: str, path: str, body: bytes) -> httpx2.Request:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = httpx2.URL(self.root + path)
        # Only connecting has a limit of its own: `exchange` bounds the whole, to the last byte. A stream is sent with
        # the headers as they are; of plain content the library would work out again what these have to be.
        stream = httpx2.ByteStream(body)
        request = httpx2.Request(method, url, headers=self._headers, stream=stream, extensions=_EXTENSIONS)
        if body:
            request.headers["content-length"] = str(len(body))
        return request

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
