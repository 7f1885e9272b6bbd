"""The list of runs: filters in the URL, named filters, runs of the last day, and bulk actions on a filter."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite, nan
from typing import Literal
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter
from msgspec import Struct, field
from msgspec.structs import replace
from starlette.responses import Response

from metier.decisions import TaskState
from metier.errors import MetierError, UsageError
from metier.ids import CHILD
from metier.runtime.history.spending import parse_since
from metier.runtime.records.index_rows import find_row_cost, get_shown_status
from metier.runtime.records.run_search import STATUSES, StatusFilter, read_run_page
from metier.runtime.runs import Runtime
from metier.server.console.charts import Bar, BarChart, build_ticks, round_up, stack
from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.run_actions import RETRIABLE, retry
from metier.store.base import ENDED, RunRow, RunSearch
from metier.store.contexts import ContextChange, ContextStore, NewFact
from metier.store.usage import UNFINISHED, format_hour
from metier.telemetry.amounts import format_count

FIELDS = ("q", "status", "agent", "model", "skill", "task", "cost", "since", "until", "children")
_NAMED = ("status", "agent", "model", "skill", "task", "cost", "since", "until")
_TOKEN = re.compile(rf'(-?)({"|".join(_NAMED)}):("[^"]*"|\S+)|(-?)("[^"]*"|\S+)')


class Words(Struct, frozen=True, kw_only=True):
    """Allowed and excluded values of a field."""

    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()


class RunFilter(Struct, frozen=True, kw_only=True):
    search: RunSearch
    """Search conditions for the store."""
    statuses: StatusFilter = StatusFilter(only_shown=True)
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    """The parameters of the URL."""

    @property
    def address(self) -> str:
        """Return the query string of the URL."""
        return urlencode({name: value for name, value in self.given.items() if value})


def parse_filter(given: Mapping[str, str], *, now: datetime) -> RunFilter:
    """Parse the filter. A field is a parameter, or part of `q` as `field:value`; a leading minus excludes.

    Raises `UsageError`.
    """
    fields = {name: given[name].strip() for name in FIELDS if given.get(name, "").strip()}
    found: dict[str, list[tuple[bool, str]]] = {}
    for name in _NAMED:
        for value in fields.get(name, "").split(","):
            if value.strip():
                found.setdefault(name, []).append((value.strip().startswith("-"), value.strip().removeprefix("-")))
    for match in _TOKEN.finditer(fields.get("q", "")):
        no_field, name, value, no_word, word = match.groups()
        if name:
            found.setdefault(name, []).append((no_field == "-", value.strip('"')))
        elif word.strip('"-'):
            found.setdefault("text", []).append((no_word == "-", word.strip('"')))
    return _build(found, fields, now=now)


def _build(found: Mapping[str, list[tuple[bool, str]]], given: Mapping[str, str], *, now: datetime) -> RunFilter:
    status = _choose(found.get("status", []))
    for word in (*status.wanted, *status.unwanted):
        if word not in STATUSES:
            raise UsageError(f"Unknown status {word[:40]!r}", hint=f"Use one of {', '.join(STATUSES)}")
    agent, model, skill = (_choose(found.get(name, [])) for name in ("agent", "model", "skill"))
    task, text = _choose(found.get("task", [])), _choose(found.get("text", []))
    min_cost, max_cost = _parse_costs(found.get("cost", []))
    since, until = _parse_times(found, now=now)
    search = RunSearch(
        agents=_name_built_in(agent.wanted),
        not_agents=_name_built_in(agent.unwanted),
        models=model.wanted,
        not_models=model.unwanted,
        skills=skill.wanted,
        not_skills=skill.unwanted,
        tasks=task.wanted,
        not_tasks=task.unwanted,
        words=text.wanted,
        not_words=text.unwanted,
        min_cost=min_cost,
        max_cost=max_cost,
        created_since=since,
        created_before=until,
        without_children=not given.get("children"),
    )
    statuses = StatusFilter(wanted=status.wanted, unwanted=status.unwanted, only_shown=True)
    return RunFilter(search=search, statuses=statuses, given=dict(given))


def _name_built_in(names: Sequence[str]) -> tuple[str, ...]:
    return tuple("" if name == "built-in" else name for name in names)


def _choose(terms: list[tuple[bool, str]]) -> Words:
    return Words(
        wanted=tuple(value for is_not, value in terms if not is_not),
        unwanted=tuple(value for is_not, value in terms if is_not),
    )


def _parse_costs(terms: list[tuple[bool, str]]) -> tuple[float | None, float | None]:
    """Return minimum and maximum: `0.5` and `>0.5` set the minimum, `<0.5` and `-0.5` the maximum."""
    minimum: float | None = None
    maximum: float | None = None
    for is_not, text in terms:
        value = _parse_cost(text.lstrip("<>=$"))
        if text.startswith("<") is not is_not:
            maximum = value
        else:
            minimum = value
    return minimum, maximum


def _parse_times(
    found: Mapping[str, list[tuple[bool, str]]], *, now: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return start and end. An excluded `since` is an `until`, and the other way round."""
    bounds: dict[str, datetime] = {}
    for name, other in (("since", "until"), ("until", "since")):
        for is_not, text in found.get(name, []):
            bounds[other if is_not else name] = parse_since(text, now=now)
    return bounds.get("since"), bounds.get("until")


def _parse_cost(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not isfinite(value):
        raise UsageError(f"Invalid cost {text[:40]!r}", hint="Write dollars, such as 0.5 or <0.5")
    return value


PAGE = 50
HOURS = 24
_FAILED = tuple(status for status in ENDED if status not in ("completed", "canceled"))


class ListedRun(Struct, frozen=True, kw_only=True):
    run_id: str
    status: str
    task: str
    agent: str
    model: str
    turns: int
    cost_usd: float | None
    tokens: int | None
    """None if the index has no count."""
    created_at: datetime
    seconds: float
    """From the start to the last change."""
    is_child: bool


class RunList(Struct, frozen=True, kw_only=True):
    runs: tuple[ListedRun, ...]
    next_cursor: int
    """For the next page; 0 on the last one."""


class LastDay(Struct, frozen=True, kw_only=True):
    """Runs that started in the last 24 clock hours."""

    runs: int
    failed: int
    chart: BarChart


async def list_page(runtime: Runtime, wanted: RunFilter, *, before: int = 0) -> RunList:
    """Return the next matching runs, newest first."""
    page = await read_run_page(runtime.store, wanted.search, wanted.statuses, before=before, limit=PAGE)
    return RunList(runs=tuple(build_listed(row) for row in page.rows), next_cursor=page.next)


def build_listed(row: RunRow) -> ListedRun:
    return ListedRun(
        run_id=row.run_id,
        status=get_shown_status(row),
        task=row.task,
        agent=row.agent,
        model=row.model,
        turns=row.turns,
        cost_usd=find_row_cost(row),
        tokens=row.tokens if row.tokens or not row.turns else None,
        created_at=row.created_at,
        seconds=max(0.0, (row.updated_at - row.created_at).total_seconds()),
        is_child=row.run_id.startswith(CHILD),
    )


async def read_last_day(runtime: Runtime, *, now: datetime) -> LastDay:
    # Whole hours, because the store counts by clock hour.
    began = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=HOURS - 1)
    counts = await runtime.store.usage.count_by_hour(since=began)
    runs, failed = Counter[str](), Counter[str]()
    for count in counts:
        runs[count.hour] += count.runs
        failed[count.hour] += count.runs if count.status in _FAILED else 0
    top, step = round_up(max(runs.values(), default=0), is_whole=True)
    bars: list[Bar] = []
    for number in range(HOURS):
        hour = began + timedelta(hours=number)
        key = format_hour(hour)
        parts = stack([("bad", "failed", failed[key]), ("1", "others", runs[key] - failed[key])], top=top)
        title = f"{hour:%H:%M} UTC: {format_count(runs[key], 'run')}, {failed[key]:,} failed"
        bars.append(Bar(label=f"{hour:%H:%M}", title=title, hour=hour.isoformat(), parts=parts))
    ticks = build_ticks(top, step, lambda value: f"{value:,.0f}")
    chart = BarChart(bars=tuple(bars), ticks=ticks)
    return LastDay(runs=runs.total(), failed=failed.total(), chart=chart)


MAX_VIEWS = 30
MAX_NAME_LENGTH = 40
_MAX_ADDRESS_LENGTH = 2_000
_BUCKET = "views"


class SavedView(Struct, frozen=True, kw_only=True):
    name: str
    address: str
    """The query string of the URL."""


async def list_views(contexts: ContextStore, user: str) -> tuple[SavedView, ...]:
    """List the user's views by name."""
    facts = await contexts.list_facts(_get_context(user), bucket=_BUCKET)
    return tuple(SavedView(name=fact.key, address=str(fact.value)) for fact in facts)


async def save_view(contexts: ContextStore, user: str, view: SavedView) -> None:
    """Save a view, replacing one of the same name. Raises `UsageError`."""
    if not view.name or len(view.name) > MAX_NAME_LENGTH or not view.name.isprintable():
        raise UsageError(
            "The name of the view is missing or too long", hint=f"Write up to {MAX_NAME_LENGTH} characters"
        )
    if not view.address or len(view.address) > _MAX_ADDRESS_LENGTH:
        raise UsageError("There is no filter to save", hint="Filter the list first, then give the filter a name")
    known = {each.name for each in await list_views(contexts, user)}
    if len(known | {view.name}) > MAX_VIEWS:
        raise UsageError(f"You have {MAX_VIEWS} views, the maximum", hint="Remove one first")
    noted = NewFact(bucket=_BUCKET, key=view.name, value=view.address)
    await contexts.commit(_get_context(user), ContextChange(facts=(noted,)))


async def remove_view(contexts: ContextStore, user: str, name: str) -> None:
    """Remove a view. Raises `UsageError` if the user has none of this name."""
    if name not in {each.name for each in await list_views(contexts, user)}:
        raise UsageError(f"You have no view {name[:MAX_NAME_LENGTH]!r}", hint="The list of runs shows your views")
    await contexts.commit(_get_context(user), ContextChange(forgotten=((_BUCKET, name),)))


def _get_context(user: str) -> str:
    """Return the context ID. The name is hashed: it may be longer than an ID, or that of a conversation."""
    return f"console-{hashlib.sha256(user.encode()).hexdigest()}"


router = APIRouter(include_in_schema=False, route_class=PageRoute)

MORE = ("agent", "model", "skill", "task", "cost", "since", "until")
"""Filters that are collapsed until one is used."""
VIEWS = (
    ("All", ""),
    ("Running", "status=in_progress,delegating,pending"),
    ("Waiting", "status=paused,input_required,interrupted,worker_lost"),
    ("Failed", "status=failed,timeout,blocked,escalated"),
    ("Last 24 hours", "since=24h"),
    ("Not completed", "status=-completed"),
)


@router.get("/runs")
async def show_runs(page: Here) -> Response:
    return await _render_list(page, "runs.html")


@router.get("/runs/rows")
async def show_rows(page: Here) -> Response:
    return await _render_list(page, "run_rows.html")


async def _render_list(page: Page, template: str) -> Response:
    runtime, params = page.state.runtime, page.request.query_params
    now = page.state.host.clock.now()
    wanted = parse_filter(params, now=now)
    cursor = params.get("before", "")
    # A number of any length would exceed the integers of the store.
    before = int(cursor) if cursor.isdecimal() and len(cursor) < 12 else 0
    listed = await list_page(runtime, wanted, before=before)
    if template == "run_rows.html":
        return await page.render(template, "runs", listed=listed, wanted=wanted, before=before)
    own = await list_views(runtime.store.contexts, page.user.name)
    return await page.render(
        template,
        "runs",
        listed=listed,
        wanted=wanted,
        views=VIEWS,
        own_views=own,
        here_view=next((view.name for view in own if view.address == wanted.address), ""),
        longest_name=MAX_NAME_LENGTH,
        states=STATUSES,
        narrowed=any(wanted.given.get(name) for name in MORE),
        last_day=await read_last_day(runtime, now=now),
        before=before,
    )


@router.post("/runs/views")
async def save_this_view(page: Here) -> Response:
    """Save the current filter under a name. Only the user sees it."""
    form = await page.read_form()
    # Parsed and written again, so that a view contains nothing but known filters.
    wanted = parse_filter(dict(parse_qsl(form.get("address", ""))), now=page.state.host.clock.now())
    view = SavedView(name=" ".join(form.get("name", "").split()), address=wanted.address)
    await save_view(page.state.runtime.store.contexts, page.user.name, view)
    return page.go(f"/runs?{wanted.address}")


@router.post("/runs/views/remove")
async def remove_this_view(page: Here) -> Response:
    form = await page.read_form()
    await remove_view(page.state.runtime.store.contexts, page.user.name, form.get("name", ""))
    return page.go("/runs")


type BulkAction = Literal["cancel", "retry"]
RETRIED: tuple[TaskState, ...] = ("failed", "timeout")
"""The statuses that a retry covers if the filter names none: canceled runs were ended on purpose."""
MAX_BULK_RUNS: dict[BulkAction, int] = {"cancel": 500, "retry": 50}
"""Per request, which must end before a proxy times out. Retries take longer, because each builds a whole run."""
_SHOWN = 20
_PAGE = 1_000


class Batch(Struct, frozen=True, kw_only=True):
    rows: tuple[RunRow, ...]
    has_more: bool


@router.get("/runs/bulk")
async def confirm_bulk_action(page: Here) -> Response:
    """List the runs that would be canceled or retried."""
    action = _parse_bulk_action(page.request.query_params.get("do", ""))
    wanted = parse_filter(page.request.query_params, now=page.state.host.clock.now())
    batch = await collect(page.state.runtime, wanted, action)
    return await page.render(
        "bulk.html",
        "runs",
        action=action,
        wanted=wanted,
        batch=batch,
        shown=[build_listed(row) for row in batch.rows[:_SHOWN]],
        newest=batch.rows[0].number if batch.rows else 0,
    )


@router.post("/runs/bulk")
async def run_bulk_action(page: Here) -> Response:
    """Act on each run on its own: one that fails does not stop the others."""
    form = await page.read_form()
    action = _parse_bulk_action(form.get("do", ""))
    newest = form.get("newest", "")
    if not newest.isdecimal() or len(newest) > 12:
        raise UsageError("The newest run of the batch is missing", hint="Open the page again")
    wanted = parse_filter(dict(parse_qsl(form.get("address", ""))), now=page.state.host.clock.now())
    # Runs that started after the page was shown were not confirmed.
    batch = await collect(page.state.runtime, wanted, action, before=int(newest) + 1)
    failed: list[str] = []
    for row in batch.rows:
        try:
            await _act(page, action, row.run_id)
        except MetierError as error:
            failed.append(f"{row.run_id}: {error.message}")
    if failed:
        done = len(batch.rows) - len(failed)
        raise UsageError(f"{done} of {len(batch.rows)} runs done", hint="; ".join(failed[:_SHOWN]))
    return page.go(f"/runs?{wanted.address}&done=bulk_{action}")


async def _act(page: Page, action: BulkAction, run_id: str) -> None:
    match action:
        case "cancel":
            await page.state.runtime.cancel(run_id, by=page.user.name)
        case "retry":
            await retry(page.state, run_id)


async def collect(runtime: Runtime, wanted: RunFilter, action: BulkAction, *, before: int = 0) -> Batch:
    """Return the newest runs that match the filter and allow the action."""
    search = wanted.statuses.narrow(wanted.search)
    suitable = UNFINISHED if action == "cancel" else RETRIED
    if search.statuses:
        possible = UNFINISHED if action == "cancel" else RETRIABLE
        suitable = tuple(status for status in search.statuses if status in possible)
    if not suitable:
        return Batch(rows=(), has_more=False)
    search = replace(search, statuses=suitable)
    limit, last = MAX_BULK_RUNS[action], before
    found: list[RunRow] = []
    while len(found) <= limit and (rows := await runtime.store.search_runs(search, before=last, limit=_PAGE)):
        last = rows[-1].number
        found += [row for row in rows if wanted.statuses.fits(row)]
    return Batch(rows=tuple(found[:limit]), has_more=len(found) > limit)


def _parse_bulk_action(word: str) -> BulkAction:
    match word:
        case "cancel" | "retry":
            return word
        case _:
            raise UsageError(f"Unknown action {word[:40]!r}", hint="Use cancel or retry")
