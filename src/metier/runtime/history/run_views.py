"""Views of runs, folded from the event log, or from the journal if the log is on another machine."""

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from anyio.to_thread import run_sync
from msgspec.structs import replace

from metier.decisions import describe_failure, describe_success
from metier.engine.decide import get_run_limits
from metier.engine.entries.entry import Entry
from metier.engine.entries.step import StepFinished
from metier.engine.journal import read_entries_of
from metier.engine.state.fold import fold
from metier.engine.state.run_state import RunState
from metier.errors import ConfigError, LogError
from metier.events.record import EventRecord
from metier.extras import hint_extra
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.history.undo import read_changes
from metier.runtime.host import Host
from metier.runtime.records.run_log import JournalReplayer
from metier.runtime.runs import Runtime
from metier.store.base import RunRow
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.views.fold import fold_all, with_answer
from metier.views.run_view import RunLimits, RunView, StepView

MAX_CHILDREN = 50
"""Maximum number of shown child runs. A page with thousands would be useless."""
_MAX_LEVELS = 4


class EventRecorder:
    """A sink that keeps its events in memory."""

    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def write(self, record: EventRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        return None


async def read_run_view(
    runtime: Runtime,
    run_id: str,
    *,
    levels: int = _MAX_LEVELS,
    entries: Sequence[Entry] | None = None,
    max_children: int | None = MAX_CHILDREN,
) -> RunView:
    """Return the view of a run with its child runs. An unknown run has an empty view.

    `entries` is its journal, if already read. Totals need all children: pass None for `max_children`.
    """
    entries = await runtime.read_entries(run_id) if entries is None else entries
    state = fold(run_id, entries)
    logged = await run_sync(read_intact_events, runtime.folder(run_id) / FILE_NAME)
    row = await runtime.store.find_run(run_id)
    children = [child.run_id for child in state.children][:max_children] if levels else []
    views = tuple(
        [await read_run_view(runtime, each, levels=levels - 1, max_children=max_children) for each in children]
    )
    # The totals of a finished run include its children. The fold must know the children, or they count twice.
    view = fold_all(_complete(runtime.host, row, logged=logged, entries=entries), RunView(children=views))
    view = with_answer(view, build_host_cleaner(runtime.host).text(state.result))
    return replace(view, limits=_get_limits(state, entries), children=views)


async def read_step_diffs(runtime: Runtime, run_id: str, *, entries: Sequence[Entry] | None = None) -> dict[str, str]:
    """Return the file changes of each step, including child runs, as redacted unified diffs by `run:step`."""
    clean = build_host_cleaner(runtime.host).text
    found = await read_changes(runtime, run_id, entries=entries)
    named = {step.step if ":" in step.step else f"{run_id}:{step.step}": step.changes for step in found}
    return {name: clean("".join(changes.values())) for name, changes in named.items() if changes}


def read_intact_events(log: Path) -> list[EventRecord]:
    """Read the events up to the first unreadable one. A log that is being written may end in the middle of a line."""
    records: list[EventRecord] = []
    with suppress(LogError):
        records.extend(read_events(log))
    return records


def _complete(
    host: Host, row: RunRow | None, *, logged: Sequence[EventRecord], entries: Sequence[Entry]
) -> Sequence[EventRecord]:
    """Append events of later journal entries to the log, which has more details and the times."""
    last = max((record.entry for record in logged), default=0)
    if row is None or last >= len(entries):
        return logged
    recorder = EventRecorder()
    JournalReplayer(host, row.run_id, recorder).tell(entries)
    # Journal entries have no times, so use those of the index: the run's start and its last change. With the current
    # time, the duration of an interrupted run would grow each time it is shown.
    latest = max((row.updated_at, *(record.timestamp for record in logged[-1:])))
    added = [record for record in recorder.records if record.entry > last]
    return [*logged, *(replace(each, timestamp=row.created_at if each.entry == 1 else latest) for each in added)]


def _get_limits(state: RunState, entries: Sequence[Entry]) -> RunLimits:
    if not entries:
        return RunLimits()
    limits = get_run_limits(state)
    return RunLimits(max_turns=limits.max_turns, max_cost_usd=limits.max_cost_usd)


async def render_shared_run(runtime: Runtime, run_id: str) -> str:
    """Render a run as a page to share. Raises `ConfigError` if the template package is not installed."""
    if find_spec("jinja2") is None:
        raise ConfigError("A page needs the package 'jinja2', which is not installed", hint=hint_extra("server"))
    # Imported here, because the template package is an extra.
    from metier.views.page_rendering import render_share  # noqa: PLC0415

    view = await read_run_view(runtime, run_id)
    return render_share(view, await read_step_diffs(runtime, run_id))


async def read_whole_step(runtime: Runtime, run_id: str, step: StepView) -> StepView:
    """Read a step with its whole output and diff from the journal. Events have only the first lines."""
    entries = await read_entries_of(runtime.store, run_id, StepFinished)
    end = next((entry for entry in reversed(entries) if entry.step_id == step.step_id), None)
    if end is None:
        return step
    text = (await runtime.store.get_blob(end.digest)).decode("utf-8", "replace") if end.digest else end.text
    said = describe_failure(text) if end.is_error else describe_success(text)
    return replace(step, output=said, output_lines=0, diff=end.diff, diff_lines=0)
