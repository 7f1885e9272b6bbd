"""`Read`: the numbered lines of a text file up to a limit, with a note about the rest; or an image or document."""

from collections.abc import Sequence
from functools import partial
from itertools import islice

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.errors import ToolFailed
from metier.prompts.texts import build_parameters, load_tool_text
from metier.tools.base import PathGuard, ToolContext, ToolInfo, ToolResult
from metier.tools.files.file_replacement import read_all
from metier.tools.files.file_text import FileText, decode, describe_kind, find_buffered, overlay
from metier.tools.files.scope import FileTool
from metier.tools.media import get_media_type, prepare_media

DEFAULT_LINES = 2000
MAX_LINE_CHARACTERS = 2000
MAX_CHARACTERS = 28_000
"""A little below the engine's limit for results, so that the output is truncated here, at the end of a line."""


class Read(FileTool):
    info = ToolInfo(
        id="builtin:Read",
        name="Read",
        description=load_tool_text("Read").description,
        category="read",
        input_schema=build_parameters(
            "Read", {"path": "string", "offset": "integer", "limit": "integer"}, required=("path",)
        ),
        output_schema={"type": "string"},
        risk="low",
        effect="read",
    )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        offset, limit = arguments.get("offset"), arguments.get("limit")
        start = max(offset, 1) if isinstance(offset, int) else 1
        count = max(limit, 1) if isinstance(limit, int) else DEFAULT_LINES
        path = str(arguments["path"])
        buffered = await find_buffered(path, self._scope, context.buffers)
        return await run_sync(partial(self._read, path, start, count=count, guard=context.paths, buffered=buffered))

    def _read(self, path: str, start: int, *, count: int, guard: PathGuard, buffered: str | None) -> ToolResult:
        with self._scope.open_file(path, guard=guard) as opened:
            saved = read_all(opened.descriptor, path)
        data = overlay(buffered, saved) or b""
        found = decode(data)
        if found is None and get_media_type(data):
            return _show(data, path)
        if found is None:
            raise ToolFailed(f"File {path!r} is not text but {describe_kind(data)} of {len(data)} bytes", code="binary")
        lines = found.text.split("\n")
        # The last line end doesn't start another line.
        if lines[-1] == "":
            lines.pop()
        if start > max(len(lines), 1):
            raise ToolFailed(f"File {path!r} has {len(lines)} lines, so none from {start}", code="out_of_range")
        unsaved = "" if data == saved else "\n[unsaved text from the editor]"
        return ToolResult(ok=True, output=_render(lines, start, count) + _render_encoding(found) + unsaved)


def _show(data: bytes, path: str) -> ToolResult:
    """Return an image or document for the model, with a short description."""
    media = prepare_media(data, name=path)
    size = f"{media.pages} pages" if media.pages else f"{media.width} × {media.height} pixels"
    return ToolResult(ok=True, output=f"[{media.media_type}, {size}: shown to you]", media=(media,))


def _render(lines: Sequence[str], start: int, count: int) -> str:
    if not lines:
        return "[empty file]"
    shown: list[str] = []
    characters = cut = 0
    for number, line in enumerate(islice(lines, start - 1, start - 1 + count), start):
        plain = line.removesuffix("\r")
        text = f"{number:>6}\t{plain[:MAX_LINE_CHARACTERS]}"
        characters += len(text) + 1
        if shown and characters > MAX_CHARACTERS:
            break
        cut += len(plain) > MAX_LINE_CHARACTERS
        shown.append(text)
    last = start - 1 + len(shown)
    if start > 1 or last < len(lines):
        more = f"; continue with offset {last + 1}" if last < len(lines) else ""
        shown.append(f"[lines {start} to {last} of {len(lines)}{more}]")
    if cut:
        shown.append(f"[{cut} longer than {MAX_LINE_CHARACTERS} characters, cut]")
    return "\n".join(shown)


def _render_encoding(found: FileText) -> str:
    return "" if found.is_plain else f"\n[encoding: {found.label}]"
