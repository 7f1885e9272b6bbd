"""Render `docs/llms.txt`, the index of the documentation for language models (https://llmstxt.org)."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# Metier

> Durable AI agents you can kill, resume, replay and undo. A Python agent runtime: agents, skills and tasks are Markdown
> files, and every run is a journal on disk.
"""
_ENTRY = re.compile(r"^(?P<indent> +)- (?P<title>[^:]+):(?: (?P<page>\S+\.md))?$", re.MULTILINE)
_TOP_INDENT = 2


def render_llms() -> str:
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    return "\n".join([HEAD, *_list_lines(navigation)]) + "\n"


def _list_lines(navigation: str) -> Iterator[str]:
    for entry in _ENTRY.finditer(navigation):
        if entry["page"]:
            yield f"- [{entry['title']}]({entry['page']}): {_first_sentence(ROOT / 'docs' / entry['page'])}"
        elif len(entry["indent"]) == _TOP_INDENT:
            yield f"\n## {entry['title']}\n"


def _first_sentence(page: Path) -> str:
    """Return the first sentence of the first paragraph, without links and line breaks."""
    text = page.read_text("utf-8").partition("# ")[2].partition("\n\n")[2]
    paragraph = " ".join(text.partition("\n\n")[0].split())
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
    sentence = re.match(r".*?[.!:](?= |$)", plain)
    return (sentence[0] if sentence else plain).rstrip(":")
