"""The reference run, killed and taken over in another folder: effects are asked about, not repeated.

A sample of the points by default; `METIER_CRASH_ALL=1` kills at every point, more than 300 times.
"""

import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest
from apart_scenario import build, build_on_postgres
from postgres_scenario import VARIABLE

from metier.testing.crash_kit import Baseline, CrashKit, CrashReport
from metier.testing.crash_points import CrashPoint
from services.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
    pytest.mark.timeout(3600 if os.environ.get("METIER_CRASH_ALL") else 600),
]

IS_WHOLE = bool(os.environ.get("METIER_CRASH_ALL"))
CHUNKS = 48 if IS_WHOLE else 1
TOGETHER = 1 if IS_WHOLE else 5
"""Number of kills per run. Alone, each kill starts a new run."""
DOUBTFUL = ("script:record:begun", "script:record:middle", "script:record:done")
EACH = ("effect:launch", "effect:pay", "script:flaky:failing", "script:report:done")
"""Boundaries of effects that must not be repeated; those of the script `record` have a test of their own."""
FEW = (
    "journal:step_started:after", "journal:step_finished:before", "journal:run_started:after",
    "journal:run_paused:after", "journal:run_resumed:before", "journal:run_finished:before", "store:take_lease:after",
    "process:start", "file:rename:N/spool/.identity.part",
)  # fmt: skip
"""The side of each change after which another folder has the most to find out: one occurrence of each."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(build, tmp_path_factory.mktemp("apart")) as running:
        yield running


@pytest.fixture(scope="module")
def baseline(kit: CrashKit) -> Baseline:
    return kit.survey()


def choose(points: tuple[CrashPoint, ...]) -> list[CrashPoint]:
    """Choose all points, or the start and end of effects and one of each other name."""
    most = Counter(point.name for point in points)
    return [
        point
        for point in points
        if IS_WHOLE
        or point.name.startswith(EACH)
        or (point.name.startswith(FEW) and point.occurrence == zlib.crc32(point.name.encode()) % most[point.name] + 1)
    ]


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_run_taken_over_in_another_folder_repeats_no_effect_without_asking(
    chunk: int, kit: CrashKit, baseline: Baseline
) -> None:
    points = choose(baseline.points)[chunk::CHUNKS]

    report = kit.check_all(points, baseline, together=TOGETHER)

    print(report.render())
    assert report.ok, report.render()


def test_a_script_killed_in_another_folder_always_has_an_unknown_outcome(kit: CrashKit, baseline: Baseline) -> None:
    points = [point for point in baseline.points if point.name in DOUBTFUL]

    outcomes = [kit.check(point, baseline) for point in points]

    assert len(points) == 3
    assert [outcome.violations for outcome in outcomes] == [()] * 3
    assert all("in_doubt" in outcome.asked for outcome in outcomes)


@pytest.mark.parametrize("again", [(25,), (40, 40)] if IS_WHOLE else [(25, 40)])
def test_a_recovery_in_another_folder_survives_a_kill(
    again: tuple[int, ...], kit: CrashKit, baseline: Baseline
) -> None:
    names = ("effect:launch:done", "script:record:middle", "script:report:done")
    points = [point for point in baseline.points if point.name in names and point.occurrence == 1]

    report = CrashReport(outcomes=tuple(kit.check(point, baseline, again=again) for point in points))

    assert len(points) == 3
    assert report.ok, report.render()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[CrashKit]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, postgres_server.url())
        with CrashKit(build_on_postgres, tmp_path_factory.mktemp("fleet")) as running:
            yield running


@pytest.fixture(scope="module")
def fleet_baseline(fleet: CrashKit) -> Baseline:
    return fleet.survey()


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_workers_with_separate_folders_repeat_no_effect_without_asking(
    chunk: int, fleet: CrashKit, fleet_baseline: Baseline
) -> None:
    names = (*EACH, *DOUBTFUL)
    first = {point.name: point for point in reversed(fleet_baseline.points) if point.name.startswith(names)}
    points = list(fleet_baseline.points if IS_WHOLE else first.values())
    chosen = points[chunk::CHUNKS]

    report = fleet.check_all(chosen, fleet_baseline, together=TOGETHER)

    print(report.render())
    assert len(points) >= 9
    assert report.ok, report.render()
