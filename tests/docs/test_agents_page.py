"""The examples of the pages on agents, the prompt and chat, typed in by a reader who starts in an empty folder."""

from pathlib import Path

import pytest
from walkthrough import BLOCK, follow

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("name", "commands"), [("agents.md", 6), ("prompt.md", 5), ("chat.md", 5)])
def test_every_command_of_the_page_works_and_shows_what_the_page_says(
    *, name: str, commands: int, tmp_path: Path
) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    assert follow(DOCS / name, folder=folder, home=home) >= commands


@pytest.mark.parametrize("name", ["agents.md", "prompt.md", "chat.md"])
def test_page_marks_as_many_blocks_as_it_has_steps(name: str) -> None:
    text = (DOCS / name).read_text("utf-8")

    assert len(BLOCK.findall(text)) == text.count("<!-- test -->") + text.count("<!-- file: ")
