"""A run as people see it: the fold of its event log, or of its journal where that log is on another machine."""

from collections.abc import Sequence
from dataclasses import replace

from anyio.to_thread import run_sync

from metier.engine.decide import get_run_limits
from metier.engine.entries import Entry
from metier.engine.state import RunState, fold
from metier.errors import LogError
from metier.event_record import EventRecord
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.history.entries import read_history
from metier.runtime.history.undo import read_changes
from metier.runtime.host import Host
from metier.runtime.records.journal_events import Teller
from metier.runtime.runs import Runtime
from metier.telemetry.jsonl import FILE_NAME, read_events
from metier.views.fold import fold_all, with_answer
from metier.views.run_view import RunLimits, RunView

MOST_CHILDREN = 50
"""Of one run; a page that showed thousands would help no reader."""
_MOST_LEVELS = 4


class _Kept:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[EventRecord] = []

    def write(self, record: EventRecord) -> None:
        self.records.append(record)

    def close(self) -> None:
        return None


async def read_run_view(
    runtime: Runtime, run_id: str, *, levels: int = _MOST_LEVELS, entries: Sequence[Entry] | None = None
) -> RunView:
    """How a run stands, with the runs that it handed work to. An unknown run has an empty view.

    `entries` are its journal, where that was read.
    """
    entries = await read_history(runtime, run_id) if entries is None else entries
    state = fold(run_id, entries)
    logged = await run_sync(_read_log, runtime, run_id)
    view = fold_all(_complete(runtime.place, run_id, logged=logged, entries=entries))
    view = with_answer(view, build_place_cleaner(runtime.place).text(state.result))
    view = replace(view, limits=_find_limits(state, entries))
    children = [child.run_id for child in state.children][:MOST_CHILDREN] if levels else []
    return replace(view, children=tuple([await read_run_view(runtime, each, levels=levels - 1) for each in children]))


async def read_step_diffs(runtime: Runtime, run_id: str, *, entries: Sequence[Entry] | None = None) -> dict[str, str]:
    """What each step did to files, as unified diffs by `run:step`, also of child runs, without secrets."""
    clean = build_place_cleaner(runtime.place).text
    found = await read_changes(runtime, run_id, entries=entries)
    named = {step.step if ":" in step.step else f"{run_id}:{step.step}": step.changes for step in found}
    return {name: clean("".join(changes.values())) for name, changes in named.items() if changes}


def _read_log(runtime: Runtime, run_id: str) -> list[EventRecord]:
    """What is readable of it; a log that is being written may end in the middle of a line."""
    records: list[EventRecord] = []
    try:
        records.extend(read_events(runtime.folder(run_id) / FILE_NAME))
    except LogError:
        return records
    return records


def _complete(
    place: Host, run_id: str, *, logged: Sequence[EventRecord], entries: Sequence[Entry]
) -> Sequence[EventRecord]:
    """The log says more and has the times; what the journal has beyond it follows."""
    last = max((record.entry for record in logged), default=0)
    if last >= len(entries):
        return logged
    kept = _Kept()
    Teller(place, run_id, kept).tell(entries)
    return [*logged, *(record for record in kept.records if record.entry > last)]


def _find_limits(state: RunState, entries: Sequence[Entry]) -> RunLimits:
    if not entries:
        return RunLimits()
    limits = get_run_limits(state)
    return RunLimits(max_turns=limits.max_turns, max_cost_usd=limits.max_cost_usd)
