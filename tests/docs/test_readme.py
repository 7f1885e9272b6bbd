"""What the README shows, typed in by a reader with an empty folder and an empty home."""

from pathlib import Path

from walkthrough import follow

README = Path(__file__).parents[2] / "README.md"


def test_skill_of_the_readme_runs_and_replays(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    folder.mkdir()

    assert follow(README, folder=folder, home=home) == 3


def test_readme_is_short() -> None:
    assert README.read_text("utf-8").count("\n") <= 82
