"""Deliberately broken engines, which prove that the suite detects errors."""

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

pytestmark = [pytest.mark.slow]


def find_complaints(build: Build, folder: Path) -> Generator[str]:
    """Yield the problems after each kill."""
    with CrashKit(build, folder) as kit:
        baseline = kit.survey()
        reached = {*baseline.points}
        for point in POINTS:
            if point in reached:
                yield from kit.check(point, baseline).violations


def test_the_unmodified_engine_passes(tmp_path: Path) -> None:
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
def test_a_broken_engine_is_detected(build: Callable[..., small.Scenario], complaint: str, tmp_path: Path) -> None:
    with closing(find_complaints(build, tmp_path)) as complaints:
        assert any(complaint in found for found in complaints)


def test_a_broken_engine_is_detected_by_kills_of_one_run_and_the_kill_is_named(tmp_path: Path) -> None:
    points = [CrashPoint("effect:post:done"), CrashPoint("effect:launch:done"), CrashPoint("journal:input_asked:after")]
    with CrashKit(small.build_rash_recovery, tmp_path) as kit:
        report = kit.check_all(points, kit.survey(), together=3)

    together, *alone = report.outcomes
    assert together.lives == 4
    assert "after kills at effect:post:done#1, effect:launch:done#1, " in together.violations[0]
    assert "opaque effect 'launch' happened 2 times" in together.violations[0]
    assert [bool(each.violations) for each in alone] == [False, True, False]


def test_an_unreached_crash_point_is_checked_in_its_own_run(tmp_path: Path) -> None:
    points = [CrashPoint("journal:run_started:after"), CrashPoint("store:begin_run:after")]
    with CrashKit(small.build, tmp_path) as kit:
        report = kit.check_all(points, kit.survey(), together=2)

    assert report.ok, report.render()
    assert "2 kills" in report.render()
    assert [each.point.name for each in report.outcomes] == ["store:begin_run:after", "store:begin_run:after"]
