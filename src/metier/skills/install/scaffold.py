"""Creates a skill from a small, complete template that is valid in strict mode."""

import json
import shutil
from pathlib import Path

from metier.definitions.names import canonical_name, check_name
from metier.definitions.skills.skill import load_skill
from metier.errors import ConfigError, UsageError

_SKILL = """\
---
name: {name}
description: Says in one sentence what {name} does. Use it when a task asks for exactly that.
license: Apache-2.0
metadata:
  version: 0.1.0
---

# {title}

Say in a few sentences what this skill is for and what it is not for.

## When to use

- The task asks for …
- Not for …; use … instead.

## Steps

1. Run `scripts/example.py --help` to see what it takes. Do not read the script first.
2. Run it with `--json` and use the result.
3. Check the result against the request before you answer.

## Scripts

### `scripts/example.py`

**When to use:** to count the lines, words and characters of a text file.

## References

- `references/guide.md`: details that are needed only now and then.
"""

_SCRIPT = '''\
# /// script
# requires-python = ">=3.12"
# dependencies = []
# ///
"""Count the lines, words and characters of a text file."""

import argparse
import json
import sys
from pathlib import Path


def count(text: str) -> dict[str, int]:
    return {"lines": len(text.splitlines()), "words": len(text.split()), "characters": len(text)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", help="the file to read; standard input where it is left out")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    try:
        text = options.file.read_text("utf-8", "replace") if options.file else sys.stdin.read()
    except OSError as error:
        print(f"Cannot read {options.file}: {error.strerror}", file=sys.stderr)
        return 1
    result = count(text)
    if options.json:
        print(json.dumps(result))
    else:
        print("\\n".join(f"{name}: {number}" for name, number in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''

_GUIDE = """\
# Guide

Put here what is too long for `SKILL.md`: formats, tables, examples. The model reads it only when it needs it.
"""


def create_skill(folder: Path, *, name: str) -> Path:
    """Write a new skill to `folder`, which must not exist. Nothing remains after an error."""
    check_name(name)
    canonical = canonical_name(name)
    target = folder / canonical
    if target.exists():
        raise UsageError(f"{str(target)!r} exists already", hint="Choose another name or --path")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        _write(target, name=canonical)
        problems = load_skill(target, strict=True).problems
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    if problems:
        shutil.rmtree(target, ignore_errors=True)
        raise ConfigError(f"Name {name!r} does not make a valid skill", problems=problems)
    return target


def _write(target: Path, *, name: str) -> None:
    title = name.replace("-", " ").capitalize()
    evals = {
        "skill_name": name,
        "evals": [
            {
                "id": 1,
                "prompt": "How many words are in evals/files/sample.txt?",
                "expected_output": "The answer says that the file has five words.",
                "files": ["evals/files/sample.txt"],
                "script": "example",
                "args": ["../evals/files/sample.txt"],
            }
        ],
    }
    contents = {
        "SKILL.md": _SKILL.format(name=name, title=title),
        "references/guide.md": _GUIDE,
        "scripts/example.py": _SCRIPT,
        "evals/evals.json": json.dumps(evals, indent=2) + "\n",
        "evals/files/sample.txt": "one two three four five\n",
    }
    for path, text in contents.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        # With the line ends of Windows the skill would have another digest.
        file.write_text(text, "utf-8", newline="\n")
