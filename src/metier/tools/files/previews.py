"""What a `Write` or `Edit` would change, as a diff against the file as it is now. Changes nothing."""

import difflib
from collections.abc import Sequence

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.errors import ToolFailed
from metier.tools.files.exact_edit import edit_bytes
from metier.tools.files.replacing import hash_bytes, read_target
from metier.tools.files.scope import Scope
from metier.tools.files.text import decode, name_kind
from metier.tools.files.unsaved import overlay

CONTEXT_LINES = 3
MAX_DIFF_CHARACTERS = 20_000
_MAX_COMPARED_LINES = 2_000
"""Longer middles are shown as taken out and put in whole: comparing them costs the square of their length."""


@dataclass(frozen=True, slots=True)
class Preview:
    path: str
    """Canonical: where the change would really be made."""
    diff: str
    base_hash: str
    """Of the file that the diff was made from, or `NO_FILE`. `ToolContext.base_hash` holds a call to it."""


def preview_write(scope: Scope, path: str, content: str, *, held: str | None = None) -> Preview:
    """Against what an editor holds, where it does. Raises `ToolFailed` where the write itself would."""
    before, canonical = _read_now(scope, path, held)
    return _build(canonical, before, content.encode("utf-8", "surrogatepass"))


def preview_edit(scope: Scope, arguments: dict[str, JsonValue], held: str | None = None) -> Preview:
    """Against what an editor holds, where it does. Raises `ToolFailed` where the edit itself would."""
    before, canonical = _read_now(scope, str(arguments["path"]), held)
    if before is None:
        raise ToolFailed(f"There is no file {canonical!r}", hint="Use Write to create it", code="not_found")
    return _build(canonical, before, edit_bytes(before, arguments)[0])


def _read_now(scope: Scope, path: str, held: str | None) -> tuple[bytes | None, str]:
    try:
        with scope.open_target(path, create_folders=False) as target:
            return overlay(held, read_target(target)), target.path
    except ToolFailed as error:
        if error.code != "not_found":
            raise
        return None, scope.canonical(path)


def _build(path: str, before: bytes | None, after: bytes) -> Preview:
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
