"""The pages of the documentation and the navigation of its site (`mkdocs.yml`) name each other."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_every_page_stands_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r": ([\w/-]+\.md)$", navigation, re.MULTILINE))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if "decisions" not in page.parts}

    assert pages - named == set(), "add them to nav in mkdocs.yml"
    assert named - pages == set()
