"""`Grep`: the lines of text files that match an expression, by path and line. The same with and without ripgrep."""

import codecs
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.errors import ToolFailed
from metier.prompts.tool_texts import describe_parameters, load_tool_text
from metier.tools.base import PathGuard, ToolContext, ToolInfo, ToolResult
from metier.tools.files.path_patterns import PathPattern
from metier.tools.files.replacing import MAX_FILE_BYTES, check_size, read_all
from metier.tools.files.ripgrep import narrow
from metier.tools.files.scope import Scope
from metier.tools.files.search_expression import SearchExpression
from metier.tools.files.text import decode, is_binary
from metier.tools.files.walk import describe_stop, list_files

DEFAULT_RESULTS = 100
MAX_RESULTS = 1000
MAX_CONTEXT = 10
MAX_LINE_CHARACTERS = 400
MAX_CHARACTERS = 28_000
_MAX_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Query:
    expression: SearchExpression
    context: int
    most: int
    files_only: bool


class Grep:
    info = ToolInfo(
        id="builtin:Grep",
        name="Grep",
        description=load_tool_text("Grep").description,
        category="grep",
        input_schema=describe_parameters(
            "Grep",
            {
                "type": "object",
                "properties": {
                    "pattern": {"type": "string"},
                    "path": {"type": "string"},
                    "glob": {"type": "string"},
                    "ignore_case": {"type": "boolean"},
                    "context": {"type": "integer"},
                    "files_only": {"type": "boolean"},
                    "limit": {"type": "integer"},
                },
                "required": ["pattern"],
                "additionalProperties": False,
            },
        ),
        output_schema={"type": "string"},
        risk="low",
        effect="read",
    )

    def __init__(self, scope: Scope, *, ripgrep: Callable[[], str] = str, skip: Collection[str] = ()) -> None:
        """`ripgrep` finds the path of that program, empty to do without. `skip` are folders that are left out."""
        self._scope = scope
        self._ripgrep = ripgrep
        self._skip = frozenset(skip)

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        query = _parse(arguments)
        folder = str(arguments.get("path") or ".")
        glob = arguments.get("glob")
        pattern = PathPattern(glob) if isinstance(glob, str) else None
        paths, notes = await run_sync(self._list, folder, pattern, context.paths)
        paths = await narrow(paths, query.expression, find_program=self._ripgrep, folder=self._scope.workspace)
        found = await run_sync(self._search, paths, query, context.paths)
        return ToolResult(ok=True, output="\n".join([found, *notes]))

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """A path outside of the workspace."""
        return self._scope.refuse(str(arguments.get("path") or "."))

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        return {"path": await run_sync(self._scope.canonical, str(arguments.get("path") or "."))}

    def _list(self, path: str, pattern: PathPattern | None, guard: PathGuard) -> tuple[Sequence[str], list[str]]:
        """The files to search, and what is to be said of those that are not."""
        try:
            listing = list_files(self._scope, path, pattern, guard=guard, skip=self._skip)
        except ToolFailed as error:
            if error.code != "not_a_folder":
                raise
            return [self._name_file(path, guard)], []
        paths = [file.path for file in listing.files if file.size <= MAX_FILE_BYTES]
        notes: list[str] = []
        if len(paths) < len(listing.files):
            left_out = [file.path for file in listing.files if file.size > MAX_FILE_BYTES]
            notes.append(
                f"[Not searched because they are larger than {MAX_FILE_BYTES} bytes: {len(left_out)} files, "
                f"the first of them {left_out[0]!r}]"
            )
        if not listing.is_complete:
            notes.append(describe_stop(listing))
        return paths, notes

    def _name_file(self, path: str, guard: PathGuard) -> str:
        """A file that was named itself: what keeps it from being searched is said, not passed over."""
        with self._scope.open_file(path, guard=guard) as opened:
            check_size(opened.status.st_size, path)
        return self._scope.canonical(path)

    def _search(self, paths: Sequence[str], query: _Query, guard: PathGuard) -> str:
        page = _Page(query, guard)
        for path in paths:
            if page.is_full(path):
                break
            if data := self._load(path):
                page.add(path, data)
        return page.render()

    def _load(self, path: str) -> bytes:
        """As UTF-8 with plain line ends; nothing for a binary file or one that cannot be read."""
        try:
            with self._scope.open_file(path, guard=_Itself(path)) as opened:
                data = read_all(opened.descriptor, path)
        except ToolFailed:
            return b""
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)) and (found := decode(data)):
            data = found.text.encode("utf-8", "surrogatepass")
        return b"" if is_binary(data) else data.replace(b"\r\n", b"\n")


class _Itself:
    """Holds a file that was listed to its name: a link that took its place meanwhile is not followed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def check(self, path: str, *, key: str = "path") -> None:
        if path != self._path:
            raise ToolFailed(f"The {key} {self._path!r} leads elsewhere now", code="conflict")

    def hides(self, path: str, *, key: str = "path") -> bool:
        del key
        return path != self._path


class _Page:
    """What is shown of the matches, up to the limits."""

    def __init__(self, query: _Query, guard: PathGuard) -> None:
        self._query = query
        self._guard = guard
        self._lines: list[str] = []
        self._characters = 0
        self._left = query.most
        self._until = time.monotonic() + _MAX_SECONDS
        self._stop = ""

    def is_full(self, following: str) -> bool:
        """Before the file of this path is searched."""
        if not self._stop and time.monotonic() > self._until:
            self._stop_at(f"{_MAX_SECONDS:.0f} seconds", following)
        return bool(self._stop)

    def add(self, path: str, data: bytes) -> None:
        most = 1 if self._query.files_only else self._left + 1
        matched = _find_lines(self._query.expression, data, most)
        if matched and self._guard.hides(path):
            return
        if matched and self._left == 0:
            self._stop_at(f"{self._query.most} {self._unit}", path)
        elif matched and self._query.files_only:
            self._left -= 1
            self._show(path, at=path)
        elif matched:
            self._add_lines(path, data.split(b"\n"), matched)

    def _add_lines(self, path: str, lines: list[bytes], matched: list[int]) -> None:
        around, wanted = self._query.context, matched[: self._left]
        self._left -= len(wanted)
        marked = frozenset(wanted)
        count = len(lines) - (lines[-1] == b"")
        shown = sorted({at for line in wanted for at in range(max(0, line - around), min(count, line + around + 1))})
        behind = -1
        for at in shown:
            if around and self._lines and (behind < 0 or at > behind + 1):
                self._show("--", at=f"{path}:{at + 1}")
            mark = ":" if at in marked else "-"
            text = lines[at].decode("utf-8", "replace")
            self._show(f"{path}{mark}{at + 1}{mark}{_cut(text)}", at=f"{path}:{at + 1}")
            behind = at
        if len(matched) > len(wanted):
            self._stop_at(f"{self._query.most} {self._unit}", f"{path}:{matched[len(wanted)] + 1}")

    @property
    def _unit(self) -> str:
        return "files" if self._query.files_only else "lines"

    def _stop_at(self, limit: str, place: str) -> None:
        if not self._stop:
            self._stop = (
                f"Stopped at the limit of {limit}, before {place!r}; there may be more. Narrow 'pattern', 'path' or "
                f"'glob', or raise 'limit' (at most {MAX_RESULTS})"
            )

    def _show(self, line: str, *, at: str) -> None:
        self._characters += len(line) + 1
        if self._characters > MAX_CHARACTERS:
            self._stop_at(f"{MAX_CHARACTERS} characters", at)
        if not self._stop:
            self._lines.append(line)

    def render(self) -> str:
        lines = list(self._lines)
        if self._stop:
            lines.append(f"[{self._stop}]")
        return "\n".join(lines) or "No line matches"


def _cut(text: str) -> str:
    if len(text) <= MAX_LINE_CHARACTERS:
        return text
    return f"{text[:MAX_LINE_CHARACTERS]} [cut: the line has {len(text)} characters]"


def _find_lines(expression: SearchExpression, data: bytes, most: int) -> list[int]:
    """The first matching lines, counted from 0, at most so many."""
    found: list[int] = []
    line = counted = start = 0
    while start < len(data) and len(found) < most and (place := expression.find(data, start)) >= 0:
        line += data.count(b"\n", counted, place)
        if place == len(data) and data.endswith(b"\n"):
            break  # behind the last line's end there is no further line
        found.append(line)
        counted = place
        end = data.find(b"\n", place)
        start = end + 1 if end >= 0 else len(data)
    return found


def _parse(arguments: dict[str, JsonValue]) -> _Query:
    context, limit = arguments.get("context"), arguments.get("limit")
    return _Query(
        expression=SearchExpression(str(arguments["pattern"]), ignore_case=arguments.get("ignore_case") is True),
        context=max(0, min(context, MAX_CONTEXT)) if isinstance(context, int) else 0,
        most=max(1, min(limit, MAX_RESULTS)) if isinstance(limit, int) else DEFAULT_RESULTS,
        files_only=arguments.get("files_only") is True,
    )
