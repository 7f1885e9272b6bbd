"""The reference run on PostgreSQL, killed with SIGKILL at a sample of its points: the same end as on SQLite."""

import sys
from collections.abc import Iterator

import pytest
from postgres_scenario import VARIABLE, build

from metier.testing.crash_kit import Baseline, CrashKit
from services.postgres_server import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
]

NAMES = (
    "journal:run_started:after",
    "journal:step_started:after",
    "journal:step_finished:before",
    "journal:step_finished:after",
    "journal:model_replied:before",
    "journal:approval_asked:after",
    "journal:input_given:before",
    "journal:run_finished:before",
    "store:take_lease:after",
    "effect:launch:",
    "effect:post:done",
    "script:record:done",
)
"""One side of each change that decides about effects; the matrix on SQLite has all names."""


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer) -> Iterator[CrashKit]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, postgres_server.url())
        with CrashKit(build, tmp_path_factory.mktemp("crash")) as running:
            yield running


@pytest.fixture(scope="module")
def baseline(kit: CrashKit) -> Baseline:
    return kit.survey()


def test_a_run_on_postgres_killed_at_any_point_ends_like_an_uninterrupted_one(
    kit: CrashKit, baseline: Baseline
) -> None:
    first = {point.name: point for point in reversed(baseline.points) if point.name.startswith(NAMES)}

    report = kit.check_all(list(first.values()), baseline, together=5)

    print(report.render())
    assert baseline.outcome.status == "completed"
    assert len(first) >= 12
    assert report.ok, report.render()
