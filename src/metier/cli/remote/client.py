"""A server as a client sees it: requests with a token, problems as errors, streams that go on after a break."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
from msgspec import Struct
from pydantic import ValidationError

from metier.cli.shared.context import home_folder
from metier.errors import MetierError, UsageError
from metier.events.record import EventRecord
from metier.settings.running_server import get_token
from metier.store.base import ENDED
from metier.tls import choose_context

REQUEST_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
"""How long a server that does not answer is tried again while a run is followed: it may be restarting."""
_PAUSE_SECONDS = 0.5

type Document = dict[str, Any]


class ServerProblem(MetierError):
    """An error reported by the server, with the exit code of the same local error."""

    def __init__(self, message: str, *, hint: str, exit_code: int, code: str) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
        self.code = code


class Server(Struct, frozen=True):
    """A connection to a server, created by `open_server`."""

    url: str
    client: httpx2.Client

    def get(self, path: str, **params: str | int) -> Document:
        return self._ask("GET", path, params=params)

    def post(self, path: str, body: object = None) -> Document:
        """Sent again with the same key where the answer is lost, so that it happens once."""
        headers = {"idempotency-key": uuid.uuid4().hex}
        return self._ask("POST", path, json={} if body is None else body, headers=headers)

    def download(self, path: str) -> bytes:
        answer = self._send("GET", path)
        _check(answer)
        return answer.content

    def follow(self, run_id: str) -> Iterator[EventRecord]:
        """Every event of a run, each once, until it ends or waits; a server that is restarted is waited for."""
        last, until = "", time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                for name, event_id, data in self._stream(run_id, last):
                    last, until = event_id or last, time.monotonic() + PATIENCE_SECONDS
                    if name == "end":
                        return
                    yield from _parse_record(data)
                    if name in ("run_paused", "run_failed") and self._is_at_rest(run_id):
                        return
            except httpx2.TransportError as error:
                if time.monotonic() > until:
                    raise self._unreachable(error) from error
            time.sleep(_PAUSE_SECONDS)

    def _is_at_rest(self, run_id: str) -> bool:
        """Nothing more comes. The driver writes its record and lets go a moment after the last event.

        Where the run went on after that event and has ended meanwhile, the rest and the event `end` are still to come.
        """
        for _ in range(20):
            row = self.get(f"/runs/{run_id}")
            if not row["driver"] and not self._is_decided(row):
                return row["status"] not in ("pending", "in_progress", *ENDED)
            time.sleep(0.1)
        return False

    def _is_decided(self, row: Document) -> bool:
        """Every call that the run waited for was approved or denied: the server is about to go on with it."""
        waiting = [str(each["approval_id"]) for each in row["approvals"]] if row["status"] == "paused" else []
        return bool(waiting) and all(self.get(f"/approvals/{each}")["status"] != "open" for each in waiting)

    def _stream(self, run_id: str, last: str) -> Iterator[tuple[str, str, str]]:
        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        with self.client.stream("GET", f"{self.url}/api/v1/runs/{run_id}/events", headers=headers) as answer:
            if answer.status_code != 200:
                answer.read()
                _check(answer)
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif fields:
                    yield fields.get("event", ""), fields.get("id", ""), fields.get("data", "")
                    fields = {}

    def _ask(self, method: str, path: str, **rest: Any) -> Document:  # noqa: ANN401 - handed on to the client
        answer = self._send(method, path, **rest)
        _check(answer)
        return cast("Document", answer.json())

    def _send(self, method: str, path: str, **rest: Any) -> httpx2.Response:  # noqa: ANN401
        for attempt in (1, 2, 3):
            try:
                return self.client.request(method, f"{self.url}/api/v1{path}", **rest)
            except httpx2.TransportError as error:
                if attempt == 3:
                    raise self._unreachable(error) from error
                time.sleep(_PAUSE_SECONDS)
        raise AssertionError("the loop above returns or raises")

    def _unreachable(self, error: Exception) -> MetierError:
        return MetierError(
            f"The server at {self.url!r} does not answer: {type(error).__name__}",
            hint="Check the URL, and that `agent serve` is running there",
        )


def open_server(url: str) -> Server:
    """Connect to a server. Raises `UsageError` if the URL is invalid or has no token."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not a server URL", hint="For example, http://127.0.0.1:8321")
    token = get_token(url, home=home_folder(), environ=os.environ)
    # The environment's proxies are not for a server on this machine, and a token must not pass them unasked.
    client = httpx2.Client(
        headers={"authorization": f"Bearer {token}"},
        timeout=REQUEST_SECONDS,
        trust_env=False,
        verify=choose_context(url, trust_env=False),
    )
    return Server(url.rstrip("/"), client)


def _check(answer: httpx2.Response) -> None:
    """Return the JSON body. Raises `ServerProblem` for an error response."""
    if answer.status_code < 400:
        return
    try:
        told = cast("Document", answer.json())
    except ValueError:
        told = {}
    raise ServerProblem(
        str(told.get("detail") or f"The server answered {answer.status_code}"),
        hint=str(told.get("hint", "")),
        exit_code=int(told.get("exit_code", 1)),
        code=str(told.get("code", "")),
    )


def _parse_record(data: str) -> Iterator[EventRecord]:
    try:
        yield EventRecord.model_validate(json.loads(data))
    except (ValidationError, ValueError):  # of a newer server
        return
