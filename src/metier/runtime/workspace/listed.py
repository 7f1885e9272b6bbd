"""The agents and tasks that stand in a workspace, by id. Reads names, not what is in the files."""

from pathlib import Path

from metier.definitions.duplicates import report_duplicate
from metier.definitions.files.contained_file import is_absent
from metier.definitions.files.walk import FoundDefinition, Walk
from metier.definitions.ids import fold_id
from metier.definitions.problems import Problem
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.errors import ConfigError


def list_definitions(workspace: Path, folder: str, file_name: str) -> dict[str, FoundDefinition]:
    """Definitions of one kind by folded ID. Raises `ConfigError` where two have one ID: either could be meant."""
    listed: dict[str, FoundDefinition] = {}
    problems: list[Problem] = []
    for base in WORKSPACE_FOLDERS:
        root = f"{workspace}/{base}/{folder}"
        if is_absent(root):  # as in most places, and each run asks
            continue
        for found in Walk(Path(root), file_name, within=workspace):
            first = listed.setdefault(fold_id(found.id), found)
            if first is not found:
                problems.append(report_duplicate(found, first.path))
    if problems:
        raise ConfigError(f"The {folder} of this workspace cannot be used", hint="Rename one", problems=problems)
    return listed
