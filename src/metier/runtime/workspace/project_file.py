"""Write a first `AGENTS.md` for a workspace: what a newcomer needs to know, with the commands that its files show."""

import os
from collections.abc import Iterator
from pathlib import Path

from metier.definitions.project_files import NAMES

_HEAD = """# Instructions for agents

<!-- Every run in this folder reads this file, and so do other tools that know AGENTS.md. Keep it short. -->

## What this is

One or two sentences: what the project does, and for whom.

## How to check a change

"""
_TAIL = """
## Conventions

- Write what a newcomer gets wrong: names, style, what must not be touched.
- Import longer texts with a line of their own, such as `@docs/style.md`, and remove this line.
"""
_COMMANDS = (
    ("pyproject.toml", "python -m pytest"),
    ("package.json", "npm test"),
    ("Cargo.toml", "cargo test"),
    ("go.mod", "go test ./..."),
    ("Makefile", "make"),
)


def write_project_file(workspace: Path) -> Path | None:
    """Its path; None, and nothing is written, where the folder has such a file. Raises `OSError`."""
    if any(os.path.lexists(workspace / name) for name in NAMES):
        return None
    file = workspace / NAMES[0]
    with file.open("x", encoding="utf-8") as stream:
        stream.write(build_project_text(workspace))
    return file


def build_project_text(workspace: Path) -> str:
    return _HEAD + "\n".join(_list_commands(workspace)) + "\n" + _TAIL


def _list_commands(workspace: Path) -> Iterator[str]:
    found = [command for name, command in _COMMANDS if (workspace / name).is_file()]
    yield from (f"- `{command}`" for command in found or ["the command that tests it"])
