# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Find open tasks in text files: `- [ ] …` and `TODO: …`, with file and line."""

import argparse
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

OPEN = re.compile(r"^\s*[-*+]\s+\[ \]\s+(?P<box>\S.*)$|\bTODO\b[:\s]\s*(?P<todo>\S.*)$")
TEXT = {".md", ".markdown", ".txt", ".rst", ".org", ".py", ".js", ".ts", ".go", ".rs", ".java", ".sh", ".yaml", ".yml"}
SKIPPED = {"runs", "node_modules", "__pycache__", "review.md"}
MAX_BYTES = 1024 * 1024
MAX_TASKS = 500


def list_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in SKIPPED)
        for name in sorted(files):
            path = Path(folder, name)
            if path.suffix.lower() in TEXT and name not in SKIPPED and not path.is_symlink():
                yield path


def find_tasks(path: Path, root: Path) -> Iterator[dict[str, object]]:
    if path.stat().st_size > MAX_BYTES:
        return
    for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), start=1):
        match = OPEN.search(line)
        if match:
            text = (match["box"] or match["todo"]).strip()
            yield {"file": path.relative_to(root).as_posix(), "line": number, "text": text[:300]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path.cwd(), help="the folder to look through")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    if not options.root.is_dir():
        print(f"{options.root} is not a folder", file=sys.stderr)
        return 1
    tasks = [task for path in list_files(options.root) for task in find_tasks(path, options.root)]
    files = len({task["file"] for task in tasks})
    summary = f"{len(tasks)} open tasks in {files} files" if tasks else "No open tasks"
    result = {"summary": summary, "tasks": tasks[:MAX_TASKS], "left_out": max(0, len(tasks) - MAX_TASKS)}
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        print("\n".join([summary, *(f"{task['file']}:{task['line']}: {task['text']}" for task in tasks)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
