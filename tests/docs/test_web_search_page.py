"""The page on web search, typed in by a reader."""

from pathlib import Path

from walkthrough import Reader, read_through

PAGE = Path(__file__).parents[2] / "docs" / "web-search.md"


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()

    assert read_through(PAGE, Reader(folder, home)) == 2
