"""`agent check`, also `agent --check`: which skills are active here, what each brings, and why one cannot be loaded."""

import os
import sys
from dataclasses import asdict

import anyio
import typer

from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.catalog import AsJson, SkillPlaces, SkillsDir, open_places
from metier.cli.skill.status import SkillStatus, StatusReport, examine_skills
from metier.definitions.names import canonical_name
from metier.skills.activation import OPT_IN
from metier.telemetry.excerpt import one_line

app = typer.Typer(rich_markup_mode=None, add_completion=False)

_MARKS = {"active": "✓", "inactive": "○", "failed": "✗"}
_PLAIN_MARKS = {"active": "[ok]", "inactive": "[--]", "failed": "[!!]"}
_REASON_WIDTH = 200


@app.command()
def check(skills_dir: SkillsDir = None, as_json: AsJson = False) -> int:
    """Say which skills are active here, what each brings, and why one cannot be loaded. Calls no model.

    The exit code is 1 when an active skill cannot be loaded.
    """
    places = open_places(skills_dir)
    report = anyio.run(examine_skills, places, os.environ)
    if as_json:
        write_json({"skills": [_as_json(status) for status in report.skills]})
    else:
        _write(report)
    for problem in report.problems:
        warn_line(problem.render())
    if not as_json and (hint := _find_hint(report, places)):
        warn_line(hint)
    return 1 if any(status.active and status.reason for status in report.skills) else 0


def _write(report: StatusReport) -> None:
    marks = _MARKS if _can_show("".join(_MARKS.values())) else _PLAIN_MARKS
    if not report.skills:
        write_line("Skills: none")
        return
    write_line("Skills:")
    for status in report.skills:
        write_line(f"  {render_status(status, marks)}")


def render_status(status: SkillStatus, marks: dict[str, str]) -> str:
    """`✓ kalshi-markets (active) - 10 scripts, 0 toolsets [abc123de]`"""
    word = "active" if status.active else "inactive"
    if status.reason:
        return f"{marks['failed']} {status.name} ({word}) - Load failed: {one_line(status.reason, _REASON_WIDTH)}"
    counts = f"{_count(status.scripts, 'script')}, {_count(status.toolsets, 'toolset')}"
    sha = f" [{status.short_sha}]" if status.short_sha else ""
    note = f", {status.note}" if status.note else ""
    return f"{marks[word]} {status.name} ({word}) - {counts}{sha}{note}"


def _find_hint(report: StatusReport, places: SkillPlaces) -> str:
    if not report.skills:
        return "To write one: agent skill create skill-name"
    left_out = [canonical_name(status.name) for status in report.skills if status.active and status.is_distrusted]
    if left_out:
        return f"Review it, then run: agent skill trust {left_out[0]}"
    closed = [status for status in report.skills if not status.active and not status.reason and not status.note]
    names = [canonical_name(status.name) for status in closed if status.source in OPT_IN]
    if not names:
        return ""
    known = {canonical_name(status.name) for status in report.skills if status.path}
    named = () if isinstance(places.selection, str) else places.selection
    kept = [name for name in named if canonical_name(name) in known]
    return f"To enable: export AGENT_SKILLS={','.join([*kept, names[0]])}"


def _as_json(status: SkillStatus) -> dict[str, object]:
    state = "failed" if status.reason else "active" if status.active else "inactive"
    return {**asdict(status), "state": state, "sha": status.short_sha or None}


def _can_show(text: str) -> bool:
    """Whether the terminal, or the program that reads instead of one, takes these characters."""
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
