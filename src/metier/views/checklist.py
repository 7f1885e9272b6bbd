"""A run's plan as a checklist: the steps that the model wrote down, or those of a task definition. Pure."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from rich.text import Text

from metier.events.task import TaskStepState
from metier.telemetry.sanitize import sanitize_line
from metier.views.run_view import RunView

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
        # Two lines count the items left out before and after.
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
    line = line[: 4 * width]
    line.truncate(max(_MARGIN, width), overflow="ellipsis")
    line.no_wrap = True
    return line
