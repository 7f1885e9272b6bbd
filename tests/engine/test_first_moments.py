"""A run that is killed before its first entry is begun again with all that was wanted of it."""

import sys
from pathlib import Path

import pytest

from metier.messages import ModelReply, TextPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.place import Place
from metier.settings.model import Settings
from metier.testing.crash_kit import CrashKit, CrashReport
from metier.testing.crash_points import CrashPoint
from metier.testing.crash_scenario import Reach, Scenario
from metier.testing.deed import build_settle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc"),
    pytest.mark.timeout(300),
]


class Parrot:
    """Says what it was told, so that the result of the run shows whether it was told everything."""

    name = "parrot"

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        told = " / ".join(part.text for part in request.messages[0].parts if isinstance(part, TextPart))
        usage = Usage(input_tokens=10, output_tokens=10)
        parts = (TextPart(text=told),)
        return ModelReply(parts=parts, stop_reason="end", usage=usage, provider=self.name, model="parrot")

    async def count_tokens(self, request: ModelRequest) -> None:
        return None

    async def close(self) -> None:
        return None


def build(folder: Path, reach: Reach) -> Scenario:
    effects = folder / "effects.jsonl"
    place = Place(settings=Settings(), workspace=folder, home=folder / "home", environ={}, provider=Parrot())
    return Scenario(
        place=place,
        task="Sum it up",
        extra_context="piped: 12 apples",
        effects=effects,
        settle=build_settle(effects),
    )


def test_piped_text_outlives_a_kill_before_the_first_entry(tmp_path: Path) -> None:
    with CrashKit(build, tmp_path) as kit:
        baseline = kit.survey()
        first_entry = baseline.points.index(CrashPoint("journal:run_started:after"))
        points = baseline.points[:first_entry]
        report = CrashReport(outcomes=tuple(kit.check(point, baseline) for point in points))

    assert "piped: 12 apples" in baseline.outcome.result
    assert {"store:create_run:after", "store:take_lease:after", "journal:run_started:before"} <= {
        p.name for p in points
    }
    assert report.ok, report.render()
