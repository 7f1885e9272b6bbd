# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Write a review from the results of earlier steps. A file that somebody else wrote is not replaced."""

import argparse
import json
import re
import sys
from pathlib import Path

MARK = "<!-- written by review-writer; it is replaced the next time -->"


def read_results(path: str) -> dict[str, dict[str, object]]:
    """What each skill found, by its name."""
    if not path:
        return {}
    listed = json.loads(Path(path).read_text("utf-8"))
    return {each["skill"]: each["result"] for each in listed if isinstance(each.get("result"), dict)}


def render(title: str, results: dict[str, dict[str, object]]) -> str:
    stock = results.get("workspace-inventory", {}).get("summary") or "Nobody took stock."
    found = results.get("open-tasks", {})
    tasks = found.get("tasks") or []
    lines = [MARK, "", f"# {title}", "", "## What is here", "", str(stock), "", "## Open tasks", ""]
    lines += [f"- [ ] {task['text']} ({task['file']}:{task['line']})" for task in tasks] or ["Nothing is open."]
    if found.get("left_out"):
        lines.append(f"- … and {found['left_out']} more")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--previous", default="", help="a JSON file with the results of earlier steps")
    parser.add_argument("--request", default="", help='the words of the task; title="…" in them is the title')
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    if options.out.exists() and not options.out.read_text("utf-8", "replace").startswith(MARK):
        print(f"{options.out.name} was not written by this script and stays as it is", file=sys.stderr)
        return 1
    named = re.search(r'title="([^"]+)"', options.request)
    try:
        results = read_results(options.previous)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"The results of earlier steps cannot be read: {error}", file=sys.stderr)
        return 1
    options.out.write_text(render(named[1] if named else "Review", results), "utf-8")
    summary = f"Wrote {options.out.name}"
    print(json.dumps({"summary": summary, "artifacts": [str(options.out)]}) if options.json else summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
