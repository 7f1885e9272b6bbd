"""The page on runs in the background, typed in by a reader."""

from pathlib import Path

import pytest
from walkthrough import Reader, read_through

PAGE = Path(__file__).parents[2] / "docs" / "background.md"


@pytest.mark.slow
def test_every_command_of_the_page_works_and_shows_what_the_page_says(tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()

    assert read_through(PAGE, Reader(folder, home, exported={"AGENT_WORKER_IDLE_SECONDS": "0.5"})) == 3
