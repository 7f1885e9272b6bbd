"""Engines that are broken on purpose. A suite that does not notice them proves nothing about the real one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import small_scenarios as small

from metier.testing.crash_kit import CrashKit, CrashReport
from metier.testing.crash_points import CrashPoint
from metier.testing.crash_scenario import Build

POINTS = [
    CrashPoint("effect:launch:done"),
    CrashPoint("effect:post:done"),
    CrashPoint("journal:step_finished:before", 3),
    CrashPoint("journal:step_finished:after", 2),
    CrashPoint("journal:step_finished:after", 3),
    CrashPoint("journal:decision_made:before", 3),
    CrashPoint("journal:run_finished:before"),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def check(build: Build, folder: Path) -> CrashReport:
    with CrashKit(build, folder) as kit:
        baseline = kit.survey()
        reached = {*baseline.points}
        return CrashReport(outcomes=tuple(kit.check(point, baseline) for point in POINTS if point in reached))


def test_the_engine_as_it_is_passes(tmp_path: Path) -> None:
    report = check(small.build, tmp_path)

    assert len(report.outcomes) == len(POINTS)
    assert report.ok, report.render()


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (small.build_late_intents, "its event log tells of entry"),
        (small.build_early_results, "effect 'post' has 0 keys, undisturbed 1"),
        (small.build_early_events, "log tells of entry"),
        (small.build_rash_recovery, "opaque effect 'launch' happened 2 times"),
    ],
)
def test_a_broken_engine_is_caught(build: Callable[..., small.Scenario], complaint: str, tmp_path: Path) -> None:
    report = check(build, tmp_path)

    assert not report.ok
    assert complaint in report.render()
