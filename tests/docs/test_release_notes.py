"""Check the changelog of this version and the table of extras."""

import re
import tomllib
from pathlib import Path

import pytest

from metier.version import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_changelog_explains_how_to_upgrade_to_this_version() -> None:
    _, *sections = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    released = [section for section in sections if not section.startswith("Unreleased\n")]

    assert released[0].startswith(f"{__version__}\n\n### Upgrade\n")


def test_every_nonempty_extra_has_a_row_in_getting_started() -> None:
    extras: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/install.md").read_text("utf-8"), re.MULTILINE)

    assert rows == [*sorted(rows[:-1]), "all"]
    assert set(rows) == {name for name, packages in extras.items() if packages}


def test_site_shows_this_version() -> None:
    assert f"\ncopyright: Metier {__version__} " in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_changelog_page_has_five_highlights_per_release() -> None:
    _, *releases = (ROOT / "docs/changelog.md").read_text("utf-8").split("\n## ")

    assert {release.count("\n- ") for release in releases} == {5}
