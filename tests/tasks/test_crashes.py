"""Tasks and delegation under SIGKILL: no repeated step or child, no lost result.

A sample: a task is killed at every fifth boundary of its ten steps, a delegation at each of its boundaries and at some
of the points around journals, stores, tools and models; the engine's own matrix covers events and files.
`METIER_CRASH_ALL=1` kills at every point.
"""

import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from crash_scenarios import STEPS, build_apart, build_delegation, build_side_by_side, build_task, build_together

from metier.testing.crash_kit import Baseline, CrashKit, CrashReport
from metier.testing.crash_points import CrashPoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
    pytest.mark.timeout(3600 if os.environ.get("METIER_CRASH_ALL") else 900),
]

IS_WHOLE = bool(os.environ.get("METIER_CRASH_ALL"))
CHUNKS = 24 if IS_WHOLE else 1
TOGETHER = 1 if IS_WHOLE else 4
"""Number of kills per run. Alone, each kill starts a new run."""
BOUNDARIES = ("delegated", "child_ended")
AGAIN = ((3,), (12, 7))
"""At which of their points the processes that recover are killed."""
HANDS = (*BOUNDARIES, "create_run", "journal:run_started", "journal:run_finished")


@pytest.fixture(scope="module")
def task_kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(build_task, tmp_path_factory.mktemp("task")) as running:
        yield running


@pytest.fixture(scope="module")
def task_baseline(task_kit: CrashKit) -> Baseline:
    return task_kit.survey()


@pytest.fixture(scope="module")
def team_kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(build_delegation, tmp_path_factory.mktemp("team")) as running:
        yield running


@pytest.fixture(scope="module")
def team_baseline(team_kit: CrashKit) -> Baseline:
    return team_kit.survey()


@pytest.fixture(scope="module")
def together_kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(build_together, tmp_path_factory.mktemp("together")) as running:
        yield running


@pytest.fixture(scope="module")
def together_baseline(together_kit: CrashKit) -> Baseline:
    return together_kit.survey()


def is_one_of(point: CrashPoint, words: tuple[str, ...]) -> bool:
    """Return whether the point has one of the names; entries written together share a point."""
    return any(word in point.name for word in words)


def choose(points: tuple[CrashPoint, ...], each: tuple[str, ...]) -> list[CrashPoint]:
    """Choose every occurrence of these names, and a fixed one of other names except for events and files."""
    most = Counter(point.name for point in points)
    return [
        point
        for point in points
        if IS_WHOLE
        or is_one_of(point, each)
        or (
            not point.name.startswith(("event:", "file:"))
            and point.occurrence == zlib.crc32(point.name.encode()) % most[point.name] + 1
        )
    ]


def thin_out(points: list[CrashPoint], *, one_in: int) -> list[CrashPoint]:
    """Choose every boundary between two runs, and a fraction of the other points."""
    return [point for n, point in enumerate(points) if IS_WHOLE or n % one_in == 0 or is_one_of(point, BOUNDARIES)]


def test_task_of_ten_steps_passes_its_results_on(task_baseline: Baseline) -> None:
    outcome = task_baseline.outcome

    assert (outcome.status, outcome.runs) == ("completed", STEPS + 1)
    assert all(f"Step {number} about tides." in outcome.result for number in range(1, STEPS + 1))
    assert task_baseline.effects == {"keep": STEPS}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_task_killed_at_a_step_boundary_continues_at_that_step(
    chunk: int, task_kit: CrashKit, task_baseline: Baseline
) -> None:
    boundaries = [point for point in task_baseline.points if is_one_of(point, BOUNDARIES)]
    points = (list(task_baseline.points) if IS_WHOLE else boundaries[::5])[chunk::CHUNKS]

    report = task_kit.check_all(points, task_baseline, together=TOGETHER)

    assert len(boundaries) >= 4 * STEPS
    print(report.render())
    assert report.ok, report.render()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_delegation_has_no_duplicate_child_and_loses_no_result(
    chunk: int, team_kit: CrashKit, team_baseline: Baseline
) -> None:
    points = thin_out(choose(team_baseline.points, HANDS), one_in=10)[chunk::CHUNKS]

    report = team_kit.check_all(points, team_baseline, together=TOGETHER)

    assert team_baseline.outcome.runs == 4
    assert team_baseline.effects == {"pay": 2, "post": 1}
    print(report.render())
    assert report.ok, report.render()


def test_recovery_of_a_delegation_survives_a_kill(team_kit: CrashKit, team_baseline: Baseline) -> None:
    points = [point for point in team_baseline.points if is_one_of(point, BOUNDARIES) and point.occurrence == 2]

    report = CrashReport(
        outcomes=tuple(
            team_kit.check(point, team_baseline, again=again)
            for number, point in enumerate(points)
            for again in (AGAIN if IS_WHOLE else AGAIN[number % 2 :][:1])
        )
    )

    assert len(points) == 4
    assert report.ok, report.render()


def test_concurrent_children_exist_once_each_after_a_kill_at_any_point(
    together_kit: CrashKit, together_baseline: Baseline
) -> None:
    points = thin_out(choose(together_baseline.points, HANDS), one_in=12)

    report = together_kit.check_all(points, together_baseline, together=TOGETHER)

    assert together_baseline.outcome.runs == 4
    assert together_baseline.effects == {"post": 1}
    print(report.render())
    assert report.ok, report.render()


def test_recovery_of_concurrent_children_survives_a_kill(together_kit: CrashKit, together_baseline: Baseline) -> None:
    points = [point for point in together_baseline.points if is_one_of(point, BOUNDARIES)]

    report = CrashReport(
        outcomes=tuple(together_kit.check(point, together_baseline, again=(12, 7)) for point in points)
    )

    assert len(points) >= 2
    assert report.ok, report.render()


def test_children_of_concurrent_calls_exist_once_each_after_a_kill_at_any_point(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with CrashKit(build_side_by_side, tmp_path_factory.mktemp("side-by-side")) as kit:
        baseline = kit.survey()
        points = thin_out(choose(baseline.points, HANDS), one_in=18)

        report = kit.check_all(points, baseline, together=TOGETHER)

    assert (baseline.outcome.runs, baseline.effects) == (4, {"post": 1})
    assert report.ok, report.render()


def test_children_with_worktrees_exist_once_each_and_leave_no_worktree(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("apart")
    with CrashKit(build_apart, folder) as kit:
        baseline = kit.survey()
        points = thin_out(choose(baseline.points, HANDS), one_in=18)

        report = kit.check_all(points, baseline, together=TOGETHER)

    assert (baseline.outcome.runs, baseline.effects) == (3, {"pay": 1, "post": 1})
    assert report.ok, report.render()
    assert list(folder.rglob(".agent/worktrees"))
    assert list(folder.rglob(".agent/worktrees/*")) == []
