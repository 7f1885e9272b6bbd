"""Usage and cost of a workspace, from the totals of the store, and of a conversation, from its journals."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from metier.engine.entries.model import ModelReplied
from metier.engine.journal import read_entries_of
from metier.errors import MetierError, StoreError, UsageError
from metier.runtime.records.record import list_usage, record_usage
from metier.runtime.runs import Runtime
from metier.store.usage import ALL_TIME, MAX_TASK_NAME, Amounts, DayTotal, RunTime, Span, UsageTotal, build_span
from metier.telemetry.excerpt import one_line
from metier.views.run_view import Usage
from metier.views.spending import Grouping, Spent, Total

MAX_GROUPS = 200
_AGE = re.compile(r"(\d{1,5})([hdw])")
_HOURS = {"h": 1, "d": 24, "w": 168}
_PAGE = 100


class Spending(Struct, frozen=True, kw_only=True):
    """The usage of a workspace since a time."""

    totals: tuple[Total, ...]
    """Totals by group, highest cost first; at most `MAX_GROUPS` unless more are requested."""
    days: tuple[Total, ...]
    runs: int
    """Number of runs created in that time."""
    completed: int
    unrecorded: int
    """Number of ended and waiting runs that are not counted yet: imported ones, and those of earlier versions."""

    @property
    def whole(self) -> Usage:
        usage = Usage()
        for day in self.days:
            usage = usage.plus(day.usage)
        return usage


async def read_spending(
    runtime: Runtime, by: Grouping, *, since: datetime | None = None, limit: int = MAX_GROUPS
) -> Spending:
    """Read the totals. The time doesn't depend on the number of runs."""
    usage, span = runtime.store.usage, get_span(runtime, since)
    days = _build_totals(await usage.sum_by("day", span, limit=limit))
    runs, completed = await usage.count_created(since=since)
    return Spending(
        totals=days if by == "day" else _build_totals(await usage.sum_by(by, span, limit=limit)),
        days=days,
        runs=runs,
        completed=completed,
        unrecorded=await usage.count_unrecorded(),
    )


async def record_old_runs(runtime: Runtime) -> int:
    """Record the usage of ended and waiting runs that were imported or are of earlier versions. Return the count."""
    count = 0
    # It ends, because each run of a page is recorded and does not come again.
    while run_ids := await runtime.store.usage.list_unrecorded(limit=_PAGE):
        for run_id in run_ids:
            try:
                await record_usage(runtime.store, await runtime.read(run_id))
            except MetierError:  # a damaged journal; count it as empty, or every call would read it again
                await runtime.store.usage.record(run_id, ())
            count += 1
    return count


async def read_conversation_spending(runtime: Runtime, context_id: str) -> list[Spent]:
    """Return the model calls of one conversation."""
    spent: list[Spent] = []
    last = 0
    while page := await runtime.store.list_runs(context_id=context_id, before=last, limit=_PAGE):
        last = page[-1].number
        for row in page:
            for hour, model, skill, amounts in list_usage(await runtime.read(row.run_id)):
                spent.append(
                    Spent(
                        model=model,
                        agent=row.agent or "built in",
                        skill=skill or "none",
                        task=one_line(row.task, MAX_TASK_NAME),
                        # Journals of older versions have no times.
                        day=hour[:10] or f"{row.updated_at:%Y-%m-%d}",
                        calls=amounts.calls,
                        usage=build_usage(amounts),
                    )
                )
    return spent


async def read_call_times(runtime: Runtime, runs: Sequence[RunTime]) -> list[tuple[str, float]]:
    """Return the model and the seconds of each model call of the runs. Costs about a millisecond per run."""
    times: list[tuple[str, float]] = []
    for run in runs:
        try:
            replies = await read_entries_of(runtime.store, run.run_id, ModelReplied)
        except StoreError:  # skip damaged journals
            continue
        times += [(run.model or "none", reply.latency_ms / 1000) for reply in replies]
    return times


def parse_since(text: str, *, now: datetime) -> datetime:
    """Parse a time or duration. Raises `UsageError`."""
    if age := _AGE.fullmatch(text.strip().lower()):
        return now - timedelta(hours=int(age[1]) * _HOURS[age[2]])
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(
            f"{text!r} is not a duration or a date", hint="Use 24h, 7d, 4w, or a date such as 2026-01-31"
        ) from error
    # A user who writes no zone means local time.
    return moment if moment.tzinfo else moment.astimezone()


def build_usage(amounts: Amounts) -> Usage:
    return Usage(
        input_tokens=amounts.input_tokens,
        cached_tokens=amounts.cached_tokens,
        output_tokens=amounts.output_tokens,
        cost_usd=amounts.cost_usd,
        unpriced_calls=amounts.unpriced_calls,
    )


def get_span(runtime: Runtime, since: datetime | None) -> Span:
    return ALL_TIME if since is None else build_span(since, now=runtime.host.clock.now())


def _build_totals(found: list[UsageTotal]) -> tuple[Total, ...]:
    return tuple(Total(name=name, calls=amounts.calls, usage=build_usage(amounts)) for name, amounts in found)


async def read_days(
    runtime: Runtime, by: Grouping, *, names: tuple[str, ...], since: datetime | None
) -> list[DayTotal]:
    """Return the totals of these groups by day; empty if the grouping is by day already."""
    return [] if by == "day" else await runtime.store.usage.sum_by_day(by, get_span(runtime, since), names=names)
