"""`agent check`, also `agent --check`: everything that can be wrong here, by the checks of the other commands."""

import os
import sys

import anyio
import typer
from msgspec import to_builtins

from metier.cli.config import validate as validate_settings
from metier.cli.policy import CheckedRules, render_rules, try_examples, try_rules
from metier.cli.shared.context import current_file, current_workspace
from metier.cli.shared.open_host import open_host
from metier.cli.shared.options import AsJson, CommandGroup, SkillsDir
from metier.cli.shared.output import count, warn_line, write_json, write_line
from metier.cli.skill.skill_status import SkillStatus, StatusReport, examine_skills
from metier.cli.skill.workspace_skills import SkillPlaces, open_places
from metier.cli.task.command import validate as validate_tasks
from metier.cli.validate import located_as_json, render_counts, validate, validate_folder
from metier.definitions.names import canonical_name
from metier.definitions.problems import Problem, has_errors
from metier.errors import ConfigError
from metier.skills.activation import OPT_IN
from metier.telemetry.excerpt import one_line

_MARKS = {"active": "✓", "inactive": "○", "failed": "✗"}
_PLAIN_MARKS = {"active": "[ok]", "inactive": "[--]", "failed": "[!!]"}
_REASON_WIDTH = 200


def check_skills(places: SkillPlaces) -> StatusReport:
    return anyio.run(examine_skills, places, os.environ)


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
    counts = f"{count(status.scripts, 'script')}, {count(status.toolsets, 'toolset')}"
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
    places = open_places(skills_dir)
    skills = check_skills(places)
    found, _ = validate_folder(current_workspace())
    held, broken = _try_rules()
    problems = [*found.problems, *(problem for problem in broken if problem not in found.problems)]
    failed = has_failed(skills) or has_errors(problems)
    if as_json:
        write_json(
            {
                "skills": [skill_as_json(status) for status in skills.skills],
                "settings": str(current_file(None) or "") or None,
                "problems": [located_as_json(problem) for problem in (*skills.problems, *problems)],
                "rules": held._asdict() if held else None,
                "ok": not failed,
            }
        )
        return 1 if failed else 0
    write_skills(skills)
    write_line(f"Settings: {current_file(None) or 'defaults'}")
    write_line(f"Workspace: {render_counts(found)}")
    write_line(f"Rules: {render_rules(held)}" if held else "Rules: invalid")
    for problem in (*skills.problems, *problems):
        warn_line(problem.render())
    if hint := get_hint(skills, places):
        warn_line(f"hint: {hint}")
    return 1 if failed else 0


def _try_rules() -> tuple[CheckedRules | None, list[Problem]]:
    try:
        return try_rules(open_host(None)), []
    except ConfigError as error:
        located = [problem for problem in error.problems if isinstance(problem, Problem)]
        return None, located or [Problem(severity="error", code="bad_rules", message=error.message, hint=error.hint)]
