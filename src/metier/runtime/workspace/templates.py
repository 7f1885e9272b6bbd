"""Files of a new workspace: templates, which are copied completely or not at all, and a first `AGENTS.md`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from metier.definitions.nearest import hint_nearest
from metier.definitions.project_files import NAMES
from metier.definitions.skills.sources import get_bundled_folder
from metier.errors import UsageError

TEMPLATES_FOLDER = get_bundled_folder() / "templates"
DEFAULT = "starter"
_ABOUT = {
    "starter": "An agent, two skills with scripts, a task with three steps, and rules. Runs without a model.",
    "empty": "Only an agent and a rule.",
}

_PROJECT_FILE_HEAD = """# Instructions for agents

<!-- Every run in this folder reads this file, as do other tools that support AGENTS.md. Keep it short. -->

## What this is

One or two sentences: what the project does, and for whom.

## How to check a change

"""
_PROJECT_FILE_TAIL = """
## Conventions

- List what newcomers get wrong: names, style, files that must not change.
- Import longer texts on a line of their own, such as `@docs/style.md`, and remove this line.
"""
_COMMANDS = (
    ("pyproject.toml", "python -m pytest"),
    ("package.json", "npm test"),
    ("Cargo.toml", "cargo test"),
    ("go.mod", "go test ./..."),
    ("Makefile", "make"),
)


class Template(Struct, frozen=True, kw_only=True):
    name: str
    about: str
    files: tuple[str, ...]
    """Paths below the workspace, sorted."""
    tasks: tuple[str, ...]
    """IDs of its tasks."""


def list_templates() -> tuple[Template, ...]:
    """List the templates, the default one first."""
    return tuple(_build(name) for name in _ABOUT)


def get_template(name: str) -> Template:
    """Return a template. Raises `UsageError` with the nearest name."""
    if name not in _ABOUT:
        hint = hint_nearest(name, _ABOUT) or f"Available: {', '.join(_ABOUT)}"
        raise UsageError(f"No template is called {name!r}", hint=hint)
    return _build(name)


def write_template(template: Template, target: Path, *, replaced: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Copy every file to `target`; texts in `replaced` replace the file's own.

    Raises `UsageError` if a file exists already; then nothing is written.
    """
    paths = {file: target / file for file in template.files}
    # A link counts even if it leads nowhere: writing through it would create a file elsewhere.
    taken = [path for path in paths.values() if os.path.lexists(path)]
    if taken:
        more = f", and {len(taken) - 1} more" if taken[1:] else ""
        raise UsageError(
            f"'{taken[0]}' exists{more}",
            hint="Nothing was written: `agent init` replaces no file; name another folder, or move it away",
        )
    written: list[Path] = []
    try:
        for file, path in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            # "x", because another program may create the file after the check above.
            with path.open("xb") as stream:
                written.append(path)
                text = (replaced or {}).get(file)
                stream.write((TEMPLATES_FOLDER / template.name / file).read_bytes() if text is None else text.encode())
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise UsageError(
            f"'{target}' cannot be written to: {reason}", hint="Nothing was kept; name another folder"
        ) from error
    return tuple(written)


def _build(name: str) -> Template:
    files = tuple(sorted(_list_files(TEMPLATES_FOLDER / name)))
    tasks = [Path(file) for file in files if file.endswith("/TASK.md")]
    return Template(
        name=name,
        about=_ABOUT[name],
        files=files,
        tasks=tuple(task.parent.relative_to(".agent/tasks").as_posix() for task in tasks),
    )


def _list_files(root: Path) -> Iterator[str]:
    for folder, folders, names in root.walk():
        folders[:] = [each for each in folders if each != "__pycache__"]
        yield from ((folder / name).relative_to(root).as_posix() for name in names)


def write_project_file(workspace: Path) -> Path | None:
    """Write the file and return its path; None if the folder has one. Raises `OSError`."""
    if any(os.path.lexists(workspace / name) for name in NAMES):
        return None
    file = workspace / NAMES[0]
    with file.open("x", encoding="utf-8") as stream:
        found = [command for name, command in _COMMANDS if (workspace / name).is_file()]
        lines = "".join(f"- `{command}`\n" for command in found or ["the command that tests it"])
        stream.write(_PROJECT_FILE_HEAD + lines + _PROJECT_FILE_TAIL)
    return file
