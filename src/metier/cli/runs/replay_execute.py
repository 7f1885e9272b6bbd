"""`agent replay --execute`: what a replay found, for people and for programs."""

import json

import anyio
from pydantic import JsonValue

from metier.cli.shared.options import Config
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.shared.place import open_place
from metier.engine.entries import Entry
from metier.engine.replaying.recording import Difference, Divergence
from metier.runtime.history.replays import ReplayReport, replay_run
from metier.runtime.runs import open_runtime
from metier.telemetry.excerpt import cut_end

EQUAL, DIVERGED = 0, 1
_SHOWN_CHARACTERS = 300
_SHOWN_DIFFERENCES = 10


def execute_replay(run: str, config: Config, *, with_current_files: bool, as_json: bool) -> int:
    """0 when the run would do the same again, 1 when it would not."""

    async def work() -> ReplayReport:
        async with open_runtime(open_place(config)) as runtime:
            row = await runtime.find(run)
            return await replay_run(runtime, row.run_id, with_current_files=with_current_files)

    report = anyio.run(work)
    if as_json:
        write_json(build_report(report))
    else:
        _write_report(report, with_current_files=with_current_files)
    return EQUAL if report.is_equal else DIVERGED


def build_report(report: ReplayReport) -> dict[str, JsonValue]:
    divergence = report.outcome.divergence
    return {
        "run_id": report.run_id,
        "equal": report.is_equal,
        "entries": len(report.outcome.entries),
        "compared": report.outcome.compared - report.outcome.given,
        "taken_over": report.outcome.given,
        "changed_since": list(report.changed),
        "divergence": _build_divergence(divergence) if divergence else None,
    }


def _build_divergence(divergence: Divergence) -> dict[str, JsonValue]:
    return {
        "entry": divergence.number,
        "sentence": divergence.sentence,
        "recorded": _build_entry(divergence.recorded),
        "replayed": _build_entry(divergence.replayed),
        "differences": [
            {"path": found.path, "recorded": found.recorded, "replayed": found.replayed}
            for found in divergence.differences
        ],
    }


def _build_entry(entry: Entry | None) -> JsonValue:
    return None if entry is None else entry.model_dump(mode="json")


def _write_report(report: ReplayReport, *, with_current_files: bool) -> None:
    outcome, divergence = report.outcome, report.outcome.divergence
    if report.changed and not with_current_files:
        names = ", ".join(report.changed)
        warn_line(f"note: changed since the run, which uses what it was pinned to: {names}")
    if outcome.given:
        warn_line(f"note: the first {outcome.given} entries are taken over from the run it was forked from")
    if divergence is None:
        write_line(f"equal: {outcome.compared - outcome.given} entries of run {report.run_id} were found again")
        return
    recorded = divergence.recorded.kind if divergence.recorded else "end of the record"
    write_line(f"differs: entry {divergence.number} of run {report.run_id} ({recorded})")
    write_line(f"  {divergence.sentence}")
    for difference in divergence.differences[:_SHOWN_DIFFERENCES]:
        write_difference(difference, left="recorded", right="replayed")
    more = len(divergence.differences) - _SHOWN_DIFFERENCES
    if more > 0:
        write_line(f"  and {more} more; --json has all of them")


def write_difference(difference: Difference, *, left: str, right: str) -> None:
    """One under the other, so that the eye finds what differs."""
    width = max(len(left), len(right))
    write_line(f"  {difference.path}")
    write_line(f"    {left:<{width}}  {_short(difference.recorded)}")
    write_line(f"    {right:<{width}}  {_short(difference.replayed)}")


def _short(value: JsonValue) -> str:
    return cut_end(json.dumps(value, ensure_ascii=False), _SHOWN_CHARACTERS)
