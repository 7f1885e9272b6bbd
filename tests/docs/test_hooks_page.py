"""The pages on hooks, notifications and headless runs, typed in by a reader who starts in an empty folder."""

from pathlib import Path

import pytest
from walkthrough import follow

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "commands"), [("hooks.md", 2), ("headless.md", 4), ("notify.md", 4)])
def test_every_command_of_the_page_works_and_shows_what_the_page_says(
    *, name: str, commands: int, tmp_path: Path
) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    assert follow(DOCS / name, folder=folder, home=home) >= commands
