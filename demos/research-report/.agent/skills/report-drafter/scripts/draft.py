# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Draft a report from an outline and its passages: quotations with citations, and the list of sources."""

import argparse
import json
import re
import sys
from pathlib import Path

ITEM = re.compile(r"- (S\d+\.\d+)\b")


def render(told: dict[str, object], outline: str) -> tuple[str, int]:
    passages = {each["id"]: each for each in told["passages"]}
    lines, used = [f"# {told['question']}", ""], []
    for line in outline.splitlines():
        if line.startswith("## "):
            lines += [line, ""]
        elif (item := ITEM.match(line)) and item[1] in passages:
            used.append(item[1])
            lines += [f"“{passages[item[1]]['text']}” [{item[1]}]", ""]
    lines += ["## Sources", ""]
    cited = {name.partition(".")[0] for name in used}
    lines += [f"- {each['id']}: {each['file']}" for each in told["sources"] if each["id"] in cited]
    return "\n".join(lines) + "\n", len(used)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passages", type=Path, required=True, help="the file that 'gather' wrote")
    parser.add_argument("--outline", type=Path, required=True, help="the outline")
    parser.add_argument("--out", type=Path, required=True, help="the Markdown file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    try:
        told = json.loads(options.passages.read_text("utf-8"))
        text, claims = render(told, options.outline.read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.stderr.write(f"The outline cannot be used: {error!r}\n")
        return 1
    if not claims:
        sys.stderr.write("The outline names none of the passages\n")
        return 1
    options.out.write_text(text, "utf-8")
    summary = f"Drafted {options.out.name} with {claims} claims"
    result = {"summary": summary, "artifacts": [str(options.out)]}
    sys.stdout.write((json.dumps(result, ensure_ascii=False) if options.json else summary) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
