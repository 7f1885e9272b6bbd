"""A run with callable skills, killed with SIGKILL at its crash points: the same end, nothing lost or repeated.

A sample: each boundary between parent and child, a third of those of steps, and a few starts of processes and
transactions; `METIER_CRASH_ALL=1` kills at every point.
"""

import os
import sys
from collections.abc import Iterator

import crash_run
import delegation_crash_run
import pytest

from metier.testing.crash_kit import Baseline, CrashKit, CrashReport
from metier.testing.crash_points import CrashPoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
]
IS_WHOLE = bool(os.environ.get("METIER_CRASH_ALL"))
CHUNKS = 12 if IS_WHOLE else 1
TOGETHER = 1 if IS_WHOLE else 4
"""Number of kills per run. Alone, each kill starts a new run."""
EACH = ("journal:delegated", "journal:child_ended")
SOME = ("journal:step_started", "journal:step_finished", "journal:input_asked", "journal:run_started", "tool:")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(crash_run.build, tmp_path_factory.mktemp("crash")) as running:
        yield running


@pytest.fixture(scope="module")
def baseline(kit: CrashKit) -> Baseline:
    return kit.survey()


@pytest.fixture(scope="module")
def delegating_kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(delegation_crash_run.build, tmp_path_factory.mktemp("crash")) as running:
        yield running


@pytest.fixture(scope="module")
def delegating_baseline(delegating_kit: CrashKit) -> Baseline:
    return delegating_kit.survey()


def choose(points: tuple[CrashPoint, ...]) -> list[CrashPoint]:
    """Alternate before and after for other points; the engine's own matrix covers the rest."""
    if IS_WHOLE:
        return list(points)

    def find(names: tuple[str, ...]) -> list[CrashPoint]:
        return [point for point in points if point.name.startswith(names)]

    return [*find(EACH), *find(SOME)[::3], *find(("process:",))[::8], *find(("sqlite:commit",))[::32]]


def test_uninterrupted_run_asks_once_and_has_each_effect_once(baseline: Baseline) -> None:
    assert baseline.outcome.status == "completed"
    assert baseline.outcome.asked == ("input",)
    assert sorted(baseline.effects.values()) == [1, 1]


def list_violations(report: CrashReport) -> list[str]:
    return [violation for outcome in report.outcomes for violation in outcome.violations]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_run_ends_like_an_uninterrupted_one(kit: CrashKit, baseline: Baseline, chunk: int) -> None:
    points = choose(baseline.points)[chunk::CHUNKS]

    report = kit.check_all(points, baseline, together=TOGETHER)

    assert list_violations(report) == [], report.render()


def test_uninterrupted_delegation_creates_one_child_run(delegating_baseline: Baseline) -> None:
    assert delegating_baseline.outcome.status == "completed"
    assert delegating_baseline.outcome.runs == 2
    assert delegating_baseline.outcome.asked == ("input",)
    assert delegating_baseline.effects == {"builder": 1}


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_killed_delegation_has_one_child_and_returns_its_answer(
    delegating_kit: CrashKit, delegating_baseline: Baseline, chunk: int
) -> None:
    points = choose(delegating_baseline.points)[chunk::CHUNKS]

    report = delegating_kit.check_all(points, delegating_baseline, together=TOGETHER)

    assert list_violations(report) == [], report.render()
