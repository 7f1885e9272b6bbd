"""Steps, their output, notes, waits and the plan as styled lines, never wider than the screen. Pure."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Literal

from msgspec import Struct
from rich.cells import cell_len
from rich.text import Text

from metier.events.task import TaskStepState
from metier.telemetry.amounts import format_count, format_seconds
from metier.telemetry.sanitize import sanitize, sanitize_line
from metier.views.closing import get_seconds
from metier.views.diff import count_changes, render_change
from metier.views.run_view import NoteLevel, NoteView, RunView, StepState, StepView
from metier.views.screen_lines import fit, indent

EXCERPT_LINES = 6
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ICONS: dict[StepState, tuple[str, str]] = {
    "running": ("…", "cyan"),
    "waiting": ("?", "yellow"),
    "succeeded": ("✓", "green"),
    "failed": ("✗", "red"),
    "denied": ("✗", "red"),
    "timeout": ("✗", "red"),
    "skipped": ("-", "dim"),
    "in_doubt": ("?", "yellow"),
}
_WORDS: dict[StepState, str] = {
    "denied": "denied",
    "timeout": "timed out",
    "skipped": "skipped",
    "in_doubt": "in doubt",
    "waiting": "waits for approval",
}
_NOTES: dict[NoteLevel, tuple[str, str]] = {
    "heading": ("▸ ", "bold magenta"),
    "info": ("· ", "dim"),
    "detail": ("· ", "dim"),
    "warning": ("! ", "yellow"),
    "error": ("✗ ", "red"),
    "plan": ("· ", "dim"),
    "user": ("▌ ", "bold"),
}
_COUNTED = frozenset({"Read", "Glob", "Grep", "WebFetch"})
"""Tools that only read: their lines of output are counted. Ctrl-O and `-v` show them."""
_CHANGED = frozenset({"content", "old", "new", "old_string", "new_string"})
"""Arguments that the diff shows."""
_EXIT_CODE = re.compile(r"\[exit code \d+\]")
_LABEL = re.compile(r"\[(?:stderr|stdout)\]")
_INDENT = "    "
_LEAST = 8
_MAX_TASK = 400


def render_step(step: StepView, *, width: int, now: datetime | None = None, frame: int = 0) -> Text:
    """Render `✓ Bash git log --oneline -5   0.2 s`. A running step has a spinner and the time since its start."""
    icon, style = _ICONS[step.state]
    if step.state == "running" and now is not None:
        icon = SPINNER[frame % len(SPINNER)]
    tool = sanitize_line(step.tool)
    extent = _describe_extent(step)
    end = "".join(f"   {part}" for part in _list_end(step, now))
    text = Text.assemble((icon, style), " ", (tool, "bold"))
    room = width - text.cell_len - cell_len(extent) - cell_len(end) - 1
    if step.line and room >= _LEAST:
        text.append(" ")
        text.append(_cut(step.line, room))
    text.append(extent, "dim")
    text.append(end, "dim" if step.state in ("running", "succeeded") else style)
    return fit(text, width)


def is_counted(step: StepView) -> bool:
    """Return True if the line of the step counts its output instead of showing it."""
    return step.tool in _COUNTED and step.state == "succeeded" and _count_lines(step) > 1


def _count_lines(step: StepView) -> int:
    return step.output_lines or step.output.count("\n") + 1


def _describe_extent(step: StepView) -> str:
    """Return `(11 lines)` for a read, `(+2 -1)` for a change."""
    if is_counted(step):
        return f" ({_count_lines(step):,} lines)"
    added, removed = count_changes(step)
    return f" (+{added:,} -{removed:,})" if added or removed else ""


def _list_end(step: StepView, now: datetime | None) -> Iterator[str]:
    if step.attempts > 1:
        yield f"attempt {step.attempts}"
    if step.state == "failed" and step.exit_code:
        yield f"exit {step.exit_code}"
    if word := _WORDS.get(step.state):
        yield word
    # Shorter ones would be shown as 0.0 s.
    if step.is_over and step.duration_ms >= 50:
        yield format_seconds(step.duration_ms / 1000)
    elif step.state == "running" and now is not None and step.started_at is not None:
        yield format_seconds(max(0.0, (now - step.started_at).total_seconds()))


def render_output(step: StepView, *, width: int, most: int | None = EXCERPT_LINES, advice: str = "") -> list[Text]:
    """Render an indented excerpt of the output and the number of omitted lines. `most=None` shows all lines.

    `advice` tells how to see the omitted lines.
    """
    is_bad = step.state in ("failed", "timeout", "denied", "in_doubt")
    shown = step.error if step.error and (step.state == "denied" or not step.output) else step.output
    given = sanitize(shown).splitlines()
    # The line of the step has the exit code already.
    lines = [line for line in given if not _EXIT_CODE.fullmatch(line) and not _LABEL.fullmatch(line)]
    # Of a failure the last lines are shown, and these would take their place.
    while lines and not lines[-1].strip():
        lines.pop()
    # The reason of a failure is usually at the end of the output.
    shown = lines if most is None else lines[-most:] if is_bad else lines[:most]
    total = step.output_lines - (len(given) - len(lines))
    left = max(total, len(lines)) - len(shown) if shown else 0
    style = "red" if is_bad else "dim"
    rendered = [fit(Text(_INDENT + line.expandtabs(4), style), width) for line in shown]
    if left > 0:
        more = format_count(left, "more line") + (f"; {advice}" if advice else "")
        rendered.insert(0 if is_bad else len(rendered), fit(Text(f"{_INDENT}… {more}", "dim italic"), width))
    return rendered


def render_whole_step(step: StepView, *, width: int) -> list[Text]:
    """Render a step with all arguments and all output that the event log has."""
    lines = [render_step(step, width=width)]
    given = step.arguments if isinstance(step.arguments, dict) else {}
    change = render_change(step, width=width, most=None)
    for name, value in given.items():
        if change and name in _CHANGED:
            continue
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        shown = sanitize(f"{name}: {written}").splitlines()
        lines += [
            fit(Text(("  " if at else " ") * 2 + line.expandtabs(4), "cyan"), width) for at, line in enumerate(shown)
        ]
    return [*lines, *change, *render_output(step, width=width, most=None)]


def render_agent(run: RunView, *, width: int, now: datetime | None = None, frame: int = 0) -> Text:
    """Render `✓ spelling Check the notes · 2 steps · 3.0 s` for an active or ended child run."""
    icon, style = ("✗", "red") if run.is_over else (SPINNER[frame % len(SPINNER)] if now else "…", "cyan")
    if run.status == "completed":
        icon, style = "✓", "green"
    steps = sum(step.kind != "control" for each in run.walk() for step in each.steps)
    seconds = get_seconds(run)
    if not run.is_over and now is not None and run.started_at is not None:
        seconds = max(0.0, (now - run.started_at).total_seconds())
    end = f" · {format_count(steps, 'step')} · {format_seconds(seconds)}"
    text = Text.assemble((icon, style), " ", (sanitize_line(run.agent or "agent"), "bold"))
    room = width - text.cell_len - cell_len(end) - 1
    if run.task and room >= _LEAST:
        text.append(f" {_cut(' '.join(sanitize_line(run.task[:_MAX_TASK]).split()), room)}")
    text.append(end, "dim")
    return fit(text, width)


def render_agent_result(run: RunView, *, width: int) -> Iterator[Text]:
    """Render the files that a child run changed, its warnings, and its error."""
    for each in run.walk():
        for item in each.items:
            if isinstance(item, StepView) and count_changes(item) != (0, 0):
                yield indent(render_step(item, width=width - 4), 2)
            elif isinstance(item, NoteView) and item.level in ("warning", "error"):
                yield indent(fit(render_note(item, width=width - 4), width - 4), 2)
    if run.status != "completed" and run.message:
        yield fit(Text(_INDENT + sanitize_line(run.message), "red"), width)


def render_note(note: NoteView, *, width: int) -> Text:
    """Render a note. Warnings are wrapped, because they must be readable in full; others are truncated."""
    mark, style = _NOTES[note.level]
    text = Text(mark + sanitize_line(note.text), style)
    if note.level in ("warning", "error", "user"):
        return text
    if note.level == "heading":
        name, _, why = note.text.partition("  ")
        text = Text.assemble((mark + sanitize_line(name), style), (f"  {sanitize_line(why)}" if why else "", "dim"))
    return fit(text, width)


def render_waiting(view: RunView, *, width: int, now: datetime, frame: int = 0) -> Text | None:
    """Render the pending operation that is not a step: the model, or the next attempt."""
    waiting = view.waiting
    if waiting is None or waiting.kind not in ("model", "retry"):
        return None
    since = max(0.0, (now - waiting.since).total_seconds()) if waiting.since else 0.0
    if waiting.kind == "retry":
        left = max(0.0, waiting.delay_seconds - since)
        said = f"{sanitize_line(waiting.text)}; retrying in {format_seconds(left)}"
    else:
        who = sanitize_line(waiting.text)
        said = f"{f'{who} replies' if view.draft else f'waiting for {who}'}   {format_seconds(since)}"
    return fit(Text.assemble((SPINNER[frame % len(SPINNER)], "cyan"), " ", (said, "dim")), width)


def _cut(text: str, width: int) -> str:
    """Truncate a text with an ellipsis to this width in cells."""
    if cell_len(text) <= width:
        return text
    # Cut by characters first, because measuring the cells of a long line takes too long.
    shown = Text(text[: width + 1])
    shown.truncate(width, overflow="ellipsis")
    return shown.plain


type ItemState = Literal["pending", "in_progress", "done", "dropped", "failed"]

_MARKS: dict[ItemState, tuple[str, str, str]] = {
    "pending": ("☐", "", ""),
    "in_progress": ("▸", "bold cyan", "bold"),
    "done": ("✓", "green", "dim"),
    "dropped": ("-", "dim", "dim strike"),
    "failed": ("✗", "red", ""),
}
"""The mark of each state, its style and the style of the text."""
_TASK_STATES: dict[TaskStepState, ItemState] = {
    "pending": "pending",
    "running": "in_progress",
    "succeeded": "done",
    "failed": "failed",
    "skipped": "dropped",
}
_MARGIN = 2


class ChecklistItem(Struct, frozen=True):
    text: str
    state: ItemState

    @property
    def is_over(self) -> bool:
        return self.state in ("done", "dropped", "failed")


def list_checklist(view: RunView) -> tuple[ChecklistItem, ...]:
    """List the items of the run's plan; empty if it has none."""
    if view.plan:
        return tuple(ChecklistItem(step.step, step.status) for step in view.plan)
    return tuple(ChecklistItem(step.name or step.file, _TASK_STATES[step.state]) for step in view.task_steps)


def render_checklist(items: Sequence[ChecklistItem], *, width: int, room: int | None = None) -> list[Text]:
    """Render one line per item. With `room` for fewer lines, keep those around the item in progress."""
    first, last = 0, len(items)
    if room is not None and len(items) > room:
        # Two lines are for the numbers of items before and after.
        shown = max(1, room - 2)
        current = next((number for number, item in enumerate(items) if not item.is_over), len(items) - 1)
        first = min(max(0, current - 1), len(items) - shown)
        last = first + shown
    lines = [_render_item(item, width) for item in items[first:last]]
    if first:
        lines.insert(0, Text(f"  … {first} before", "dim"))
    if left := len(items) - last:
        lines.append(Text(f"  … {left} more", "dim"))
    return lines


def _render_item(item: ChecklistItem, width: int) -> Text:
    mark, mark_style, style = _MARKS[item.state]
    line = Text.assemble((mark, mark_style), " ", (" ".join(sanitize_line(item.text).split()), style))
    return fit(line, max(_MARGIN, width))
