"""Runs: start, list, read, follow, cancel, resume, answer, fork, export, artifacts."""

import json
from collections.abc import AsyncGenerator
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, cast

from anyio.to_thread import run_sync
from fastapi import APIRouter, Header, Path, Query, Request
from msgspec import to_builtins
from msgspec.structs import replace
from pydantic import Field, JsonValue
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from metier.decisions import TaskState
from metier.definitions.files.contained_path import read_contained
from metier.engine.state.phases import FINAL
from metier.errors import UsageError
from metier.providers.model_names import qualify_model_name
from metier.runtime.answers import Answer, RaisedLimits, check_answer
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.history.archive import render_archive
from metier.runtime.history.forks import ForkRequest, fork_run
from metier.runtime.history.run_views import read_run_view
from metier.runtime.history.spending import parse_since
from metier.runtime.history.transfer import export_run
from metier.runtime.opened_host import open_host
from metier.runtime.queue.detached import leave_to_workers, submit, wake
from metier.runtime.records.index_rows import row_as_json
from metier.runtime.records.run_search import DriverlessStatus, RunPage, StatusFilter, read_run_page
from metier.runtime.records.signatures import check_run_token, issue_token
from metier.runtime.requests import RunRequest
from metier.runtime.run_outcome import build_outcome
from metier.runtime.runs import Runtime
from metier.server.api.bodies import (
    DOWNLOAD,
    RUN_VIEW,
    ArtifactItem,
    Body,
    CanceledRun,
    ContinuedRun,
    Cursor,
    Download,
    EntryItem,
    EventItem,
    ForkedRun,
    Page,
    PageSize,
    RunDetails,
    RunItem,
    answer,
    answer_file,
    answer_page,
)
from metier.server.feed import Place, SentEvent, Watcher, parse_place, read_past
from metier.server.idempotency import Document, Key, Once, run_once
from metier.server.problems import HttpProblem
from metier.server.run_actions import check_answer_grants
from metier.server.state import CurrentUser, ServerState, State, get_state
from metier.server.users import User
from metier.store.base import ENDED, RunRow, RunSearch
from metier.store.failures import RunExists
from metier.telemetry.tracing import HEADER
from metier.values import dump_fields

MAX_TEXT = 500_000


class RunLimits(Body):
    """Limits of a run. They override the workspace's settings."""

    provider: Annotated[str, Field(max_length=100, description="Model provider; `offline` needs no key.")] = ""
    profile: Annotated[
        Literal["", "permissive", "guarded", "strict"], Field(description="Default decision when no rule matches.")
    ] = ""
    max_turns: Annotated[int | None, Field(ge=1, le=100_000, description="Maximum number of turns.")] = None
    max_cost_usd: Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="Maximum cost.")] = None


class StartRun(RunLimits):
    task: Annotated[str, Field(min_length=1, max_length=MAX_TEXT, description="The task in words.")]
    agent: Annotated[str, Field(max_length=200, description="The agent's ID; empty selects the default agent.")] = ""
    model: Annotated[str, Field(max_length=200, description="The model, or provider/model.")] = ""
    extra_context: Annotated[str, Field(max_length=MAX_TEXT, description="Additional context for the task.")] = ""
    mode: Annotated[Literal["live", "dry_run"], Field(description="`dry_run` only plans.")] = "live"
    output_schema: Annotated[dict[str, JsonValue] | None, Field(description="JSON Schema of the result.")] = None


async def start_once(request: Request, once: Once, wanted: RunRequest, limits: RunLimits) -> Document:
    """Start the run, or return the one that an earlier request with this key started."""
    state = get_state(request)
    run_id = once.make_run_id()
    runtime = use_limits(state, limits)
    try:
        wanted = replace(wanted, run_id=run_id, trace_parent=request.headers.get(HEADER, ""))
        started = await submit(runtime, wanted, queue=state.queue)
        run_id = started.run_id
    # With a key, this is the run of an earlier request with the same key.
    except RunExists:
        if not run_id:
            raise
    state.nudge()
    return row_as_json(await state.runtime.find(run_id))


def use_limits(state: ServerState, limits: RunLimits) -> Runtime:
    """Return the runtime with the limits of this request. Raises `ConfigError`."""
    flags = {
        "model.provider": limits.provider,
        "runtime.profile": limits.profile,
        "runtime.max_turns": limits.max_turns,
        "runtime.max_cost_usd": limits.max_cost_usd,
    }
    given = {key: str(value) for key, value in flags.items() if value not in ("", None)}
    if not given:
        return state.runtime
    host, config = state.runtime.host, state.config
    # The limits are checked like flags of the command line, with the same messages.
    opened = open_host(
        config.folder,
        environ=config.environ,
        home=config.home,
        flags={**config.flags, **given},
        config=config.settings_file,
    )
    return Runtime(replace(host, settings=opened.host.settings), state.runtime.store)


router = APIRouter(prefix="/runs", tags=["runs"])

type RunName = Annotated[
    str,
    Path(max_length=200, pattern=r"^[^/\\\x00]+$", description="The ID of a run, a prefix of it, or `latest`."),
]


Texts = tuple[Annotated[str, Field(max_length=200)], ...]
"""Not a `type` statement: FastAPI doesn't look through one, and would read a repeated parameter as a single value."""


class RunQuery(Body):
    status: Annotated[
        tuple[TaskState | DriverlessStatus, ...],
        Field(description="`interrupted`, `queued` and `worker_lost` runs are also `pending` or `in_progress`."),
    ] = ()
    not_status: tuple[TaskState | DriverlessStatus, ...] = ()
    agent: Texts = ()
    not_agent: Texts = ()
    model: Texts = ()
    not_model: Texts = ()
    skill: Texts = ()
    not_skill: Texts = ()
    task: Annotated[Texts, Field(description="IDs of task definitions.")] = ()
    not_task: Texts = ()
    text: Annotated[Texts, Field(description="Words of the task text or of the ID.")] = ()
    not_text: Texts = ()
    min_cost_usd: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    max_cost_usd: Annotated[float | None, Field(ge=0, allow_inf_nan=False)] = None
    since: Annotated[str, Field(max_length=40, description="24h, 7d, 4w, or a date such as 2026-01-31.")] = ""
    until: Annotated[str, Field(max_length=40)] = ""
    children: Annotated[bool, Field(description="Include child runs.")] = True
    context: Annotated[str, Field(max_length=255, description="Conversation; other filters are ignored.")] = ""
    cursor: Annotated[int, Field(ge=0, le=2**62, description="`next` of the previous page.")] = 0
    limit: Annotated[int, Field(ge=1, le=500, description="Maximum number of items.")] = 50

    def build(self, *, now: datetime) -> RunSearch:
        """Build the search without the statuses. Raises `UsageError` for an invalid time."""
        return RunSearch(
            agents=self.agent,
            not_agents=self.not_agent,
            models=self.model,
            not_models=self.not_model,
            skills=self.skill,
            not_skills=self.not_skill,
            tasks=self.task,
            not_tasks=self.not_task,
            words=self.text,
            not_words=self.not_text,
            min_cost=self.min_cost_usd,
            max_cost=self.max_cost_usd,
            created_since=parse_since(self.since, now=now) if self.since else None,
            created_before=parse_since(self.until, now=now) if self.until else None,
            without_children=not self.children,
        )


class ResumeRun(Body):
    max_turns: Annotated[
        int | None, Field(ge=1, le=100_000, description="New maximum number of turns; needs the grant `limits`.")
    ] = None
    max_cost_usd: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="New maximum cost; needs the grant `limits`."),
    ] = None
    accept_changed_skills: Annotated[bool, Field(description="Accept changed skill files; needs the grant `code`.")] = (
        False
    )
    token: Annotated[str, Field(max_length=2000, description="`resume_token`: fail if the run changed.")] = ""


class AnswerRun(ResumeRun):
    values: Annotated[dict[str, JsonValue] | None, Field(description="Answers to the question, by field name.")] = None
    doubt: Annotated[
        Literal["done", "retry", "skip", "abort"] | None, Field(description="The outcome of an interrupted step.")
    ] = None


class ForkRun(Body):
    at: Annotated[int, Field(ge=1, le=10_000_000, description="Number of entries that the new run shares.")]
    model: Annotated[str, Field(max_length=200)] = ""
    provider: Annotated[str, Field(max_length=100)] = ""
    task: Annotated[str, Field(max_length=500_000, description="New task text.")] = ""


@router.post("", status_code=201, response_model=RunItem)
async def start_run(request: Request, state: State, wanted: StartRun, key: Key = "") -> Response:
    """Start a run. This server or a worker executes it; stream its events to follow it."""

    async def start(once: Once) -> Document:
        run = RunRequest(
            task=wanted.task,
            mode=wanted.mode,
            extra_context=wanted.extra_context,
            agent=wanted.agent,
            model=qualify_model_name(wanted.model, provider=wanted.provider),
            output_schema=wanted.output_schema,
        )
        return await start_once(request, once, run, wanted)

    return answer(state, await run_once(request, key, start), status=201)


@router.get("", response_model=Page[RunItem])
async def list_runs(
    state: State,
    wanted: Annotated[RunQuery, Query()],
) -> Response:
    """List runs, newest first. Several values of a field are alternatives; fields with `not_` exclude."""
    store = state.runtime.store
    if wanted.context:
        rows = await store.list_runs(context_id=wanted.context, before=wanted.cursor, limit=wanted.limit)
        page = RunPage(rows=tuple(rows), next=rows[-1].number if len(rows) == wanted.limit else 0)
    else:
        search = wanted.build(now=state.host.clock.now())
        statuses = StatusFilter(wanted=wanted.status, unwanted=wanted.not_status)
        page = await read_run_page(store, search, statuses, before=wanted.cursor, limit=wanted.limit)
    return answer_page(state, [row_as_json(row) for row in page.rows], following=page.next)


@router.get("/{run}", response_model=RunDetails)
async def get_run(state: State, run: RunName) -> Response:
    """Return the state of a run: its row, result, exit code and pending question, as `agent run --json` prints it."""
    return answer(state, await describe_run(state, await state.runtime.find(run)))


@router.get("/{run}/view", responses={200: RUN_VIEW})
async def get_view(state: State, run: RunName) -> Response:
    """Return the view of a run: steps, texts, model calls, usage, child runs."""
    row = await state.runtime.find(run)
    view = to_builtins(await read_run_view(state.runtime, row.run_id))
    return answer(state, cast("Document", _plain(view)))


@router.get("/{run}/entries", response_model=Page[EntryItem])
async def list_entries(state: State, run: RunName, cursor: Cursor = 0, limit: PageSize = 200) -> Response:
    """List the journal of a run without secrets, oldest first. `seq` is the number of an entry."""
    row = await state.runtime.find(run)
    entries = (await state.runtime.read_entries(row.run_id, after=cursor))[:limit]
    clean = build_host_cleaner(state.runtime.host).value
    items: list[Document] = [
        {"seq": seq, "kind": entry.kind, "data": clean(dump_fields(entry, with_defaults=False))}
        for seq, entry in enumerate(entries, start=cursor + 1)
    ]
    return answer_page(state, items, following=cursor + len(entries) if len(entries) == limit else 0)


@router.post("/{run}/cancel", response_model=CanceledRun)
async def cancel_run(request: Request, state: State, user: CurrentUser, run: RunName, key: Key = "") -> Response:
    """Cancel a run. A process that drives it is asked to stop, so `is_over` can still be false."""

    async def cancel(_once: Once) -> Document:
        row = await state.runtime.find(run)
        if row.status in ENDED:
            raise HttpProblem(409, "run_ended", f"Run {row.run_id!r} is {row.status} already")
        ended = await state.runtime.cancel(row.run_id, by=user.name)
        return {"run_id": ended.run_id, "status": ended.status, "is_over": ended.phase in FINAL}

    return answer(state, await run_once(request, key, cancel))


@router.post("/{run}/resume", response_model=ContinuedRun)
async def resume_run(
    request: Request, state: State, user: CurrentUser, run: RunName, wanted: ResumeRun, key: Key = ""
) -> Response:
    """Continue a run after an approval, a stop or a crash, or with higher limits."""
    return await _continue_run(request, state, run, AnswerRun(**wanted.model_dump()), user=user, key=key)


@router.post("/{run}/answer", response_model=ContinuedRun)
async def answer_run(
    request: Request, state: State, user: CurrentUser, run: RunName, wanted: AnswerRun, key: Key = ""
) -> Response:
    """Answer a run's question, or resolve its interrupted step. The run continues."""
    return await _continue_run(request, state, run, wanted, user=user, key=key)


@router.post("/{run}/fork", status_code=201, response_model=ForkedRun)
async def fork(request: Request, state: State, run: RunName, wanted: ForkRun, key: Key = "") -> Response:
    """Start a new run that shares the first entries of this one and continues from there."""

    async def work(_once: Once) -> Document:
        row = await state.runtime.find(run)
        forking = ForkRequest(at=wanted.at, model=wanted.model, provider=wanted.provider, task=wanted.task)
        forked = await fork_run(state.runtime, row.run_id, forking, watch=leave_to_workers(state.queue))
        state.nudge()
        new = row_as_json(await state.runtime.find(forked.state.run_id))
        return {**new, "changed": list(forked.changed)}

    return answer(state, await run_once(request, key, work), status=201)


@router.get("/{run}/export", response_class=Download, responses={200: DOWNLOAD})
async def export(state: State, run: RunName) -> Response:
    """Download the run, its children and their pinned files, without secrets, for `agent runs import`."""
    row = await state.runtime.find(run)
    archive = await export_run(state.runtime, row.run_id)
    return answer_file(await run_sync(render_archive, archive), name=f"{row.run_id}.metier-run")


@router.get("/{run}/artifacts", response_model=Page[ArtifactItem])
async def list_artifacts(state: State, run: RunName) -> Response:
    """List the artifacts of a run with their sizes."""
    row = await state.runtime.find(run)
    folder = state.runtime.folder(row.run_id) / "artifacts"
    # Programs of the run write here: a symlink could point to any file of this machine.
    files = sorted(file for file in folder.glob("*") if file.is_file() and not file.is_symlink())
    return answer_page(state, [{"name": file.name, "bytes": file.stat().st_size} for file in files])


@router.get("/{run}/artifacts/{name}", response_class=Download, responses={200: DOWNLOAD})
async def get_artifact(state: State, run: RunName, name: Annotated[str, Path(max_length=255)]) -> Response:
    """Download an artifact. Browsers never show it as a page of this server."""
    row = await state.runtime.find(run)
    folder = state.runtime.folder(row.run_id) / "artifacts"
    # By comparing names instead of joining paths, so that `..` finds nothing.
    file = next((each for each in folder.glob("*") if each.name == name), None)
    if file is None or not file.is_file() or file.is_symlink():
        raise HttpProblem(404, "artifact_unknown", f"Run {row.run_id!r} has no artifact of this name")
    try:
        # Programs of the run may replace the file with a symlink or a pipe after the check above.
        data = await run_sync(partial(read_contained, file, within=folder, limit=file.stat().st_size))
    except OSError as error:
        raise HttpProblem(404, "artifact_unknown", f"Run {row.run_id!r} has no artifact of this name") from error
    return answer_file(data, name=name)


async def describe_run(state: ServerState, row: RunRow) -> Document:
    runtime = state.runtime
    status = await runtime.get_status(row.run_id)
    outcome = build_outcome(status, folder=runtime.folder(row.run_id), exit_code=status.exit_code())
    question = status.question
    asked: JsonValue = {"question": question.text, "fields": question.raw_fields} if question is not None else None
    token = issue_token(runtime.host, status.state, waiting=status.waiting)
    return {**row_as_json(row), **outcome.document, "question": asked, "resume_token": token}


async def _continue_run(
    request: Request, state: ServerState, run: str, wanted: AnswerRun, *, user: User, key: str
) -> Response:
    async def work(_once: Once) -> Document:
        runtime = state.runtime
        row = await runtime.find(run)
        status = await runtime.get_status(row.run_id)
        if wanted.token:
            check_run_token(runtime.host, wanted.token, status.state, waiting=status.waiting)
        given = Answer(
            values=wanted.values,
            doubt=wanted.doubt,
            by=user.name,
            raised=RaisedLimits(max_turns=wanted.max_turns, max_cost_usd=wanted.max_cost_usd),
            reopens=True,
            accepts_changed_skills=wanted.accept_changed_skills,
        )
        check_answer_grants(user, given)
        # With a driver, `wake` raises `LeaseHeld`: a conflict, not a wrong answer.
        if not row.driver:
            check_answer(status, given)
        if status.state.started is None:
            raise UsageError(f"Run {row.run_id!r} has not started")
        after = await wake(runtime, row.run_id, given, queue=state.queue)
        state.nudge()
        return {**row_as_json(await runtime.find(row.run_id)), "goes_on": after.phase not in FINAL}

    return answer(state, await run_once(request, key, work))


def _plain(value: object) -> object:
    """Convert times to text."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in cast("dict[str, object]", value).items()}  # from `to_builtins`
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("list[object]", value)]
    return value.isoformat() if isinstance(value, datetime) else value


PING_SECONDS = 15
SEND_SECONDS = 20
"""Time for a client to read one chunk. A slower one is disconnected and can reconnect."""
_MAX_BATCH = 64
"""Events in one chunk."""
_SETTLE_SECONDS = 0.2
_LAST = frozenset({"run_finished", "run_failed"})


EVENTS: dict[str, Any] = {
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
    "description": "A page, or a stream of events.",
}


@router.get(
    "/{run}/events",
    response_model=Page[EventItem],
    responses={200: EVENTS},
)
async def get_events(
    request: Request,
    state: State,
    run: RunName,
    after: Annotated[str, Query(max_length=100, description="Only events after this `id`.")] = "",
    last_event_id: Annotated[str, Header(alias="Last-Event-ID", max_length=100)] = "",
    limit: PageSize = 200,
) -> Response:
    """Stream the events of a run until it ends, or return a page of them.

    With `Accept: text/event-stream`, each event is sent once, with an `id` for `Last-Event-ID`. Otherwise the response
    is JSON; pass the last `id` as `after` to get the next page. `next` is always 0.
    """
    row = await state.runtime.find(run)
    # A browser that reconnects repeats the URL of its first connection, so the header is the newer one.
    place = _parse(last_event_id or after)
    if "text/event-stream" in request.headers.get("accept", ""):
        if state.feed.watchers >= state.options.max_watchers:
            raise HttpProblem(503, "too_many_watchers", "Too many event streams are open", hint="Try again later")
        return stream(state, row.run_id, place)
    events = await read_past(state.runtime, row.run_id, after=place)
    items: list[Document] = [_as_item(each) for each in events[:limit]]
    return answer_page(state, items)


def stream(state: ServerState, run_id: str, after: Place) -> Response:
    # Without this header, nginx collects events before it passes them on.
    return EventSourceResponse(
        _stream(state, run_id, after), ping=PING_SECONDS, send_timeout=SEND_SECONDS, headers={"x-accel-buffering": "no"}
    )


async def _stream(state: ServerState, run_id: str, after: Place) -> AsyncGenerator[ServerSentEvent | bytes]:
    async with state.feed.watch(run_id, after=after) as watcher:
        async for event in _follow(state, run_id, watcher):
            yield event


async def _follow(state: ServerState, run_id: str, watcher: Watcher) -> AsyncGenerator[ServerSentEvent | bytes]:
    timeout = float(PING_SECONDS)
    while (events := await watcher.next(seconds=timeout)) is not None:
        for number in range(0, len(events), _MAX_BATCH):
            yield b"".join(each.message for each in events[number : number + _MAX_BATCH])
        if any(each.record.event_type in _LAST for each in events):
            # The driver writes this record, then releases its lease. Only then the run is over.
            timeout = _SETTLE_SECONDS
        if (not events or timeout == _SETTLE_SECONDS) and await _is_over(state, run_id):
            # Events that arrived since the last read are still queued.
            if rest := await watcher.next(seconds=_SETTLE_SECONDS):
                yield b"".join(each.message for each in rest)
            # Browsers drop an event without data.
            yield ServerSentEvent(data="{}", event="end")
            return


async def _is_over(state: ServerState, run_id: str) -> bool:
    row = await state.runtime.store.find_run(run_id)
    return row is None or (row.status in ENDED and not row.driver)


def _as_item(event: SentEvent) -> Document:
    record: JsonValue = json.loads(event.text)
    return {"id": event.place.render(), "record": record}


def _parse(text: str) -> Place:
    if not text:
        return Place()
    place = parse_place(text)
    if place is None:
        raise HttpProblem(400, "event_id_invalid", "This is not the id of an event", hint="Send an id of this stream")
    return place
