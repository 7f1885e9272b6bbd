# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Make an outline from gathered passages: a heading for each topic, the most telling topic first."""

import argparse
import json
import sys
from pathlib import Path

SHOWN = 90


def render(told: dict[str, object]) -> str:
    topics: dict[str, list[dict[str, object]]] = {}
    for passage in told["passages"]:
        topics.setdefault(passage["topic"], []).append(passage)
    lines = [f"# {told['question']}", ""]
    for topic, passages in topics.items():
        lines += [f"## {topic}", "", *(f"- {each['id']}: {shorten(each['text'])}" for each in passages), ""]
    return "\n".join(lines)


def shorten(text: str) -> str:
    return text if len(text) <= SHOWN else text[: SHOWN - 1].rsplit(" ", 1)[0] + "…"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=Path, required=True, help="the file that 'gather' wrote")
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    try:
        told = json.loads(options.passages.read_text("utf-8"))
        text = render(told)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"The passages cannot be used: {error!r}; run the script 'gather' first\n")
        return 1
    options.out.write_text(text, "utf-8")
    summary = f"{text.count('\n## ')} headings for {len(told['passages'])} passages"
    result = {"summary": summary, "artifacts": [str(options.out)]}
    sys.stdout.write((json.dumps(result, ensure_ascii=False) if options.json else summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
