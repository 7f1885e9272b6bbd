"""A run in CI: grouped log lines, a summary in Markdown, test results as JUnit XML.

Everything is rendered from the view, whose texts have no secrets and control characters.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TextIO
from xml.etree import ElementTree as ET

from metier.events.record import EventRecord
from metier.providers.base import Delta
from metier.telemetry.amounts import format_cost
from metier.views.fold import fold
from metier.views.run_view import NoteView, RunView, StepView, TextView

# Compiled on first use: this character class takes 5 ms.
_NOT_XML = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_MARKS = {"succeeded": "ok", "running": "…", "waiting": "waits"}
# GitHub accepts at most 1 MiB of summary.
_MAX_STEPS = 200


class GroupMarks(NamedTuple):
    """Markers that group lines in a CI system: `{n}` is a number, `{title}` a heading, `{now}` the time."""

    begin: str
    end: str


GITHUB = GroupMarks("::group::{title}", "::endgroup::")
# GitLab only recognizes its markers with these control sequences around them.
GITLAB = GroupMarks(
    "\x1b[0Ksection_start:{now}:agent_{n}[collapsed=false]\r\x1b[0K{title}",
    "\x1b[0Ksection_end:{now}:agent_{n}\r\x1b[0K",
)
PLAIN = GroupMarks("--- {title}", "")


def get_marks(environ: Mapping[str, str]) -> GroupMarks:
    if environ.get("GITHUB_ACTIONS") == "true":
        return GITHUB
    return GITLAB if environ.get("GITLAB_CI") == "true" else PLAIN


class CiLog:
    """A sink that prints a group per turn and a line per step, without colors and redrawing."""

    def __init__(self, stream: TextIO, marks: GroupMarks) -> None:
        self.view = RunView()
        self._stream = stream
        self._marks = marks
        self._printed: dict[str, int] = {}
        self._group: tuple[str, int] | None = None
        self._count = 0

    def write(self, record: EventRecord) -> None:
        self.view = fold(self.view, record)
        run = self.view.find_child(record.run_id)
        if run is None:
            return
        if record.turn and (record.run_id, record.turn) != self._group:
            self._open(run, record)
        for line in self._list_new(run):
            self._print(line)

    def observe(self, delta: Delta) -> None:
        """Do nothing: replies are printed when they are complete."""
        del delta

    def close(self) -> None:
        if self._group is not None:
            self._end(self.view)
        self._stream.flush()

    def _open(self, run: RunView, record: EventRecord) -> None:
        if self._group is not None:
            self._end(run)
        self._group, self._count = (record.run_id, record.turn), self._count + 1
        who = "" if run.run_id == self.view.run_id else f"{run.agent or run.run_id}: "
        title = f"{who}Turn {record.turn}" + (f" ({run.skill})" if run.skill else "")
        self._print(self._marks.begin.format(n=self._count, title=title, now=_seconds(run)))

    def _end(self, run: RunView) -> None:
        self._group = None
        if self._marks.end:
            self._print(self._marks.end.format(n=self._count, now=_seconds(run)))

    def _list_new(self, run: RunView) -> Iterable[str]:
        """Print items in order, up to the first one that still runs."""
        number = self._printed.get(run.run_id, 0)
        while number < len(run.items):
            item = run.items[number]
            if isinstance(item, StepView) and not item.is_over:
                break
            number += 1
            yield from _render_item(item)
        self._printed[run.run_id] = number

    def _print(self, line: str) -> None:
        # Flushed, because a CI system shows the log while the run works.
        self._stream.write(f"{line}\n")
        self._stream.flush()


def _seconds(run: RunView) -> int:
    return int(run.updated_at.timestamp()) if run.updated_at is not None else 0


def _render_item(item: StepView | TextView | NoteView) -> Iterable[str]:
    match item:
        case StepView():
            if item.kind == "control" and item.state == "succeeded":
                return
            yield f"{_MARKS.get(item.state, item.state)}: {item.tool} {item.line}".rstrip()
            yield from (f"    {_quote(line)}" for line in (item.error or item.output).splitlines())
        case NoteView():
            if item.level != "detail":
                yield f"{'warning: ' if item.level in ('warning', 'error') else ''}{_quote(item.text)}"
        case TextView():
            yield from map(_quote, item.text.splitlines())


def _quote(line: str) -> str:
    """Escape text of a model or a program that the CI system would read as a command."""
    return f" {line}" if line.lstrip().startswith("::") or "##[" in line else line


def render_summary(view: RunView, *, result: str, advice: Iterable[str] = ()) -> str:
    """Render a summary in Markdown: status, answer, steps, usage."""
    usage = view.total_usage
    lines = [f"## {_cell(view.task)[:120] or 'Run'}", ""]
    lines.append(
        f"**{view.status}** · {view.total_turns} turns · {usage.input_tokens:,} in · {usage.output_tokens:,} out · "
        f"{format_cost(usage.known_cost_usd)} · {view.duration_ms / 1000:.1f} s · run `{view.run_id}`"
    )
    if view.message:
        lines += ["", f"> {_cell(view.message)}"]
    if result.strip():
        lines += ["", result.strip()]
    steps = [(run, step) for run in view.walk() for step in run.steps if step.kind != "control"]
    if steps:
        lines += ["", f"<details><summary>{len(steps)} steps</summary>", "", "| step | tool | state |", "|---|---|---|"]
        lines += [
            f"| {step.step_id} | {_cell(step.tool)} {_code(step.line)} | {step.state} |"
            for _, step in steps[:_MAX_STEPS]
        ]
        lines += ["", "</details>"]
    lines += ["", *(f"- {line}" for line in advice)] if advice else []
    return "\n".join(lines).rstrip() + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _code(text: str) -> str:
    shown = " ".join(text.split()).replace("`", "'").replace("|", "\\|")[:160]
    return f"`{shown}`" if shown else ""


class CaseResult(NamedTuple):
    """One test case: a run, or a step of a task."""

    name: str
    state: str
    """`succeeded` or `failed`; other states count as skipped."""
    message: str = ""
    seconds: float = 0.0


def list_cases(view: RunView) -> list[CaseResult]:
    """List a case for each step of the task; a run without a task is one case."""
    if not view.task_steps:
        state = "succeeded" if view.status == "completed" else "failed" if view.is_over else view.status
        return [CaseResult(view.task or view.run_id, state, view.message, view.duration_ms / 1000)]
    return [CaseResult(step.name or step.file, step.state, step.message) for step in view.task_steps]


def render_junit(cases: Iterable[CaseResult], *, suite: str, run_id: str) -> str:
    """Render JUnit XML for CI systems."""
    found = list(cases)
    # This module only writes XML; it never parses any, so entities of hostile files are no risk.
    root = ET.Element("testsuites")
    failed = sum(case.state == "failed" for case in found)
    skipped = sum(case.state not in ("failed", "succeeded") for case in found)
    attributes = {
        "name": _clean(suite)[:200],
        "tests": str(len(found)),
        "failures": str(failed),
        "skipped": str(skipped),
    }
    element = ET.SubElement(root, "testsuite", attributes)
    for case in found:
        each = ET.SubElement(
            element, "testcase", {"name": _clean(case.name)[:200], "classname": run_id, "time": f"{case.seconds:.3f}"}
        )
        if case.state == "failed":
            ET.SubElement(each, "failure", {"message": _clean(case.message)[:500]}).text = _clean(case.message)
        elif case.state != "succeeded":
            ET.SubElement(each, "skipped", {"message": _clean(case.message or case.state)[:500]})
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _clean(text: str) -> str:
    return re.sub(_NOT_XML, "", text)
