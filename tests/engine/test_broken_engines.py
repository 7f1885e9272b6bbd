"""Engines that are broken on purpose. A suite that does not notice them proves nothing about the real one."""

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest
import small_scenarios as small

from metier.testing.crash_kit import CrashKit, check_crashes
from metier.testing.crash_points import CrashPoint
from metier.testing.crash_scenario import Build

POINTS = [
    CrashPoint("journal:step_finished:before", 3),
    CrashPoint("effect:launch:done"),
    CrashPoint("journal:step_finished:after", 2),
    CrashPoint("effect:post:done"),
    CrashPoint("journal:step_finished:after", 3),
    CrashPoint("journal:decision_made:before", 3),
    CrashPoint("journal:run_finished:before"),
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def find_complaints(build: Build, folder: Path) -> Generator[str]:
    """What is wrong after each kill, as long as it is asked for."""
    with CrashKit(build, folder) as kit:
        baseline = kit.survey()
        reached = {*baseline.points}
        for point in POINTS:
            if point in reached:
                yield from kit.check(point, baseline).violations


def test_the_engine_as_it_is_passes(tmp_path: Path) -> None:
    report = check_crashes(small.build, folder=tmp_path, points=POINTS)

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
    with closing(find_complaints(build, tmp_path)) as complaints:
        assert any(complaint in found for found in complaints)
