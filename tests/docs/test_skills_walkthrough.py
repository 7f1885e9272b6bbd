"""The walk-through of `docs/guides/first-skill.md`, typed in by a reader who starts in an empty folder."""

from pathlib import Path

from walkthrough import BLOCK, follow

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "first-skill.md"


def test_every_command_of_the_walk_through_works_and_shows_what_the_page_says(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    assert follow(PAGE, folder=folder, home=home) >= 14


def test_page_marks_as_many_blocks_as_it_has_steps() -> None:
    text = PAGE.read_text("utf-8")

    assert len(BLOCK.findall(text)) == text.count("<!-- test -->") + text.count("<!-- file: ")
