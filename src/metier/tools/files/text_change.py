"""The change that a `Write` or `Edit` makes to a text: an exact replacement, and a preview of it as a diff.

Changes no file.
"""

import difflib
from collections.abc import Sequence

from msgspec import Struct
from pydantic import JsonValue
from rapidfuzz import fuzz, process

from metier.errors import ToolFailed
from metier.tools.files.file_replacement import hash_bytes, read_target
from metier.tools.files.file_text import decode, name_kind, overlay
from metier.tools.files.scope import Scope

_SHOWN_LINES = 5
_SHOWN_CHARACTERS = 160
_SEARCHED_LINES = 20_000
_MIN_SIMILARITY = 55.0
_MAX_COMPARED = 500
"""Characters of a line that are compared: lines of files may have millions."""


class Edited(Struct, frozen=True):
    text: str
    lines: tuple[int, ...]
    """Line numbers of the replaced texts, counted from 1."""


def replace_exactly(text: str, old: str, new: str, *, every: bool) -> Edited:
    """Raises `ToolFailed` when `old` is not there, or is there more than once and `every` is not set.

    In a file with Windows line ends, a plain line end in `old` and `new` means that of the file.
    """
    if not old:
        raise ToolFailed("The old text is empty", hint="Use Write to create a file", code="invalid_input")
    if old == new:
        raise ToolFailed("The old and the new text are the same", code="invalid_input")
    if _has_windows_lines(text):
        old, new = _to_windows(old), _to_windows(new)
    places = _list_all(text, old)
    if not places:
        raise ToolFailed(f"The old text is not in the file{_describe_nearest(text, old)}", code="not_found")
    lines = _count_lines(text, places)
    if len(places) > 1 and not every:
        where = ", ".join(map(str, lines[:_SHOWN_LINES])) + (", …" if len(places) > _SHOWN_LINES else "")
        raise ToolFailed(
            f"The old text occurs {len(places)} times, on lines {where}",
            hint="Give more of the text around it, or set replace_all",
            code="ambiguous",
        )
    return Edited(text.replace(old, new), lines)


def _list_all(text: str, old: str) -> list[int]:
    places: list[int] = []
    place = text.find(old)
    while place >= 0:
        places.append(place)
        place = text.find(old, place + len(old))
    return places


def _count_lines(text: str, places: list[int]) -> tuple[int, ...]:
    lines: list[int] = []
    line, behind = 1, 0
    for place in places:
        line += text.count("\n", behind, place)
        behind = place
        lines.append(line)
    return tuple(lines)


def _has_windows_lines(text: str) -> bool:
    """Only where every line ends so: in a mixed file a plain line end is what it says."""
    ends = text.count("\n")
    return ends > 0 and text.count("\r\n") == ends


def _to_windows(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _describe_nearest(text: str, old: str) -> str:
    """The line that is most like the first line of what was looked for."""
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [line.strip() for line in text.splitlines()[:_SEARCHED_LINES]]
    if not wanted or not lines:
        return ""
    if wanted in lines:
        number = lines.index(wanted) + 1
        return f"; line {number} has its first line, so the white space or what follows differs"
    nearest = process.extractOne(
        wanted[:_MAX_COMPARED],
        [line[:_MAX_COMPARED] for line in lines],
        scorer=fuzz.ratio,
        score_cutoff=_MIN_SIMILARITY,
    )
    return f"; the nearest is line {nearest[2] + 1}: {nearest[0][:_SHOWN_CHARACTERS]!r}" if nearest else ""


def edit_bytes(before: bytes, arguments: dict[str, JsonValue]) -> tuple[bytes, tuple[int, ...]]:
    """The bytes after an edit, and the lines that it begins on. Raises `ToolFailed` when it cannot be done."""
    path = str(arguments["path"])
    found = decode(before)
    if found is None:
        raise ToolFailed(f"File {path!r} is not text but {name_kind(before)}", code="binary")
    every = arguments.get("replace_all") is True
    edited = replace_exactly(found.text, str(arguments["old"]), str(arguments["new"]), every=every)
    return found.encode(edited.text), edited.lines


CONTEXT_LINES = 3
MAX_DIFF_CHARACTERS = 20_000
_MAX_COMPARED_LINES = 2_000
"""Longer middles are shown as taken out and put in whole: comparing them costs the square of their length."""


class Preview(Struct, frozen=True):
    path: str
    """Canonical: where the change would really be made."""
    diff: str
    base_hash: str
    """Of the file that the diff was made from, or `NO_FILE`. `ToolContext.base_hash` holds a call to it."""


def preview_write(scope: Scope, path: str, content: str, *, held: str | None = None) -> Preview:
    """Against what an editor holds, where it does. Raises `ToolFailed` where the write itself would."""
    before, canonical = _read_now(scope, path, held)
    return build_preview(canonical, before, content.encode("utf-8", "surrogatepass"))


def preview_edit(scope: Scope, arguments: dict[str, JsonValue], held: str | None = None) -> Preview:
    """Against what an editor holds, where it does. Raises `ToolFailed` where the edit itself would."""
    before, canonical = _read_now(scope, str(arguments["path"]), held)
    if before is None:
        raise ToolFailed(f"There is no file {canonical!r}", hint="Use Write to create it", code="not_found")
    return build_preview(canonical, before, edit_bytes(before, arguments)[0])


def _read_now(scope: Scope, path: str, held: str | None) -> tuple[bytes | None, str]:
    try:
        with scope.open_target(path, create_folders=False) as target:
            return overlay(held, read_target(target)), target.path
    except ToolFailed as error:
        if error.code != "not_found":
            raise
        return None, scope.canonical(path)


def build_preview(path: str, before: bytes | None, after: bytes) -> Preview:
    """The change between two versions of a file."""
    diff = "".join(_diff(path, _lines(before or b""), _lines(after)))
    if len(diff) > MAX_DIFF_CHARACTERS:
        diff = f"{diff[:MAX_DIFF_CHARACTERS]}\n[… {len(diff) - MAX_DIFF_CHARACTERS} more characters of diff …]\n"
    return Preview(path, diff, hash_bytes(before))


def _lines(data: bytes) -> list[str]:
    found = decode(data)
    if found is None:
        return [f"[{name_kind(data)}, {len(data)} bytes, hash {hash_bytes(data)[:16]}]\n"]
    return [f"{line}\n" for line in found.text.split("\n")[:-1]] + (
        [f"{last}\n\\ No newline at end of file\n"] if (last := found.text.rsplit("\n", 1)[-1]) else []
    )


def _diff(path: str, before: Sequence[str], after: Sequence[str]) -> list[str]:
    if list(before) == list(after):
        return []
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    if max(len(before), len(after)) - head - tail <= _MAX_COMPARED_LINES:
        start = max(0, head - CONTEXT_LINES)
        stop = max(0, tail - CONTEXT_LINES)
        parts = difflib.unified_diff(before[start : len(before) - stop], after[start : len(after) - stop])
        return [f"--- {path}\n", f"+++ {path}\n", *_shift(list(parts)[2:], start)]
    removed, added = before[head : len(before) - tail], after[head : len(after) - tail]
    title = f"@@ -{head + 1},{len(removed)} +{head + 1},{len(added)} @@\n"
    return [f"--- {path}\n", f"+++ {path}\n", title, *(f"-{x}" for x in removed), *(f"+{x}" for x in added)]


def _shift(parts: list[str], by: int) -> list[str]:
    """Line numbers of the whole file instead of those of the piece that was compared."""
    return [_shift_title(part, by) if part.startswith("@@") else part for part in parts]


def _shift_title(title: str, by: int) -> str:
    _, old, new, _ = title.split()
    return f"@@ -{_shift_range(old[1:], by)} +{_shift_range(new[1:], by)} @@\n"


def _shift_range(text: str, by: int) -> str:
    start, comma, count = text.partition(",")
    return f"{int(start) + by}{comma}{count}"
