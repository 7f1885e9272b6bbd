"""Workspaces to begin with: they ship as files, and are copied whole or not at all. Nothing is ever replaced."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.nearest import hint_nearest
from metier.definitions.skills.sources import find_bundled_folder
from metier.errors import UsageError

FOLDER = find_bundled_folder() / "templates"
DEFAULT = "starter"
_ABOUT = {
    "starter": "An agent, two skills with scripts, a task of three steps, rules; it runs without a model.",
    "empty": "An agent and a rule, and nothing else.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    name: str
    about: str
    files: tuple[str, ...]
    """Paths below the workspace, sorted."""
    tasks: tuple[str, ...]
    """IDs of the tasks that it brings."""


def list_templates() -> tuple[Template, ...]:
    """The default one first."""
    return tuple(_build(name) for name in _ABOUT)


def get_template(name: str) -> Template:
    """Raises `UsageError` with the nearest name."""
    if name not in _ABOUT:
        hint = hint_nearest(name, _ABOUT) or f"There are: {', '.join(_ABOUT)}"
        raise UsageError(f"No template is called {name!r}", hint=hint)
    return _build(name)


def write_template(template: Template, target: Path, *, replaced: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Copy every file below `target`, with the texts in `replaced` instead of the file's own.

    Raises `UsageError` where one is there already; then nothing is written.
    """
    paths = {file: target / file for file in template.files}
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
            with path.open("xb") as stream:
                written.append(path)
                text = (replaced or {}).get(file)
                stream.write((FOLDER / template.name / file).read_bytes() if text is None else text.encode())
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise UsageError(
            f"'{target}' cannot be written to: {reason}", hint="Nothing was kept; name another folder"
        ) from error
    return tuple(written)


def _build(name: str) -> Template:
    files = tuple(sorted(_list_files(FOLDER / name)))
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
