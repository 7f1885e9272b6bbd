"""The runs of a server over its HTTP API: requests with a token, problems as errors, streams that resume."""

import os
import uuid
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import httpx2
import msgspec
from msgspec import Struct, convert
from msgspec.structs import replace
from pydantic import JsonValue

from metier.cli.shared.context import home_folder
from metier.decisions import TaskState
from metier.errors import MetierError, UsageError
from metier.events.partial import Partial, PartialSink
from metier.events.record import parse_record
from metier.runtime.answers import Answer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.documents import read_approval, read_attempt
from metier.runtime.records.index_rows import read_row
from metier.runtime.requests import RunRequest
from metier.runtime.run_access import ApprovalInbox, ContinuedRun, TaskRequest
from metier.runtime.run_outcome import RunOutcome, read_outcome
from metier.settings.running_server import get_token
from metier.store.base import ENDED, ApprovalAttempt, RunRow
from metier.telemetry.sinks import Sink
from metier.tls import choose_context
from metier.views.run_view import RunView
from metier.views.user_question import QuestionField, parse_fields

# Also the maximum silence of an event stream, on which the server sends a ping every 15 seconds.
REQUEST_SECONDS = 60.0
MAX_OUTAGE_SECONDS = 60.0
"""Time for which `follow` retries a server that doesn't answer: it may be restarting."""
_RETRY_SECONDS = 0.5
_SETTLE_CHECKS, _SETTLE_SECONDS = 20, 0.1
"""Checks for the release of a paused run: its driver releases it a moment after the last event."""
_PAGE = 500

type Document = dict[str, Any]


class ServerProblem(MetierError):
    """An error reported by the server, with the exit code of the same local error."""

    def __init__(self, message: str, *, hint: str, exit_code: int, code: str) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code
        self.code = code


class Server(Struct, frozen=True):
    """A connection to a server, created by `open_server`. Implements `Runs` and `RunList`."""

    url: str
    client: httpx2.AsyncClient

    @property
    def approvals(self) -> ApprovalInbox:
        return ServerApprovals(self)

    async def get(self, path: str, **params: str | int) -> Document:
        return await self._ask("GET", path, params=params)

    async def post(self, path: str, body: object = None) -> Document:
        """Send a request that changes something. Retries have the same key, so that it happens once."""
        # One key for all attempts: the first may have succeeded although its reply was lost.
        headers = {"idempotency-key": uuid.uuid4().hex}
        return await self._ask("POST", path, json={} if body is None else body, headers=headers)

    async def list_pages(self, *, status: str, limit: int) -> AsyncGenerator[list[RunRow]]:
        """List runs, newest first."""
        cursor, left = 0, limit
        while left > 0:
            params: dict[str, str | int] = {"limit": min(left, _PAGE), "cursor": cursor}
            page = await self.get("/runs", **params, **({"status": status} if status else {}))
            rows = [read_row(item) for item in page["items"]]
            yield rows
            cursor, left = int(page["next"]), left - len(rows)
            if not cursor:
                return

    async def find(self, name: str) -> RunRow:
        return read_row(await self.get(f"/runs/{name}"))

    async def get_outcome(self, run_id: str) -> RunOutcome:
        outcome = read_outcome(await self.get(f"/runs/{run_id}"))
        # The suggested commands are for a shell on the server.
        here = f"agent --server {self.url} "
        commands = tuple(
            here + each.removeprefix("agent ") if each.startswith("agent ") else each for each in outcome.next
        )
        return replace(outcome, next=commands, is_remote=True)

    async def get_view(self, run_id: str) -> RunView:
        return convert(await self.get(f"/runs/{run_id}/view"), RunView)

    async def get_record(self, run_id: str) -> dict[str, JsonValue]:
        return await self.get(f"/runs/{run_id}")

    async def get_question_fields(self, run_id: str) -> tuple[QuestionField, ...]:
        question: Document | None = (await self.get(f"/runs/{run_id}"))["question"]
        return parse_fields(question["fields"]) if question is not None else ()

    async def submit(self, request: RunRequest, settings: Mapping[str, str]) -> str:
        body = {**_build_limits(request, settings), "task": request.task, "extra_context": request.extra_context}
        if request.output_schema is not None:
            body["output_schema"] = request.output_schema
        return str((await self.post("/runs", body))["run_id"])

    async def submit_task(self, request: TaskRequest) -> str:
        run = RunRequest(task=request.task_id, agent=request.agent, model=request.model, mode=request.mode)
        body = {**_build_limits(run, request.settings), "inputs": dict(request.inputs)}
        return str((await self.post(f"/tasks/{request.task_id}/runs", body))["run_id"])

    async def answer(self, run_id: str, answer: Answer, *, token: str = "") -> None:
        body = {
            "values": answer.values,
            "doubt": answer.doubt,
            "max_turns": answer.raised.max_turns,
            "max_cost_usd": answer.raised.max_cost_usd,
            "accept_changed_skills": answer.accepts_changed_skills,
            "token": token,
        }
        await self.post(f"/runs/{run_id}/answer", body)

    async def cancel(self, run_id: str) -> TaskState:
        return cast("TaskState", (await self.post(f"/runs/{run_id}/cancel"))["status"])  # the API sends a `TaskState`

    async def continue_decided(self, run_id: str) -> ContinuedRun:
        """Do nothing: the server continues the run by itself."""
        return ContinuedRun(run_id=run_id, in_background=True)

    async def export(self, run_id: str, *, exact: bool = False) -> bytes:
        if exact:
            raise UsageError("A server exports only redacted runs", hint="Remove --exact")
        answer = await self._send("GET", f"/runs/{run_id}/export")
        _check(answer)
        return answer.content

    async def follow(self, run_id: str, sink: Sink) -> None:
        """Write every event once, until the run ends or waits. Reconnects to a server that is restarted."""
        last, until = "", anyio.current_time() + MAX_OUTAGE_SECONDS
        while True:
            try:
                async for name, event_id, data in self._stream(run_id, last):
                    # Partial text has no ID, so the last event stays the point to resume from.
                    last, until = event_id or last, anyio.current_time() + MAX_OUTAGE_SECONDS
                    if name == "end":
                        return
                    if name == "partial":
                        _show_partial(data, sink)
                        continue
                    _write_record(data, sink)
                    # The server keeps the stream open after these events, because the run can still continue.
                    if name in ("run_paused", "run_failed") and await self._is_settled(run_id):
                        return
            except httpx2.TransportError as error:
                if anyio.current_time() > until:
                    raise MetierError(
                        f"The server at {self.url!r} stopped answering during run {run_id!r}: {type(error).__name__}",
                        hint=f"Once it is back, run `agent --server {self.url} runs watch {run_id}`",
                    ) from error
            await anyio.sleep(_RETRY_SECONDS)

    async def _is_settled(self, run_id: str) -> bool:
        """Return True if no more events follow.

        If the run continued after this event and has ended since, the rest and the event `end` are still to come.
        """
        for _ in range(_SETTLE_CHECKS):
            row = await self.get(f"/runs/{run_id}")
            if not row["driver"] and not await self._is_decided(row):
                return row["status"] not in ("pending", "in_progress", *ENDED)
            await anyio.sleep(_SETTLE_SECONDS)
        return False

    async def _is_decided(self, row: Document) -> bool:
        """Return True if every call that the run waited for was decided: then the server is about to continue it."""
        waiting = [str(each["approval_id"]) for each in row["approvals"]] if row["status"] == "paused" else []
        found = [(await self.get(f"/approvals/{each}"))["status"] for each in waiting]
        return bool(found) and "open" not in found

    async def _stream(self, run_id: str, last: str) -> AsyncGenerator[tuple[str, str, str]]:
        # The server continues after this event, so that a reconnection loses and repeats nothing.
        headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
        async with self.client.stream("GET", f"{self.url}/api/v1/runs/{run_id}/events", headers=headers) as answer:
            if answer.status_code != 200:
                # Without this, a streamed response has no body for the error message.
                await answer.aread()
                _check(answer)
            fields: dict[str, str] = {}
            # Server-sent events by hand: the reconnection needs the ID of every event, also of unreadable ones.
            async for line in answer.aiter_lines():
                # A comment line, which keeps the connection open, starts with the colon and so has no name.
                name, _, value = line.partition(": ")
                if line and name:
                    fields[name] = value
                elif fields:
                    yield fields.get("event", ""), fields.get("id", ""), fields.get("data", "")
                    fields = {}

    async def _ask(self, method: str, path: str, **rest: Any) -> Document:  # noqa: ANN401 - passed on to the client
        answer = await self._send(method, path, **rest)
        _check(answer)
        return cast("Document", answer.json())

    async def _send(self, method: str, path: str, **rest: Any) -> httpx2.Response:  # noqa: ANN401
        # A few attempts bridge a short interruption of the network.
        for attempt in (1, 2, 3):
            try:
                # Safe to repeat: reads change nothing, and all attempts of `post` have the same idempotency key.
                return await self.client.request(method, f"{self.url}/api/v1{path}", **rest)
            except httpx2.TransportError as error:
                if attempt == 3:
                    raise self._unreachable(error) from error
                await anyio.sleep(_RETRY_SECONDS)
        raise AssertionError("the loop above returns or raises")

    def _unreachable(self, error: Exception) -> MetierError:
        return MetierError(
            f"The server at {self.url!r} does not answer: {type(error).__name__}",
            hint="Check the URL, and that `agent serve` is running there",
        )


class ServerApprovals(Struct, frozen=True):
    """The approvals of a server."""

    server: Server

    async def pages(self, *, run_id: str = "", status: str = "") -> AsyncGenerator[list[ApprovalQuestion]]:
        items = (await self.server.get("/approvals", run=run_id, status=status))["items"]
        yield [read_approval(item) for item in items]

    async def get(self, name: str) -> ApprovalQuestion:
        return read_approval(await self.server.get(f"/approvals/{name}"))

    async def attempts(self, question: ApprovalQuestion) -> list[ApprovalAttempt]:
        found = await self.server.get(f"/approvals/{question.row.approval_id}")
        return [read_attempt(question.row.approval_id, each) for each in found["attempts"]]

    async def decide(self, question: ApprovalQuestion, reply: Reply) -> ApprovalQuestion:
        """Send the decision. The server records the token's user as the approver, not the one in the reply."""
        path = f"/approvals/{question.row.approval_id}"
        verb = "approve" if reply.decision == "approved" else "deny"
        # Use the server's hash: the arguments are redacted here, so a hash of them could differ.
        seen = (await self.server.get(path))["hash"]
        edited = {"arguments": reply.arguments} if reply.arguments is not None else {}
        return read_approval(await self.server.post(f"{path}/{verb}", {"reason": reply.reason, "hash": seen, **edited}))


@asynccontextmanager
async def open_server(url: str) -> AsyncGenerator[Server]:
    """Connect to a server. Raises `UsageError` if the URL is invalid or has no token."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is not a server URL", hint="For example, http://127.0.0.1:8321")
    token = get_token(url, home=home_folder(), environ=os.environ)
    # No proxies of the environment: the server may be local, and a token must not pass through a proxy unasked.
    async with httpx2.AsyncClient(
        headers={"authorization": f"Bearer {token}"},
        timeout=REQUEST_SECONDS,
        trust_env=False,
        verify=choose_context(url, trust_env=False),
    ) as client:
        yield Server(url.rstrip("/"), client)


def _check(answer: httpx2.Response) -> None:
    """Raise `ServerProblem` for an error response."""
    if answer.status_code < 400:
        return
    try:
        problem = cast("Document", answer.json())
    except ValueError:
        problem = {}
    raise ServerProblem(
        str(problem.get("detail") or f"The server answered {answer.status_code}"),
        hint=str(problem.get("hint", "")),
        exit_code=int(problem.get("exit_code", 1)),
        code=str(problem.get("code", "")),
    )


def _show_partial(data: str, sink: Sink) -> None:
    if isinstance(sink, PartialSink):
        with suppress(msgspec.DecodeError):  # sent by another version
            sink.show_partial(msgspec.json.decode(data, type=Partial))


def _write_record(data: str, sink: Sink) -> None:
    try:
        record = parse_record(data)
    except ValueError:  # sent by a newer server
        return
    sink.write(record)


def _build_limits(request: RunRequest, settings: Mapping[str, str]) -> Document:
    limits = {
        "provider": settings.get("model.provider"),
        "profile": settings.get("runtime.profile"),
        "max_turns": settings.get("runtime.max_turns"),
        "max_cost_usd": settings.get("runtime.max_cost_usd"),
    }
    given = {name: value for name, value in limits.items() if value is not None}
    return {"agent": request.agent, "model": request.model, "mode": request.mode, **given}
