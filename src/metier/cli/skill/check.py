"""The part of `agent check` about skills: which are active here, what each brings, and why one cannot be loaded."""

import os
import sys
from dataclasses import asdict

import anyio

from metier.cli.shared.output import write_line
from metier.cli.skill.catalog import SkillPlaces
from metier.cli.skill.status import SkillStatus, StatusReport, examine_skills
from metier.definitions.names import canonical_name
from metier.skills.activation import OPT_IN
from metier.telemetry.excerpt import one_line

_MARKS = {"active": "✓", "inactive": "○", "failed": "✗"}
_PLAIN_MARKS = {"active": "[ok]", "inactive": "[--]", "failed": "[!!]"}
_REASON_WIDTH = 200


def check_skills(places: SkillPlaces) -> StatusReport:
    return anyio.run(examine_skills, places, os.environ)


def has_failed(report: StatusReport) -> bool:
    """Whether a skill that should be active cannot be loaded, or is named and not trusted."""
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
    word = "active" if status.active else "inactive"
    if status.reason:
        return f"{marks['failed']} {status.name} ({word}) - Load failed: {one_line(status.reason, _REASON_WIDTH)}"
    counts = f"{_count(status.scripts, 'script')}, {_count(status.toolsets, 'toolset')}"
    sha = f" [{status.short_sha}]" if status.short_sha else ""
    note = f", {status.note}" if status.note else ""
    mark = marks["failed" if status.is_distrusted else word]
    return f"{mark} {status.name} ({word}) - {counts}{sha}{note}"


def find_hint(report: StatusReport, places: SkillPlaces) -> str:
    if not report.skills:
        return "To write one: agent skill create skill-name"
    left_out = [canonical_name(status.name) for status in report.skills if status.is_distrusted]
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


def skill_as_json(status: SkillStatus) -> dict[str, object]:
    state = "failed" if status.reason or status.is_distrusted else "active" if status.active else "inactive"
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
