# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Draft release notes from the file that the commit collector wrote: one entry for each commit, grouped by kind."""

import argparse
import hashlib
import json
import re
import sys
from pathlib import Path

GROUPS = {
    "breaking": "Breaking changes",
    "security": "Security",
    "added": "Added",
    "changed": "Changed",
    "fixed": "Fixed",
    "removed": "Removed",
    "documentation": "Documentation",
    "internal": "Internal",
}
MARK = re.compile(r"<!-- draft (?P<digest>[0-9a-f]{16}) -->\n")
SPECIAL = re.compile(r"([\\`*_<>\[\]])")


def render(told: dict[str, object]) -> str:
    lines = [f"# {told['version']}", ""]
    grouped: dict[str, list[str]] = {name: [] for name in GROUPS}
    for commit in told["commits"]:
        group = "breaking" if commit["breaking"] else commit["kind"]
        grouped[group].append(render_entry(commit))
    for name, entries in grouped.items():
        if entries:
            lines += [f"## {GROUPS[name]}", "", *entries, ""]
    return "\n".join(lines)


def render_entry(commit: dict[str, object]) -> str:
    # A subject is text: what looks like markup in it is none.
    text = SPECIAL.sub(r"\\\1", str(commit["text"]).rstrip("."))
    scope = f"**{SPECIAL.sub(r'\\\1', str(commit['scope']))}**: " if commit["scope"] else ""
    note = f"\n  {SPECIAL.sub(r'\\\1', str(commit['note']))}" if commit["note"] else ""
    return f"- {scope}{text} ({commit['short']}){note}"


def is_untouched(path: Path) -> bool:
    """Nobody changed the draft that is there."""
    text = path.read_text("utf-8", "replace")
    match = MARK.match(text)
    return bool(match) and digest(text[match.end() :]) == match["digest"]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=Path, required=True, help="the file that the collector wrote")
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file to write")
    parser.add_argument("--force", action="store_true", help="replace notes that somebody changed")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    try:
        told = json.loads(options.commits.read_text("utf-8"))
        text = render(told)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"The commits cannot be used: {error!r}; run the script 'collect' first\n")
        return 1
    if options.out.exists() and not options.force and not is_untouched(options.out):
        sys.stderr.write(f"{options.out.name} was changed by hand and stays as it is; --force replaces it\n")
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(f"<!-- draft {digest(text)} -->\n{text}", "utf-8")
    summary = f"Drafted {len(told['commits'])} entries for {told['version']} in {options.out.name}"
    result = {"summary": summary, "artifacts": [str(options.out)]}
    sys.stdout.write((json.dumps(result, ensure_ascii=False) if options.json else summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
