"""`agent validate`: is everything right that a project says about its agents, skills, tasks and rules?"""

import os
from pathlib import Path
from typing import Annotated

import typer

from metier.cli.shared.context import current_workspace, home_folder
from metier.cli.shared.output import count, problem_as_json, warn_line, write_json, write_line
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.definitions.workspace import Checked
from metier.errors import ConfigError, UsageError
from metier.runtime.checks.validation import CheckedFile, Validation, load_host_catalog, validate_workspace
from metier.runtime.host import Host
from metier.settings.resolution import load_settings
from metier.settings.sections import Settings
from metier.skills.trust.workspace_trust import get_trust


def validate(
    path: Annotated[Path, typer.Argument(help="Workspace folder.")] = Path(),
    strict: Annotated[
        bool, typer.Option("--strict", help="Apply the Agent Skills specification to shared skills too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check all definitions of a workspace.

    Exit code 1: there is an error.
    """
    path = current_workspace() if path == Path() else path
    if not path.is_dir():
        raise UsageError(f"Folder {str(path)!r} does not exist", hint="Pass the folder that contains '.agent'")
    root = (path.parent if path.name in WORKSPACE_FOLDERS else path).absolute()
    found, problems = validate_folder(root, strict=strict)
    if as_json:
        write_json([*map(_as_json, found.workspace.checked), *_folders_as_json(found, problems)])
    else:
        _write_text(found, problems)
    return 1 if has_errors([*found.problems, *problems]) else 0


def validate_folder(root: Path, *, strict: bool = False) -> tuple[Validation, tuple[Problem, ...]]:
    """Validate the definitions and settings of a project."""
    home = home_folder()
    settings, problems = _read_settings(root, home)
    trust = get_trust(root, home=home, environ=os.environ)
    host = Host(settings=settings, workspace=root, home=home, environ=dict(os.environ), trust=trust)
    return validate_workspace(host, load_host_catalog(host), strict=strict), problems


def _read_settings(root: Path, home: Path) -> tuple[Settings, tuple[Problem, ...]]:
    """Read the settings; if they are invalid, the rest is checked with the defaults."""
    try:
        loaded = load_settings(flags={}, environ=os.environ, cwd=root, home=home, config=None)
    except ConfigError as error:
        return Settings(), tuple(problem for problem in error.problems if isinstance(problem, Problem))
    return loaded.settings, loaded.warnings


def _as_json(item: Checked) -> dict[str, object]:
    return {
        "path": item.path,
        "kind": item.kind,
        "id": item.id,
        "loaded": item.definition is not None,
        "problems": [located_as_json(problem) for problem in item.problems],
    }


def _folders_as_json(found: Validation, settings: tuple[Problem, ...]) -> list[dict[str, object]]:
    """Files beside the definitions, the settings, and what is wrong with a folder."""
    return [
        *(_file_as_json(file) for file in found.files),
        *(_file_as_json(CheckedFile("settings", problem.file, (problem,))) for problem in settings),
        *(
            {**_file_as_json(CheckedFile("", problem.file, (problem,))), "kind": None}
            for problem in found.workspace.problems
        ),
    ]


def _file_as_json(file: CheckedFile) -> dict[str, object]:
    return {
        "path": file.path,
        "kind": file.kind,
        "id": None,
        "loaded": not has_errors(file.problems),
        "problems": [located_as_json(problem) for problem in file.problems],
    }


def located_as_json(problem: Problem) -> dict[str, object]:
    return {**problem_as_json(problem), "file": problem.file, "hint": problem.hint}


def _write_text(found: Validation, settings: tuple[Problem, ...]) -> None:
    for problem in (*settings, *found.problems):
        write_line(problem.render())
    warn_line(f"Checked {render_counts(found)}")


def render_counts(found: Validation) -> str:
    kinds = [item.kind for item in found.workspace.checked]
    counts = [count(kinds.count(kind), kind) for kind in ("agent", "skill", "task")]
    return ", ".join([*counts, *([count(len(found.files), "other file")] if found.files else [])])
