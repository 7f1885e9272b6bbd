"""Evals from recordings: no key, no network, nothing is run but the functions of a pack. In any order, side by side."""

import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from metier.errors import MetierError
from metier.evals.bench import Variant, build_bench, open_bench
from metier.evals.evaluate import begin_row, evaluate, open_evidence
from metier.evals.recordings import find_recording
from metier.evals.results import RunRow
from metier.evals.staleness import Now, find_stale
from metier.evals.targets import SourcedCase, Target
from metier.runtime.runs import open_runtime

ITSELF = Variant(name="")


async def replay_target(target: Target, cases: Sequence[SourcedCase]) -> tuple[RunRow, ...]:
    """A row for each case, in their order."""
    rows: dict[int, RunRow] = {}
    async with _open_now(target) as now, anyio.create_task_group() as tasks:

        async def replay(number: int, sourced: SourcedCase) -> None:
            rows[number] = await _replay_case(target, sourced, now)

        for number, sourced in enumerate(cases):
            tasks.start_soon(replay, number, sourced)
    return tuple(rows[number] for number in sorted(rows))


@asynccontextmanager
async def _open_now(target: Target) -> AsyncGenerator[Now]:
    """A bench without a case, and an empty store for what a replay asks one for."""
    with tempfile.TemporaryDirectory(prefix="agent-eval-") as folder:
        root = Path(folder)
        build_bench(target, None, root, variant=ITSELF)
        place = open_bench(target, root, variant=ITSELF, case=None, runs=root / "runs")
        async with open_runtime(place) as runtime:
            yield Now(place=runtime.place, store=runtime.store, files=target.digest_files())


async def _replay_case(target: Target, sourced: SourcedCase, now: Now) -> RunRow:
    row = begin_row(sourced)
    try:
        recording = find_recording(sourced)
    except MetierError as error:
        return row.model_copy(update={"status": "stale", "reasons": (error.message,)})
    if recording is None:
        reason = "it was never recorded; `agent eval … --record` does that"
        return row.model_copy(update={"status": "missing", "reasons": (reason,)})
    stale = await find_stale(recording, sourced, now)
    evidence = open_evidence(recording.archive, sourced)
    graded = await evaluate(
        row, evidence, target=target, sourced=sourced, place=now.place, judged=recording.note.judged
    )
    return graded.model_copy(update={"status": "stale", "reasons": stale}) if stale else graded
