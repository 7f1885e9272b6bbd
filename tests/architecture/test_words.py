"""Vocabulary of source and pages: each actor has a name, and the terms are in the glossary."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
GLOSSARY = ROOT / "docs" / "concepts" / "glossary.md"

NAMELESS = re.compile(r"\b(somebody|nobody|whoever)\b", re.IGNORECASE)
"""Say the user, the approver, the model, the worker, the driver, the caller, the process or the host instead."""
AS_DATA = frozenset(
    {
        "src/metier/routing/words.py",
        "src/metier/telemetry/redaction.py",
    }
)
"""Lists of words of a language and of common values."""
AS_RECORDED = "do it yourself, or ask somebody else"
"""A sentence that journals hold: a replay compares what it says with what was said."""
MAX_TERMS = 40


def list_texts() -> list[Path]:
    source = [path for ending in ("py", "md") for path in (ROOT / "src").rglob(f"*.{ending}")]
    pages = [ROOT / "README.md", ROOT / "AGENTS.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in [*source, *pages] if not {"bundled", "decisions", "contributing"} & set(path.parts))


def test_every_actor_in_source_and_documentation_has_a_name() -> None:
    found = [
        f"{name}:{number}: {line.strip()}"
        for path in list_texts()
        if (name := path.relative_to(ROOT).as_posix()) not in AS_DATA
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if NAMELESS.search(line.replace(AS_RECORDED, ""))
    ]

    assert found == []


def test_the_glossary_is_short_and_in_order() -> None:
    terms = re.findall(r"^- \*\*(.+?)\*\*: [A-Z]", GLOSSARY.read_text(encoding="utf-8"), re.MULTILINE)

    assert 0 < len(terms) <= MAX_TERMS
    assert terms == sorted(terms)


def test_every_term_of_the_glossary_is_one_or_two_sentences() -> None:
    lines = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("- ")]
    without_links = [re.sub(r" See \[.*", "", line) for line in lines]

    assert [line for line in without_links if len(re.findall(r"[.!?](?: |$)", line)) not in (1, 2)] == []
