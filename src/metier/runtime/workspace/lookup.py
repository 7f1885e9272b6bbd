"""Lookup of the agents and tasks in a workspace by ID. Only folders are listed, no files are read."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from metier.definitions import agent, task
from metier.definitions.files.contained_path import is_absent
from metier.definitions.files.walk import FoundDefinition, Walk, report_duplicate
from metier.definitions.names import fold_id
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.skills.skill_names import hint_skill
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.errors import ConfigError, UsageError

type Kind = Literal["agent", "task"]

_FILES: dict[Kind, str] = {"agent": agent.FILE_NAME, "task": task.FILE_NAME}


def list_definitions(workspace: Path, kind: Kind) -> dict[str, FoundDefinition]:
    """List definitions of one kind by folded ID, sorted by ID. Duplicates are left out, because they are ambiguous."""
    found = [(folded, same[0]) for folded, same in _read_all(workspace, kind).items() if len(same) == 1]
    return dict(sorted(found, key=lambda item: item[1].id))


def list_ids(workspace: Path, kind: Kind) -> list[str]:
    return [found.id for found in list_definitions(workspace, kind).values()]


def list_duplicates(workspace: Path, kind: Kind) -> tuple[Problem, ...]:
    """List the definitions that `list_definitions` leaves out because another one has the same ID."""
    found = _read_all(workspace, kind)
    return tuple(report_duplicate(other, first.path) for first, *others in found.values() for other in others)


def get_definition(workspace: Path, kind: Kind, definition_id: str) -> FoundDefinition:
    """Return the definition with this ID. Raises `UsageError` if there is none, `ConfigError` if there are several."""
    same = _read_all(workspace, kind).get(fold_id(definition_id), [])
    if len(same) == 1:
        return same[0]
    if same:
        problems = [report_duplicate(other, same[0].path) for other in same[1:]]
        raise ConfigError(f"Two {kind}s have the ID {same[0].id!r}", hint="Rename one", problems=problems)
    known = list_ids(workspace, kind)
    there = f"Available: {', '.join(known)}" if known else f"Create '.agent/{kind}s/{definition_id}/{_FILES[kind]}'"
    raise UsageError(f"No {kind} is called {definition_id!r}", hint=hint_nearest(definition_id, known) or there)


def describe_unknown(kind: str, name: str, known: Iterable[str], *, file: str, line: int) -> Problem:
    """Describe a reference in a definition to an agent, a task, a skill or a tool that doesn't exist."""
    hint = hint_skill if kind == "skill" else hint_nearest
    return Problem(
        severity="error",
        code=f"unknown_{kind}",
        message=f"No {kind} is called {name!r}",
        file=file,
        line=line,
        hint=hint(name, tuple(known)) or f"Add the {kind}, or take the name out",
    )


def _read_all(workspace: Path, kind: Kind) -> dict[str, list[FoundDefinition]]:
    listed: dict[str, list[FoundDefinition]] = {}
    for base in WORKSPACE_FOLDERS:
        root = f"{workspace}/{base}/{kind}s"
        if is_absent(root):  # fast path: few workspaces have the folder, and each run checks
            continue
        for found in Walk(Path(root), _FILES[kind], within=workspace):
            listed.setdefault(fold_id(found.id), []).append(found)
    return listed
