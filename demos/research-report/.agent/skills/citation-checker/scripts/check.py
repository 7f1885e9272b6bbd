# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Check the citations and quotations of a report against its passages and sources.

Exit code 1: something is wrong. With --json it is 0 then too, and the faults are in the result.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CITED = re.compile(r"\[(S\d+\.\d+(?:\s*,\s*S\d+\.\d+)*)\]")
QUOTED = re.compile(r"“([^”]{8,})”|\"([^\"]{8,})\"")
FREE = {"sources", "what the sources do not say"}
"""Headings below which no citation is needed."""
MAX_SUMMARY = 1500


def list_claims(text: str) -> Iterator[tuple[int, str]]:
    """Line and text of every paragraph and list item that claims something."""
    heading, lines, start = "", [], 1
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        begins = re.match(r"\s*(?:[-*+]|\d+\.)\s", line)
        if lines and (not line.strip() or begins or line.startswith("#")):
            if heading not in FREE:
                yield start, " ".join(lines)
            lines = []
        if line.startswith("#"):
            heading = line.lstrip("#").strip().lower()
        elif line.strip():
            start = start if lines else number
            lines.append(line.strip())


def find_faults(report: str, told: dict[str, object], root: Path) -> Iterator[tuple[int, str]]:
    passages = {each["id"]: each for each in told["passages"]}
    for number, claim in list_claims(report):
        cited = [name.strip() for match in CITED.finditer(claim) for name in match[1].split(",")]
        if not cited:
            yield number, "the paragraph cites no passage"
        for name in cited:
            if name not in passages:
                yield number, f"there is no passage {name}"
            elif not is_in_source(passages[name], root):
                yield number, f"passage {name} is no longer in {passages[name]['source']}"
        texts = [squeeze(passages[name]["text"]) for name in cited if name in passages]
        for match in QUOTED.finditer(claim):
            quotation = match[1] or match[2]
            if cited and not any(squeeze(quotation) in text for text in texts):
                yield number, f"the quotation “{quotation[:40]}” is in no passage that is cited"


def is_in_source(passage: dict[str, object], root: Path) -> bool:
    try:
        return squeeze(passage["text"]) in squeeze((root / passage["source"]).read_text("utf-8", "replace"))
    except OSError:
        return False


def squeeze(text: str) -> str:
    """Line ends and kinds of quotation marks make no other words."""
    return " ".join(re.sub(r"[“”„«»]", '"', text).split())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the workspace, where sources lie")
    parser.add_argument("--passages", type=Path, required=True, help="the file that 'gather' wrote")
    parser.add_argument("--report", type=Path, required=True, help="the report")
    parser.add_argument("--out", type=Path, help="a file for the verdict")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    try:
        told = json.loads(options.passages.read_text("utf-8"))
        report = options.report.read_text("utf-8")
        faults = list(find_faults(report, told, options.root))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"The report cannot be checked: {error!r}\n")
        return 1
    claims = len(list(list_claims(report)))
    said = [f"{options.report.name}:{number}: {text}" for number, text in faults]
    said = said or ([] if claims else [f"{options.report.name}:1: the report claims nothing"])
    if options.out:
        options.out.write_text("\n".join(said or [f"ok: {claims} claims"]) + "\n", "utf-8")
    if options.json:
        summary = (
            f"{len(said)} faults in {options.report.name}: {'; '.join(said)}"
            if said
            else f"All {claims} claims cite a passage that exists"
        )
        sys.stdout.write(json.dumps({"summary": summary[:MAX_SUMMARY], "faults": said}, ensure_ascii=False) + "\n")
        return 0
    sys.stdout.write("\n".join(said or [f"All {claims} claims cite a passage that exists"]) + "\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
