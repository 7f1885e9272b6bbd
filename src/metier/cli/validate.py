"""`agent validate`: are the definitions of a project right, and does everything they name exist?"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from metier.capabilities.check import check_capability
from metier.cli.context import current_settings, home_folder
from metier.cli.output import problem_as_json, warn_line, write_json, write_line
from metier.definitions.catalog import load_catalog
from metier.definitions.catalog_cache import find_cache_folder
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skill import SkillDefinition
from metier.definitions.sources import WORKSPACE_FOLDERS, build_search_path
from metier.definitions.workspace import Checked, Workspace, load_workspace
from metier.errors import UsageError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def validate(
    path: Annotated[Path, typer.Argument(help="The project folder.")] = Path(),
    strict: Annotated[
        bool, typer.Option("--strict", help="Hold shared skills to the Agent Skills specification too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON.")] = False,
) -> int:
    """Check the agents, skills and tasks of a project, and that the agents, skills, tasks and steps they name exist.

    The exit code is 1 when there is an error.
    """
    if not path.is_dir():
        raise UsageError(f"Folder {str(path)!r} does not exist", hint="Give the project folder, the one with '.agent'")
    root = path.parent if path.name in WORKSPACE_FOLDERS else path
    home = home_folder()
    sources = build_search_path(root, home=home, skills_dir=root / current_settings(None, {}).settings.skills.dir)
    catalog = load_catalog(sources, cache_folder=find_cache_folder(os.environ, home=home))
    found = load_workspace(root, catalog, strict=strict)
    workspace = replace(found, checked=tuple(_with_contract(item, strict=strict) for item in found.checked))
    if as_json:
        write_json(_as_json(workspace))
    else:
        _write_text(workspace)
    return 1 if has_errors(_every_problem(workspace)) else 0


def _with_contract(item: Checked, *, strict: bool) -> Checked:
    """What a skill promises is checked too, and whether its code can keep it."""
    if not isinstance(item.definition, SkillDefinition):
        return item
    promised = check_capability(item.definition, strict=strict)
    return replace(item, problems=(*item.problems, *promised)) if promised else item


def _every_problem(workspace: Workspace) -> list[Problem]:
    return [*workspace.problems, *(problem for item in workspace.checked for problem in item.problems)]


def _as_json(workspace: Workspace) -> list[dict[str, object]]:
    files = [_checked_as_json(item) for item in workspace.checked]
    folders: list[dict[str, object]] = [
        {"path": problem.file, "kind": None, "id": None, "loaded": False, "problems": [problem_as_json(problem)]}
        for problem in workspace.problems
    ]
    return [*files, *folders]


def _checked_as_json(item: Checked) -> dict[str, object]:
    return {
        "path": item.path,
        "kind": item.kind,
        "id": item.id,
        "loaded": item.definition is not None,
        "problems": [problem_as_json(problem) for problem in item.problems],
    }


def _write_text(workspace: Workspace) -> None:
    for problem in _every_problem(workspace):
        write_line(problem.render())
    counts = [sum(item.kind == kind for item in workspace.checked) for kind in ("agent", "skill", "task")]
    warn_line("Checked {} agents, {} skills and {} tasks".format(*counts))
