"""The pages of the documentation and the navigation of its site (`mkdocs.yml`) name each other."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

from blocks import PAGES, read_blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_block_of_a_page_is_executed_checked_or_has_a_reason_for_neither() -> None:
    blocks = [block for page in PAGES for block in read_blocks(page)]

    unmarked = [block.where for block in blocks if not block.meaning]

    assert unmarked == [], "put a mark on the line above each, such as <!-- test -->; tests/docs/blocks.py lists them"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "decisions" not in page.parts}

    assert pages - named == set(), "add them to nav in mkdocs.yml"
    assert named - pages == set()


def test_files_named_on_pages_for_contributors_exist() -> None:
    """Paths stand in back quotes, from the root or from `src/metier`; capitals are placeholders."""
    missing: list[str] = []
    for page in ("AGENTS.md", "CONTRIBUTING.md", "docs/contributing/architecture.md", "docs/testing.md"):
        for named in re.findall(r"`([a-z.][\w.-]*/[\w./-]*)`", (ROOT / page).read_text("utf-8")):
            is_there = (ROOT / named).exists() or (ROOT / "src/metier" / named).exists()
            if not is_there and not re.search(r"[A-Z]{4}", named):
                missing.append(f"{page}: {named}")

    assert missing == []


def test_documentation_stays_short_and_has_diagrams() -> None:
    pages = {page: page.read_text("utf-8") for page in DOCS.rglob("*.md")}
    written = {page: text for page, text in pages.items() if not {"reference", "decisions"} & set(page.parts)}

    def count(text: str) -> int:
        return sum(bool(re.search(r"\w", word)) for word in text.split())

    assert sum(map(count, pages.values())) <= 60_000
    assert [page.name for page, text in written.items() if count(text) > 1_300] == []
    assert sum(text.count("```mermaid\n") for text in written.values()) >= 10


def test_decisions_are_not_in_the_search() -> None:
    assert all("search:\n  exclude: true\n" in page.read_text("utf-8") for page in (DOCS / "decisions").glob("*.md"))
