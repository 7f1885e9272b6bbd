"""Follow `docs/operations/opentelemetry.md` with a tracing backend."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from otlp_receiver import receiving
from walkthrough import Reader, read_through

from metier.telemetry import otel_names as names

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "opentelemetry.md"


def test_every_command_of_the_page_works_and_its_spans_arrive(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    with receiving() as backend:
        reader = Reader(folder=folder, home=home, addresses={"http://localhost:4318": backend.url})

        assert read_through(PAGE, reader) == 3

        assert "run_script greeter/greet.py" in {span.name for span in backend.spans}
        assert len(backend.spans) == 2 * len({span.id for span in backend.spans})


def test_the_page_names_the_revision_and_the_metrics_of_the_table() -> None:
    page = PAGE.read_text("utf-8")

    for name in (names.REVISION, names.OPERATION_DURATION, names.TOKEN_USAGE, names.TOOL_DURATION, names.COST_USD):
        assert name in page
