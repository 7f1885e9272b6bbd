"""The reference run, killed with SIGKILL at each crash point: the same end, nothing lost or repeated.

A sample: both sides of every effect and its entries, one side of decisions about effects, and a sixteenth of the other
names. `METIER_CRASH_ALL=1` kills at all points, more than a thousand.
"""

import os
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest
from reference_scenario import build

from metier.testing.crash_kit import Baseline, CrashKit, CrashReport
from metier.testing.crash_points import CrashPoint

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
]

IS_WHOLE = bool(os.environ.get("METIER_CRASH_ALL"))
CHUNKS = 48 if IS_WHOLE else 1
TOGETHER = 1 if IS_WHOLE else 5
"""Number of kills per run. Alone, each kill starts a new run."""
BOTH_SIDES = ("effect:", "script:", "journal:step_")
"""Boundaries of effects. `tool:` is not among them: its points are those of `effect:`, one call further out."""
ONE_SIDE = (
    "journal:model_replied", "journal:approval_", "journal:input_", "journal:run_", "store:begin_run",
    "store:take_lease", "store:put_approval", "sqlite:insert:journal", "sqlite:commit",
)  # fmt: skip
"""Changes that decide about effects. After one change is before the next, so only one side of each is a kill point."""
ONE_IN = 16
"""Of the other names: most are events and files that differ in what they are called alone."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    with CrashKit(build, tmp_path_factory.mktemp("crash")) as running:
        yield running


@pytest.fixture(scope="module")
def baseline(kit: CrashKit) -> Baseline:
    return kit.survey()


def choose(points: tuple[CrashPoint, ...]) -> list[CrashPoint]:
    """Choose all points, or for some names one fixed occurrence each."""
    if IS_WHOLE:
        return list(points)
    most = Counter(point.name for point in points)
    sides: dict[str, set[str]] = defaultdict(set)
    for name in most:
        sides[name.rpartition(":")[0]].add(name)
    names = {name for name in most if _is_in_sample(name, sorted(sides[name.rpartition(":")[0]]))}
    return [point for point in points if point.name in names and point.occurrence == _number(point.name, most) + 1]


def _is_in_sample(name: str, sides: list[str]) -> bool:
    if name.startswith(BOTH_SIDES):
        return True
    if name.startswith(ONE_SIDE):
        return name == sides[zlib.crc32(name.rpartition(":")[0].encode()) % len(sides)]
    return zlib.crc32(name.encode()) % ONE_IN == 0


def _number(name: str, most: Counter[str]) -> int:
    return zlib.crc32(name.encode()) % most[name]


def test_reference_run_covers_every_feature(baseline: Baseline) -> None:
    tools = {tool for _, tool, _ in baseline.outcome.steps}

    assert baseline.outcome.status == "completed"
    assert len(baseline.outcome.steps) >= 12
    assert {"look", "set_value", "post", "launch", "mail", "script_run", "pay", "ask_user"} <= tools
    assert baseline.outcome.skills == ("alpha", "beta", "gamma")
    assert baseline.outcome.asked == ("input", "approval")
    assert len(baseline.artifacts) == 1
    names = {point.name for point in baseline.points}
    assert {"journal:decode_failed:after", "journal:failure_told:after", "journal:handed_off:after"} <= names
    assert len(baseline.points) >= 170
    assert len(choose(baseline.points)) >= 45


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_run_killed_at_any_point_ends_like_an_uninterrupted_one(chunk: int, kit: CrashKit, baseline: Baseline) -> None:
    points = choose(baseline.points)[chunk::CHUNKS]

    report = kit.check_all(points, baseline, together=TOGETHER)

    print(report.render())
    assert report.ok, report.render()


@pytest.mark.parametrize("again", [(1,), (4, 2), (9, 3, 14), (25,), (40, 40)] if IS_WHOLE else [(4, 40)])
def test_recovery_survives_a_kill(again: tuple[int, ...], kit: CrashKit, baseline: Baseline) -> None:
    names = ("effect:launch:done", "script:record:middle", "journal:step_finished:before", "effect:post:done")
    points = [point for point in baseline.points if point.name in names and point.occurrence in (1, 8)]

    report = CrashReport(outcomes=tuple(kit.check(point, baseline, again=again) for point in points))

    assert len(points) == 5
    assert report.ok, report.render()
