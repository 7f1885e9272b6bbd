"""The page on callable skills, typed in by a reader who starts in an empty folder."""

from pathlib import Path

import pytest
from walkthrough import follow

PAGE = Path(__file__).parents[2] / "docs" / "capabilities.md"


@pytest.mark.timeout(600)
def test_every_command_of_the_page_works_and_shows_what_the_page_says(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    assert follow(PAGE, folder=folder, home=home) >= 9
