"""A file change as a colored diff with line numbers. Pure."""

import difflib
import re
from collections.abc import Iterator
from typing import Literal, assert_never

from msgspec import Struct
from pydantic import JsonValue
from rich.cells import chop_cells
from rich.text import Text

from metier.telemetry.amounts import format_count
from metier.telemetry.sanitize import reveal
from metier.views.run_view import StepView
from metier.views.screen_lines import fit, indent

MAX_LINES = 80
_HUNK = re.compile(r"@@ -(?P<old>\d+)(?:,(?P<removed>\d+))? \+(?P<new>\d+)(?:,(?P<added>\d+))? @@")
_MARGIN = 7
"""Width of the line number and the sign."""
_MAX_COMPARED = 2_000
"""Maximum lines to compare: the time grows with the square of their number."""


class DiffLine(Struct, frozen=True):
    kind: Literal["file", "hunk", "added", "removed", "same", "note"]
    number: int
    """Line number in the old file for a removed line, else in the new one; 0 for other lines."""
    text: str
    """The line with its sign."""


def build_diff(before: str, after: str, *, path: str) -> str:
    """Build a unified diff; empty if nothing differs."""
    old, new = before.splitlines(), after.splitlines()
    # Everything removed and everything added is a correct diff, too.
    if max(len(old), len(new)) > _MAX_COMPARED:
        lines = [f"@@ -1,{len(old)} +1,{len(new)} @@", *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
        return "\n".join([f"--- {path}", f"+++ {path}", *lines])
    return "\n".join(difflib.unified_diff(old, new, path, path, lineterm=""))


def build_step_diff(step: StepView) -> str:
    """Return the diff of a `Write` or `Edit` step, as recorded or built from its arguments; empty for others."""
    if step.diff is not None:
        return step.diff
    given = step.arguments
    # A call that did not run changed nothing.
    if not isinstance(given, dict) or step.state not in ("succeeded", "running", "waiting"):
        return ""
    path = str(given.get("path", ""))
    match step.tool:
        case "Write" if _is_whole(content := given.get("content")):
            return build_diff("", str(content), path=path)
        case "Edit":
            old, new = (given.get(name, given.get(f"{name}_string")) for name in ("old", "new"))
            return build_diff(str(old), str(new), path=path) if _is_whole(old) and _is_whole(new) else ""
        case _:
            return ""


def count_changes(step: StepView) -> tuple[int, int]:
    """Count the lines that a step added to and removed from a file; zeros if only a part of its diff is known."""
    unified = build_step_diff(step)
    if step.state != "succeeded" or step.diff_lines > unified.count("\n") + 1:
        return 0, 0
    kinds = [line.kind for line in parse_diff(unified)]
    return kinds.count("added"), kinds.count("removed")


def is_diff(text: str) -> bool:
    """Return True for a unified diff."""
    return text.startswith("--- ") and "\n+++ " in text


def render_change(step: StepView, *, width: int, most: int | None = MAX_LINES, advice: str = "") -> list[Text]:
    """Render the change of a step that wrote a file, below the line that names the file; empty for other steps.

    `advice` tells how to see the omitted lines.
    """
    unified = build_step_diff(step)
    left = max(0, step.diff_lines - unified.count("\n") - 1)
    lines = list(_list_lines(unified, names_file=False))
    return [indent(line) for line in _render_lines(lines, width=width - 2, most=most, left=left, advice=advice)]


def render_diff(unified: str, *, width: int, most: int | None = MAX_LINES) -> list[Text]:
    """Render one screen line per diff line, then the number of further lines."""
    return _render_lines(list(_list_lines(unified, names_file=True)), width=width, most=most)


def _render_lines(lines: list[Text], *, width: int, most: int | None, left: int = 0, advice: str = "") -> list[Text]:
    """Render the lines, then the number of further ones; `left` others are missing."""
    shown = lines if most is None else lines[:most]
    rendered = [fit(text, width) for text in shown]
    if left := left + len(lines) - len(shown):
        rendered.append(fit(_count_left(left, advice), width))
    return rendered


def wrap_diff(unified: str, *, width: int, most: int | None, max_line: int | None, names_file: bool) -> list[Text]:
    """Render a diff that a user decides about: lines are wrapped, and truncated after `max_line` characters."""
    lines = list(_list_lines(unified, names_file=names_file))
    shown = lines if most is None else lines[:most]
    rendered = [piece for text in shown for piece in _wrap(_shorten(text, max_line), width)]
    if left := len(lines) - len(shown):
        rendered.append(_count_left(left))
    return rendered


def _count_left(left: int, advice: str = "") -> Text:
    return Text(f"… {format_count(left, 'more line')} of diff{f'; {advice}' if advice else ''}", "dim italic")


def parse_diff(unified: str) -> Iterator[DiffLine]:
    """Parse a unified diff of any number of files into lines that are safe to show. Other text becomes context."""
    old = new = old_left = new_left = 0
    name = ""
    for line in reveal(unified).splitlines():
        # Inside a hunk, `--- x` is a removed line `-- x`. Only the counts in the hunk's header tell where it ends.
        is_inside = old_left > 0 or new_left > 0
        if hunk := _HUNK.match(line):
            old, new = int(hunk["old"]), int(hunk["new"])
            # A count of one line may be left out.
            old_left, new_left = int(hunk["removed"] or 1), int(hunk["added"] or 1)
            yield DiffLine("hunk", 0, line)
        elif line.startswith("--- ") and not is_inside:
            name = line[4:]
        elif line.startswith("+++ ") and not is_inside:
            yield DiffLine("file", 0, f"{name} (deleted)" if line == "+++ /dev/null" else line[4:])
        elif line.startswith("+"):
            yield DiffLine("added", new, line)
            new, new_left = new + 1, new_left - 1
        elif line.startswith("-"):
            yield DiffLine("removed", old, line)
            old, old_left = old + 1, old_left - 1
        # `\ No newline at end of file`.
        elif line.startswith("\\"):
            yield DiffLine("note", 0, line)
        else:
            yield DiffLine("same", new, line)
            old, new, old_left, new_left = old + 1, new + 1, old_left - 1, new_left - 1


def _list_lines(unified: str, *, names_file: bool) -> Iterator[Text]:
    is_first = True
    for line in parse_diff(unified):
        match line.kind:
            case "hunk":
                # Lines have numbers, so a mark between hunks is enough.
                if not is_first:
                    yield Text("      …", "dim")
                is_first = False
            case "file":
                is_first = True
                if names_file:
                    yield Text(line.text, "bold")
            case "added":
                yield _numbered(line.number, line.text, "green")
            case "removed":
                yield _numbered(line.number, line.text, "red")
            case "note":
                yield Text(f"      {line.text}", "dim")
            case "same":
                yield _numbered(line.number, line.text, "")
            case _:
                assert_never(line.kind)


def _numbered(number: int, line: str, style: str) -> Text:
    return Text.assemble((f"{number:>5} ", "dim"), (line.expandtabs(4), style))


def _is_whole(value: JsonValue) -> bool:
    """The event log keeps the beginning of a long value, and says so at its end."""
    return isinstance(value, str) and not (value.endswith("]") and "characters, " in value[-120:])


def _shorten(text: Text, max_line: int | None) -> Text:
    over = len(text) - max_line if max_line is not None else 0
    return text if over <= 0 else text[:max_line].append(f"… {over:,} more characters; ? shows all", "dim italic")


def _wrap(text: Text, width: int) -> Iterator[Text]:
    """Split a line by screen cells; further lines are indented to the text after the sign."""
    margin, start = "", 0
    while start < len(text) or not start:
        room = max(1, width - len(margin))
        taken = len(next(iter(chop_cells(text.plain[start : start + room], room)), ""))
        line = Text(margin, no_wrap=True)
        line.append_text(text[start : start + taken])
        yield line
        # At least one character, or the loop would not end where a wide one does not fit.
        margin, start = " " * _MARGIN, start + max(1, taken)
