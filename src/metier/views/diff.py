"""What a call changes in a file, as a coloured diff with line numbers. Pure."""

import difflib
import re
from collections.abc import Iterator

from pydantic import JsonValue
from rich.text import Text

from metier.telemetry.sanitize import sanitize
from metier.views.run_view import StepView

MAX_LINES = 80
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_MAX_COMPARED = 2_000
"""Lines; comparing more costs the square of their number."""


def build_diff(before: str, after: str, *, path: str) -> str:
    """A unified diff; empty where nothing differs."""
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > _MAX_COMPARED:
        lines = [f"@@ -1,{len(old)} +1,{len(new)} @@", *(f"-{line}" for line in old), *(f"+{line}" for line in new)]
        return "\n".join([f"--- {path}", f"+++ {path}", *lines])
    return "\n".join(difflib.unified_diff(old, new, path, path, lineterm=""))


def build_step_diff(step: StepView) -> str:
    """What a `Write` or `Edit` changes, as far as its arguments tell; empty for other steps and summarised bodies."""
    given = step.arguments
    if not isinstance(given, dict):
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


def render_diff(unified: str, *, width: int, most: int | None = MAX_LINES) -> list[Text]:
    """One line of the screen per line of the diff; the rest is counted."""
    lines = list(_list_lines(sanitize(unified)))
    shown = lines if most is None else lines[:most]
    rendered = [_fit(text, width) for text in shown]
    if left := len(lines) - len(shown):
        rendered.append(Text(f"… {left:,} more lines of diff", "dim italic"))
    return rendered


def _list_lines(unified: str) -> Iterator[Text]:
    old = new = 0
    for line in unified.splitlines():
        if hunk := _HUNK.match(line):
            old, new = int(hunk[1]), int(hunk[2])
            yield Text(line, "cyan")
        elif line.startswith("--- ") and not old:
            continue
        elif line.startswith("+++ ") and not new:
            yield Text(line[4:], "bold")
        elif line.startswith("+"):
            yield _numbered(new, line, "green")
            new += 1
        elif line.startswith("-"):
            yield _numbered(old, line, "red")
            old += 1
        elif line.startswith("\\"):
            yield Text(f"      {line}", "dim")
        else:
            yield _numbered(new, line, "")
            old, new = old + 1, new + 1


def _numbered(number: int, line: str, style: str) -> Text:
    return Text.assemble((f"{number:>5} ", "dim"), (line.expandtabs(4), style))


def _is_whole(value: JsonValue) -> bool:
    """The event log keeps the beginning of a long value, and says so at its end."""
    return isinstance(value, str) and not (value.endswith("]") and "characters, " in value[-120:])


def _fit(text: Text, width: int) -> Text:
    cut = text[: 4 * width] if len(text) > 4 * width else text
    cut.truncate(width, overflow="ellipsis")
    cut.no_wrap = True
    return cut
