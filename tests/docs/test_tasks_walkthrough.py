"""The walk-through of `docs/tasks.md`, typed in by a reader who starts in an empty folder."""

from pathlib import Path

from test_skills_walkthrough import BLOCK, find_commands, matches, type_in

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


def test_every_command_of_the_page_works_and_shows_what_the_page_says(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()
    ran = 0

    for block in BLOCK.finditer(PAGE.read_text("utf-8")):
        if block["path"]:
            file = folder / block["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block["text"], "utf-8")
            continue
        for command, shown in find_commands(block["text"]):
            printed = type_in(command, folder=folder, home=home)
            for line in shown:
                assert matches(line, printed), f"$ {command}\n{printed}\nhas no line like: {line}"
            ran += 1

    assert ran == 5
