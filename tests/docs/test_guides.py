"""The guides, each typed in by a reader who starts in an empty folder with an empty home."""

from pathlib import Path

import pytest
from walkthrough import BLOCK, follow

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
FOLLOWED = {"first-policy": 10, "first-task": 10, "in-ci": 5}
"""Guides without a server, a key or a second machine, with how many commands each has."""


@pytest.mark.parametrize(("guide", "commands"), FOLLOWED.items(), ids=FOLLOWED)
def test_guide_works_as_it_says(guide: str, commands: int, tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    assert follow(GUIDES / f"{guide}.md", folder=folder, home=home) == commands


def test_getting_started_works_as_it_says(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    assert follow(GUIDES.parent / "getting-started.md", folder=folder, home=home) == 7


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda page: page.stem)
def test_guide_ends_with_a_next_step_and_marks_its_blocks(page: Path) -> None:
    text = page.read_text("utf-8")

    assert "\n## Next\n" in text
    assert len(BLOCK.findall(text)) == text.count("<!-- test -->") + text.count("<!-- file: ")
