"""The agents and tasks in a workspace, by ID. Only folders are listed, no files are read."""

from pathlib import Path

from metier.definitions.files.contained_path import is_absent
from metier.definitions.files.walk import FoundDefinition, Walk, report_duplicate
from metier.definitions.names import fold_id
from metier.definitions.problems import Problem
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.errors import ConfigError


def list_definitions(workspace: Path, folder: str, file_name: str) -> dict[str, FoundDefinition]:
    """List definitions of one kind by folded ID. Duplicate IDs are left out, because they are ambiguous."""
    found = _read_all(workspace, folder, file_name)
    return {folded: same[0] for folded, same in found.items() if len(same) == 1}


def list_duplicates(workspace: Path, folder: str, file_name: str) -> tuple[Problem, ...]:
    """List the definitions that `list_definitions` leaves out because another one has the same ID."""
    found = _read_all(workspace, folder, file_name)
    return tuple(report_duplicate(other, first.path) for first, *others in found.values() for other in others)


def check_duplicate(workspace: Path, folder: str, file_name: str, *, id: str) -> None:  # noqa: A002
    """Raise `ConfigError` if two definitions have this ID."""
    same = _read_all(workspace, folder, file_name).get(fold_id(id), [])
    if len(same) > 1:
        problems = [report_duplicate(other, same[0].path) for other in same[1:]]
        raise ConfigError(f"Two {folder} have the ID {same[0].id!r}", hint="Rename one", problems=problems)


def _read_all(workspace: Path, folder: str, file_name: str) -> dict[str, list[FoundDefinition]]:
    listed: dict[str, list[FoundDefinition]] = {}
    for base in WORKSPACE_FOLDERS:
        root = f"{workspace}/{base}/{folder}"
        if is_absent(root):  # fast path: few workspaces have the folder, and each run checks
            continue
        for found in Walk(Path(root), file_name, within=workspace):
            listed.setdefault(fold_id(found.id), []).append(found)
    return listed
