"""A run with callable skills, killed with SIGKILL at its traces: the same end, nothing lost, nothing twice."""

import os
import sys
from collections.abc import Iterator

import pytest
from crash_run import build

from metier.testing.crash_kit import Baseline, CrashKit, CrashReport
from metier.testing.crash_points import CrashPoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
    pytest.mark.timeout(600),
]
IS_WHOLE = bool(os.environ.get("METIER_CRASH_ALL"))
LOST = "launcher: It ended with exit code 0; what it printed was lost when the agent was killed"
"""Of a process that ended just before its answer was stored, and whose effect nobody may repeat."""
CHUNKS = 12 if IS_WHOLE else 4
EACH = ("journal:step_started", "journal:step_finished", "journal:input_asked", "tool:")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(build, tmp_path_factory.mktemp("crash")) as running:
        yield running


@pytest.fixture(scope="module")
def baseline(kit: CrashKit) -> Baseline:
    return kit.survey()


def choose(points: tuple[CrashPoint, ...]) -> list[CrashPoint]:
    """Around each step every point, and every fourth transaction; the engine's own matrix has the others."""
    return [
        point
        for point in points
        if IS_WHOLE
        or point.name.startswith(EACH)
        or (point.name.startswith("sqlite:commit") and point.occurrence % 4 == 0)
    ]


def test_undisturbed_run_asks_once_and_has_each_effect_once(baseline: Baseline) -> None:
    assert baseline.outcome.status == "completed"
    assert baseline.outcome.asked == ("input",)
    assert sorted(baseline.effects.values()) == [1, 1]


def find_violations(report: CrashReport) -> list[str]:
    return [violation for outcome in report.outcomes for violation in outcome.violations]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_run_killed_anywhere_ends_as_if_it_had_not_been(kit: CrashKit, baseline: Baseline, chunk: int) -> None:
    points = choose(baseline.points)[chunk::CHUNKS]

    report = CrashReport(outcomes=tuple(kit.check(point, baseline) for point in points))

    assert [line for line in find_violations(report) if LOST not in line] == [], report.render()
