"""The documentation is complete and current."""

import re
from pathlib import Path

from metier.cli.root import ALIASES, COMMANDS, load_command
from metier.events.record import payload_types
from metier.settings.keys import all_leaves

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCE = ROOT / "docs" / "reference"
GUIDES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.parent != REFERENCE]

WITHOUT_EXAMPLE: frozenset[str] = frozenset()
"""Commands that no guide shows in use. This set only shrinks."""


def commands() -> list[str]:
    found: list[str] = []
    for name in (each for each in COMMANDS if each not in ALIASES):
        children = [key for key, each in getattr(load_command(name), "commands", {}).items() if not each.hidden]
        found += [f"agent {name} {child}" for child in children] or [f"agent {name}"]
    return found


def test_reference_has_every_setting_command_and_event() -> None:
    pages = {path.stem: path.read_text(encoding="utf-8") for path in REFERENCE.glob("*.md")}

    missing = [key for key in all_leaves() if f"\n### `{key}`\n" not in pages["settings"]]
    missing += [name for name in payload_types() if f"\n## `{name}`\n" not in pages["events"]]
    missing += [command for command in commands() if f"\n## `{command}`\n" not in pages["commands"]]

    assert missing == []


def test_every_command_has_an_example() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in GUIDES)
    for alias, name in ALIASES.items():
        text = text.replace(f"agent {alias} ", f"agent {name} ")

    assert {command for command in commands() if command not in text} == WITHOUT_EXAMPLE


def links() -> list[tuple[Path, str, Path, str]]:
    """Yield page, target as written, file and heading of every link between pages."""
    found: list[tuple[Path, str, Path, str]] = []
    for page in [*GUIDES, *REFERENCE.glob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:|mailto:)([^)]+)", page.read_text(encoding="utf-8")):
            file, _, heading = target.partition("#")
            found.append((page, target, (page.parent / file).resolve() if file else page, heading))
    return found


def headings(page: Path) -> set[str]:
    """Return the headings as anchors of a rendered page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def test_links_between_pages_resolve() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page, target, file, heading in links()
        if not file.exists() or (heading and heading not in headings(file))
    ]

    assert broken == []


def test_every_page_is_linked_from_another_one() -> None:
    linked = {file for page, _, file, _ in links() if file != page}
    decisions = ROOT / "docs" / "decisions"

    # The folder of decisions is linked as a whole.
    lonely = {page for page in GUIDES if page.parent not in (ROOT, decisions)} - linked

    assert lonely == set()
    assert decisions in linked


def test_notes_for_contributors_stay_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text(encoding="utf-8").splitlines()) <= 100
