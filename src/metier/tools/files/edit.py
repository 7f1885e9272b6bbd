"""`Write` and `Edit`: the tools that change a text file, and the diff that previews a change.

`Write` puts a whole file in place; a crash leaves the old file or the new one. `Edit` replaces an exact text and keeps
the file's mode, encoding, line ends and all other bytes.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import override

from anyio.to_thread import run_sync
from msgspec import Struct
from pydantic import JsonValue
from rapidfuzz import fuzz, process

from metier.definitions.files.quarantine import adopt
from metier.errors import ToolFailed
from metier.prompts.texts import build_parameters, load_tool_text
from metier.tools.base import NO_CHANGE, Preview, ToolContext, ToolInfo, ToolResult
from metier.tools.files.file_replacement import describe_written, hash_bytes, judge_note, read_target, replace_file
from metier.tools.files.file_text import check_saved, decode, describe_kind, find_buffered, overlay
from metier.tools.files.scope import FileTool

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
    """Replace a text once, or everywhere with `every`. Raises `ToolFailed` if it is missing or ambiguous.

    In a file with Windows line ends, plain line ends in `old` and `new` match them.
    """
    if not old:
        raise ToolFailed("The old text is empty", hint="Use Write to create a file", code="invalid_input")
    if old == new:
        raise ToolFailed("The old and the new text are the same", code="invalid_input")
    # Models write plain line ends, whatever the file has.
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
        # Places do not overlap, as in `str.replace`.
        place = text.find(old, place + len(old))
    return places


def _count_lines(text: str, places: list[int]) -> tuple[int, ...]:
    lines: list[int] = []
    line, behind = 1, 0
    for place in places:
        # From the last place on: counting from the start each time would take quadratic time.
        line += text.count("\n", behind, place)
        behind = place
        lines.append(line)
    return tuple(lines)


def _has_windows_lines(text: str) -> bool:
    """Return True if all lines have Windows line ends. In a mixed file, line ends are taken literally."""
    ends = text.count("\n")
    return ends > 0 and text.count("\r\n") == ends


def _to_windows(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _describe_nearest(text: str, old: str) -> str:
    """Describe the line that is most similar to the first line of the text that was not found."""
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    lines = [line.strip() for line in text.splitlines()[:_SEARCHED_LINES]]
    if not wanted or not lines:
        return ""
    if wanted in lines:
        number = lines.index(wanted) + 1
        return f"; line {number} matches its first line, so the whitespace or the lines after it differ"
    nearest = process.extractOne(
        wanted[:_MAX_COMPARED],
        [line[:_MAX_COMPARED] for line in lines],
        scorer=fuzz.ratio,
        score_cutoff=_MIN_SIMILARITY,
    )
    return f"; the nearest is line {nearest[2] + 1}: {nearest[0][:_SHOWN_CHARACTERS]!r}" if nearest else ""


CONTEXT_LINES = 3
MAX_DIFF_CHARACTERS = 20_000
_MAX_COMPARED_LINES = 2_000
"""A longer changed part is shown as removed and added whole: comparing takes time quadratic in its length."""


def build_diff(path: str, before: bytes | None, after: bytes) -> str:
    """Return the unified diff of two versions of a file, truncated to `MAX_DIFF_CHARACTERS`."""
    diff = "".join(_diff(path, _lines(before or b""), _lines(after)))
    if len(diff) > MAX_DIFF_CHARACTERS:
        diff = f"{diff[:MAX_DIFF_CHARACTERS]}\n[… {len(diff) - MAX_DIFF_CHARACTERS} more characters of diff …]\n"
    return diff


def _lines(data: bytes) -> list[str]:
    found = decode(data)
    if found is None:
        return [f"[{describe_kind(data)}, {len(data)} bytes, hash {hash_bytes(data)[:16]}]\n"]
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
    """Convert the line numbers of the compared part to those of the whole file."""
    return [_shift_title(part, by) if part.startswith("@@") else part for part in parts]


def _shift_title(title: str, by: int) -> str:
    _, old, new, _ = title.split()
    return f"@@ -{_shift_range(old[1:], by)} +{_shift_range(new[1:], by)} @@\n"


def _shift_range(text: str, by: int) -> str:
    start, comma, count = text.partition(",")
    return f"{int(start) + by}{comma}{count}"


class _ChangingTool(FileTool, ABC):
    """`Write` and `Edit`, which differ in how they compute the new content of the file."""

    writes = True
    creates = False
    verb: str
    """For messages, in the past tense."""

    @abstractmethod
    def compute(self, before: bytes | None, arguments: dict[str, JsonValue], *, path: str) -> tuple[bytes, str]:
        """Return the new content of the file, and the message for the model. Raises `ToolFailed`."""

    @abstractmethod
    def is_proven(self, arguments: dict[str, JsonValue]) -> bool:
        """Return True if the content of the file alone proves that the call had its effect."""

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        path = str(arguments["path"])
        buffered = await find_buffered(path, self._scope, context.buffers)
        output, diff = await run_sync(self._change, arguments, context, buffered)
        written = await run_sync(describe_written, self._scope, path, context)
        return ToolResult(ok=True, output=output, meta={**written, "diff": diff})

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview:
        """Preview the change to the editor's text of the file, or to the disk. Raises `ToolFailed` as the call."""
        buffered = await find_buffered(str(arguments["path"]), self._scope, context.buffers)
        return await run_sync(self._preview, arguments, buffered)

    async def probe(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult | None:
        """After a crash, return the result if the change is there; None if the call has to run or that is unknown."""
        path = str(arguments["path"])
        finding = await run_sync(judge_note, self._scope, path, context)
        if finding == "no note" and await run_sync(self.is_proven, arguments):
            finding = "after"
        if finding != "after":
            return None
        output = f"{self.verb} {path!r}; found so after an interruption"
        return ToolResult(ok=True, output=output, meta=await run_sync(describe_written, self._scope, path, context))

    def _preview(self, arguments: dict[str, JsonValue], buffered: str | None) -> Preview:
        before, path = self._read(str(arguments["path"]))
        before = overlay(buffered, before)
        after, _ = self.compute(before, arguments, path=path)
        # The hash binds the approval to this state of the file: a call on any other state fails as a conflict.
        return Preview(NO_CHANGE if before == after else build_diff(path, before, after), base=hash_bytes(before))

    def _read(self, path: str) -> tuple[bytes | None, str]:
        """Return the content of the file on disk, None if it is missing, and its canonical path."""
        try:
            with self._scope.open_target(path, create_folders=False) as target:
                return read_target(target), target.path
        except ToolFailed as error:
            if error.code != "not_found":
                raise
            return None, self._scope.canonical(path)

    def _change(self, arguments: dict[str, JsonValue], context: ToolContext, buffered: str | None) -> tuple[str, str]:
        """Change the file. Returns the message for the model, and the diff."""
        path = str(arguments["path"])
        with self._scope.open_target(path, create_folders=self.creates, guard=context.paths) as target:
            before = read_target(target)
            # Without a file, `compute` of `Edit` raises a clearer error than this check would.
            if before is not None or self.creates:
                check_saved(buffered, before, path=path)
            after, message = self.compute(before, arguments, path=target.path)
            if self.creates:
                # A sandboxed program may be running: this file isn't its own, so it isn't quarantined when that ends.
                adopt(str(self._scope.workspace / target.path))
            replace_file(target, after, before=before, context=context)
        return message, build_diff(target.path, before, after)


class Write(_ChangingTool):
    creates = True
    verb = "Wrote"
    info = ToolInfo(
        id="builtin:Write",
        name="Write",
        description=load_tool_text("Write").description,
        category="write",
        input_schema=build_parameters("Write", {"path": "string", "content": "string"}, required=("path", "content")),
        output_schema={"type": "string"},
        risk="medium",
        # Writing twice would be harmless, but not over what a user wrote between a crash and the resume.
        effect="opaque",
        spools=True,
    )

    @override
    def compute(self, before: bytes | None, arguments: dict[str, JsonValue], *, path: str) -> tuple[bytes, str]:
        after = _encode(arguments)
        verb = "Created" if before is None else "Replaced" if before != after else "Did not need to change"
        return after, f"{verb} {path!r}, {len(after)} bytes"

    @override
    def is_proven(self, arguments: dict[str, JsonValue]) -> bool:
        try:
            return self._read(str(arguments["path"]))[0] == _encode(arguments)
        except ToolFailed:
            return False


def _encode(arguments: dict[str, JsonValue]) -> bytes:
    # JSON allows lone surrogates, which strict UTF-8 would reject.
    return str(arguments["content"]).encode("utf-8", "surrogatepass")


class Edit(_ChangingTool):
    verb = "Edited"
    info = ToolInfo(
        id="builtin:Edit",
        name="Edit",
        description=load_tool_text("Edit").description,
        category="edit",
        input_schema=build_parameters(
            "Edit",
            {"path": "string", "old": "string", "new": "string", "replace_all": "boolean"},
            required=("path", "old", "new"),
        ),
        output_schema={"type": "string"},
        risk="medium",
        effect="opaque",
        spools=True,
    )

    @override
    def compute(self, before: bytes | None, arguments: dict[str, JsonValue], *, path: str) -> tuple[bytes, str]:
        if before is None:
            raise ToolFailed(f"There is no file {path!r}", hint="Use Write to create it", code="not_found")
        found = decode(before)
        if found is None:
            raise ToolFailed(f"File {path!r} is not text but {describe_kind(before)}", code="binary")
        every = arguments.get("replace_all") is True
        edited = replace_exactly(found.text, str(arguments["old"]), str(arguments["new"]), every=every)
        lines = edited.lines
        where = f"on line {lines[0]}" if len(lines) == 1 else f"in {len(lines)} places, first on line {lines[0]}"
        return found.encode(edited.text), f"Edited {path!r} {where}"

    @override
    def is_proven(self, arguments: dict[str, JsonValue]) -> bool:
        # The new text may have been in the file before.
        return False
