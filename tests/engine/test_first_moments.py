"""A kill at any statement of a start leaves no run, or one with all its settings.

A sample: the statements and calls that create the run, and a third of the others. `METIER_CRASH_ALL=1` kills at all.
"""

import os
import sys
import zlib
from pathlib import Path

import anyio
import pytest
from postgres_scenario import VARIABLE
from start_scenario import GIVEN, LIVES, TODAY, build, build_on_postgres, describe

from metier.engine.entries.run import RunStarted
from metier.engine.journal import read_entries
from metier.runtime.records.pins import use_pinned_settings
from metier.testing.crash_child import Order
from metier.testing.crash_kit import CrashKit, read_outcome
from metier.testing.crash_points import CrashPoint, Points
from metier.testing.crash_scenario import Build
from services.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
]

STATEMENTS = {"sqlite:insert:runs:before", "sqlite:insert:journal:before", "sqlite:insert:leases:before"}
ONE_IN = 3
CALLS = {"store:put_blob:after", "store:begin_run:before", "journal:run_started:before", "journal:run_started:after"}


async def read_starts(kit: CrashKit, case: Path) -> list[str]:
    """Return each run's first entry and its pinned settings."""
    scenario = kit.build(case, lambda _name: None)
    store = await scenario.open_store(scenario.host, Points(case / "reading"), machine=None)
    try:
        found: list[str] = []
        for row in await store.list_runs():
            started = (await read_entries(store, row.run_id))[0]
            assert isinstance(started, RunStarted)
            assert started.extra_context == "piped: 12 apples"
            pinned = (await use_pinned_settings(scenario.host, started.pins, store)).settings
            assert (started.model, started.profile) == (pinned.model.name, pinned.runtime.profile)
            assert started.limits.max_turns == pinned.runtime.max_turns
            found.append(describe(pinned))
        return found
    finally:
        await store.close()


def kill_and_go_on(kit: CrashKit, point: CrashPoint) -> list[str]:
    """Return the problems after the start was killed at this point."""
    case = kit.open_case()
    first = kit.live(Order(folder=str(case), name=point.name, occurrence=point.occurrence))
    if first["code"] != -9:
        return [f"{point} was not reached"]
    left = anyio.run(read_starts, kit, case)
    (case / LIVES).write_text("1")
    kit.live(Order(folder=str(case)))
    outcome, starts = read_outcome(case), anyio.run(read_starts, kit, case)
    asked = "approval" in outcome.asked
    problems = [] if outcome.status == "completed" else [f"{point}: {outcome.error or outcome.status}"]
    if left not in ([], [describe(GIVEN)]):
        problems.append(f"{point}: the kill left {left}")
    if starts != (left or [describe(TODAY)]):
        problems.append(f"{point}: gone on with {starts}")
    if asked != bool(left):
        problems.append(f"{point}: {'an approval was asked for' if asked else 'nothing was asked'}, left {left}")
    return problems


def choose(points: tuple[CrashPoint, ...]) -> list[CrashPoint]:
    """Choose all points, or the last one of some names."""
    if os.environ.get("METIER_CRASH_ALL"):
        return list(points)
    last = {point.name: point for point in points}
    return [p for name, p in last.items() if name in STATEMENTS | CALLS or zlib.crc32(name.encode()) % ONE_IN == 0]


def check_start(build: Build, folder: Path) -> set[str]:
    """Kill at the points of the start and return their names."""
    with CrashKit(build, folder) as kit:
        baseline = kit.survey()
        begun = next(i for i, p in enumerate(baseline.points) if p.name == "event:run_started:after")
        points = choose(baseline.points[: begun + 1])
        problems = [problem for point in points for problem in kill_and_go_on(kit, point)]
    assert problems == []
    return {point.name for point in points}


def test_flags_survive_a_kill_at_every_statement_of_a_start(tmp_path: Path) -> None:
    names = check_start(build, tmp_path)

    assert names >= STATEMENTS | CALLS


def test_flags_survive_a_kill_at_every_step_of_a_start_on_postgres(
    tmp_path: Path, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, postgres_server.url())

    names = check_start(build_on_postgres, tmp_path)

    assert names >= CALLS
