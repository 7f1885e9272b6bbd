"""`agent check`: check settings, skills, agents, tasks and rules, all at once or one kind by a subcommand."""

import os
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer
from msgspec import to_builtins

from metier.cli.config import validate as validate_settings
from metier.cli.policy import CheckedRules, render_rules, try_examples, try_rules
from metier.cli.shared.command_options import AsJson, CommandGroup, SkillsDir
from metier.cli.shared.context import current_file, current_workspace, home_folder
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import located_as_json, warn_line, write_json, write_line
from metier.cli.skill.skill_status import SkillStatus, StatusReport, examine_skills
from metier.cli.skill.workspace_skills import SkillPlaces, build_places
from metier.cli.task import validate as validate_tasks
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, has_errors
from metier.definitions.skills.sources import WORKSPACE_FOLDERS
from metier.definitions.workspace import Checked
from metier.errors import ConfigError, UsageError
from metier.runtime.host import Host
from metier.runtime.validation import CheckedFile, Validation, load_host_catalog, validate_workspace
from metier.settings.resolution import load_settings
from metier.settings.sections import Settings
from metier.skills.activation import OPT_IN
from metier.skills.workspace_trust import get_trust
from metier.telemetry.amounts import format_count
from metier.telemetry.excerpt import one_line

_MARKS = {"active": "✓", "inactive": "○", "failed": "✗"}
_PLAIN_MARKS = {"active": "[ok]", "inactive": "[--]", "failed": "[!!]"}
_REASON_WIDTH = 200


def has_failed(report: StatusReport) -> bool:
    """Return True if a skill that should be active can't be loaded, or is not trusted."""
    if any(problem.code == "registry_unusable" for problem in report.problems):
        return True
    return any((status.active and status.reason) or status.is_distrusted for status in report.skills)


def write_skills(report: StatusReport) -> None:
    marks = _MARKS if _can_show("".join(_MARKS.values())) else _PLAIN_MARKS
    if not report.skills:
        write_line("Skills: none")
        return
    write_line("Skills:")
    for status in report.skills:
        write_line(f"  {render_status(status, marks)}")


def render_status(status: SkillStatus, marks: dict[str, str]) -> str:
    """`✓ kalshi-markets (active) - 10 scripts, 0 toolsets [abc123de]`"""
    name, word = status.id or status.name, "active" if status.active else "inactive"
    if status.reason:
        return f"{marks['failed']} {name} ({word}) - Load failed: {one_line(status.reason, _REASON_WIDTH)}"
    counts = f"{format_count(status.scripts, 'script')}, {format_count(status.toolsets, 'toolset')}"
    sha = f" [{status.short_sha}]" if status.short_sha else ""
    note = f", {status.note}" if status.note else ""
    mark = marks["failed" if status.is_distrusted else word]
    return f"{mark} {name} ({word}) - {counts}{sha}{note}"


def get_hint(report: StatusReport, places: SkillPlaces) -> str:
    if not report.skills:
        return "To create a skill: agent skills create NAME"
    left_out = [canonical_name(status.name) for status in report.skills if status.is_distrusted]
    if left_out:
        return f"Review it, then run: agent skills trust {left_out[0]}"
    closed = [status for status in report.skills if not status.active and not status.reason and not status.note]
    names = [canonical_name(status.name) for status in closed if status.source in OPT_IN]
    if not names:
        return ""
    known = {canonical_name(status.name) for status in report.skills if status.path}
    named = () if isinstance(places.selection, str) else places.selection
    enabled = [name for name in named if canonical_name(name) in known]
    return f"To enable: export AGENT_SKILLS={','.join([*enabled, names[0]])}"


def skill_as_json(status: SkillStatus) -> dict[str, object]:
    state = "failed" if status.reason or status.is_distrusted else "active" if status.active else "inactive"
    return {**to_builtins(status), "state": state, "sha": status.short_sha or None}


def _can_show(text: str) -> bool:
    """Return True if the output's encoding has these characters."""
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def validate(
    path: Annotated[Path, typer.Argument(help="Workspace folder.")] = Path(),
    strict: Annotated[
        bool, typer.Option("--strict", help="Apply the Agent Skills specification to shared skills too.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Check all definitions of a workspace.

    Exit code 1: there is an error.
    """
    path = current_workspace() if path == Path() else path
    if not path.is_dir():
        raise UsageError(f"Folder {str(path)!r} does not exist", hint="Pass the folder that contains '.agent'")
    root = (path.parent if path.name in WORKSPACE_FOLDERS else path).absolute()
    host, problems = _open_folder(root)
    found = validate_workspace(host, load_host_catalog(host), strict=strict)
    if as_json:
        write_json([*map(_as_json, found.workspace.checked), *_folders_as_json(found, problems)])
    else:
        _write_validation(found, problems)
    return 1 if has_errors([*found.problems, *problems]) else 0


def _open_folder(root: Path) -> tuple[Host, tuple[Problem, ...]]:
    """Open a project, with the problems of its settings. If they are invalid, the rest is checked with the defaults."""
    home = home_folder()
    try:
        loaded = load_settings(flags={}, environ=os.environ, cwd=root, home=home, config=None)
    except ConfigError as error:
        settings, trust = Settings(), get_trust(root, home=home, environ=os.environ)
        problems = _list_problems(error, code="bad_settings")
    else:
        settings, trust, problems = loaded.settings, loaded.trust, loaded.warnings
    return Host(settings=settings, workspace=root, home=home, environ=dict(os.environ), trust=trust), problems


def _list_problems(error: ConfigError, *, code: str) -> tuple[Problem, ...]:
    located = tuple(problem for problem in error.problems if isinstance(problem, Problem))
    return located or (Problem(severity="error", code=code, message=error.message, hint=error.hint),)


def _as_json(item: Checked) -> dict[str, object]:
    return {
        "path": item.path,
        "kind": item.kind,
        "id": item.id,
        "loaded": item.definition is not None,
        "problems": [located_as_json(problem) for problem in item.problems],
    }


def _folders_as_json(found: Validation, settings: tuple[Problem, ...]) -> list[dict[str, object]]:
    """List the other checked files, the settings, and problems of folders."""
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


def _write_validation(found: Validation, settings: tuple[Problem, ...]) -> None:
    for problem in (*settings, *found.problems):
        write_line(problem.render())
    warn_line(f"Checked {render_counts(found)}")


def render_counts(found: Validation) -> str:
    kinds = [item.kind for item in found.workspace.checked]
    counts = [format_count(kinds.count(kind), kind) for kind in ("agent", "skill", "task")]
    return ", ".join([*counts, *([format_count(len(found.files), "other file")] if found.files else [])])


app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, add_completion=False)
app.command("workspace")(validate)
app.command("settings")(validate_settings)
app.command("tasks")(validate_tasks)
app.command("rules")(try_examples)


@app.callback(invoke_without_command=True)
def check(ctx: typer.Context, *, skills_dir: SkillsDir = None, as_json: AsJson = False) -> int:
    """Check settings, skills, agents, tasks and rules.

    Exit codes: 1 if a skill, definition or rule is invalid, 2 if the settings are.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    host, settings = _open_folder(current_workspace())
    is_invalid = has_errors(settings)
    places = build_places(skills_dir, host.settings, host.trust)
    skills = anyio.run(examine_skills, places, os.environ)
    found = validate_workspace(host, load_host_catalog(host))
    # Opening the host prints the warnings about valid settings.
    rules, broken = _try_rules(host if is_invalid else open_host(None))
    problems = [*(settings if is_invalid else ()), *found.problems]
    problems += [problem for problem in broken if problem not in problems]
    failed = has_failed(skills) or has_errors(problems)
    exit_code = UsageError.exit_code if is_invalid else 1 if failed else 0
    if as_json:
        write_json(
            {
                "skills": [skill_as_json(status) for status in skills.skills],
                "settings": str(current_file(None) or "") or None,
                "problems": [located_as_json(problem) for problem in (*skills.problems, *problems)],
                "rules": rules._asdict() if rules else None,
                "ok": not failed,
            }
        )
        return exit_code
    write_skills(skills)
    note = " is invalid; the rest is checked with the defaults" if is_invalid else ""
    write_line(f"Settings: {current_file(None) or 'defaults'}{note}")
    write_line(f"Workspace: {render_counts(found)}")
    write_line(f"Rules: {render_rules(rules)}" if rules else "Rules: invalid")
    for problem in (*skills.problems, *problems):
        warn_line(problem.render())
    if hint := get_hint(skills, places):
        warn_line(f"hint: {hint}")
    return exit_code


def _try_rules(host: Host) -> tuple[CheckedRules | None, tuple[Problem, ...]]:
    try:
        return try_rules(host), ()
    except ConfigError as error:
        return None, _list_problems(error, code="bad_rules")
