"""`Grep`: the lines of text files that match an expression, by path and line.

Expressions are limited to a subset with the same meaning in RE2 and ripgrep. If ripgrep is installed, it preselects
files; RE2 decides what matches.
"""

import codecs
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import anyio
import re2
from anyio.to_thread import run_sync
from msgspec import Struct
from pydantic import JsonValue

from metier.errors import ToolFailed
from metier.programs.launcher import RIPGREP, find_program, run_program_async, use_own_program
from metier.prompts.texts import build_parameters, load_tool_text
from metier.tools.base import PathGuard, ToolContext, ToolInfo, ToolResult
from metier.tools.files.file_replacement import MAX_FILE_BYTES, check_size, read_all
from metier.tools.files.file_text import decode, is_binary
from metier.tools.files.glob import PathPattern, describe_stop, list_files
from metier.tools.files.scope import FolderTool, Scope

MAX_EXPRESSION_CHARACTERS = 1000
_MAX_PROGRAM_BYTES = 8 * 1024 * 1024
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|x\{[^}]*\}|.)?", re.DOTALL)
_NAMED_CLASS = re.compile(r"\[:\^?[a-z]+:\]")
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|-?i[:)]|:)")
_REFUSED_ESCAPES = frozenset(("\\A", "\\z", "\\Z", "\\C", "\\Q", "\\E", "\\n", "\\"))
_OUTSIDE = {
    "\\w": "[0-9A-Za-z_]", "\\W": "[^0-9A-Za-z_]", "\\d": "[0-9]", "\\D": "[^0-9]",
    "\\s": "[\\t\\f\\r ]", "\\S": "[^\\t\\f\\r ]", "\\b": "(?-u:\\b)", "\\B": "(?-u:\\B)", "$": "(?:\\r?$)",
}  # fmt: skip
"""RE2's meaning of these in ripgrep's syntax. Ripgrep sees Windows lines with their carriage return."""
_INSIDE = {"\\w": "0-9A-Za-z_", "\\d": "0-9", "\\s": "\\t\\f\\r "}
_DIFFERENT_INSIDE = frozenset(("\\W", "\\D", "\\S", "\\b", "[", "&", "~"))
"""Inside a character class these have no short translation, or another meaning in ripgrep."""


class _Match(Protocol):
    def start(self) -> int: ...


class _Compiled(Protocol):
    def search(self, text: bytes, pos: int) -> _Match | None: ...


# The library has no types; these follow its documentation.
_compile = cast("Callable[[bytes, re2.Options], _Compiled]", re2.compile)
_InvalidExpression = cast("type[Exception]", re2.error)


class SearchExpression:
    def __init__(self, text: str, *, ignore_case: bool) -> None:
        """Raises `ToolFailed` for an invalid expression, or one outside the subset."""
        _check(text)
        options = re2.Options()
        # Otherwise RE2 prints invalid expressions to stderr.
        options.log_errors = False
        options.never_nl = True  # a match never spans lines, as in ripgrep
        options.case_sensitive = not ignore_case
        # Counted repetitions such as `(a{1000}){1000}` would compile to gigabytes.
        options.max_mem = _MAX_PROGRAM_BYTES
        try:
            self._compiled = _compile(f"(?m:{text})".encode(), options)
        except _InvalidExpression as error:
            raise _invalid(text, _reason(error)) from error
        self.text = text
        self.ignore_case = ignore_case

    def find(self, data: bytes, start: int) -> int:
        """Return the start of the next match at or after `start`, or -1."""
        found = self._compiled.search(data, start)
        return found.start() if found else -1


def translate_for_ripgrep(text: str) -> str | None:
    """Translate to an expression that matches at least the same lines; None if that is not certain."""
    parts: list[str] = []
    for piece, in_class in _split(text):
        if in_class and (piece in _DIFFERENT_INSIDE or (piece == "-" and parts[-1] == "-")):
            return None
        known = _INSIDE if in_class else _OUTSIDE
        parts.append(known.get(piece, piece))
    return "".join(parts)


def _split(text: str) -> Iterator[tuple[str, bool]]:
    """Split an expression into pieces, each with True if it is in a character class. Raises `ToolFailed`."""
    place = 0
    in_class = is_first = False
    while place < len(text):
        piece = _piece_at(text, place, in_class=in_class)
        yield piece, in_class
        place += len(piece)
        if not in_class:
            in_class = is_first = piece == "["
        elif piece == "]" and not is_first:
            in_class = False
        else:
            is_first = is_first and piece == "^"


def _piece_at(text: str, place: int, *, in_class: bool) -> str:
    if (found := _ESCAPE.match(text, place)) is not None:
        return found.group()
    if in_class:
        found = _NAMED_CLASS.match(text, place)
    elif text.startswith("(?", place):
        found = _GROUP.match(text, place)
        if found is None:
            raise _invalid(text, f"{text[place : place + 4]!r} is not supported")
    return found.group() if found else text[place]


def _check(text: str) -> None:
    if not text or len(text) > MAX_EXPRESSION_CHARACTERS:
        raise _invalid(text, f"it must have 1 to {MAX_EXPRESSION_CHARACTERS} characters")
    if any(mark in text for mark in "\n\r\0"):
        raise _invalid(text, "only single lines are searched")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _invalid(text, "it is not valid Unicode")
    for piece, _ in _split(text):
        if piece in _REFUSED_ESCAPES:
            raise _invalid(text, f"{piece!r} is not supported, only single lines are searched")


def _invalid(text: str, reason: str) -> ToolFailed:
    return ToolFailed(f"Expression {text[:100]!r} cannot be used: {reason}", code="invalid_input")


def _reason(error: Exception) -> str:
    word: object = error.args[0] if error.args else ""
    return word.decode("utf-8", "replace") if isinstance(word, bytes) else str(word)


MIN_FILES = 1500
"""Reading fewer files is faster than starting a process."""
_BATCH_BYTES = 100_000
"""Arguments for one process, below the limit of every system."""
_TIMEOUT_SECONDS = 20
_NONE_FOUND = 1
_FLAGS = ("--no-config", "--files-with-matches", "--null", "--no-messages", "--text", "--color=never", "--no-ignore")
"""`--no-config`, because a configuration can name a program to run (`--pre`). `--text` and `--no-ignore`, because the
files to search are already chosen."""


def get_ripgrep(environ: Mapping[str, str], workspace: Path) -> str:
    """Return the program's path; empty if it isn't installed."""
    found = find_program(RIPGREP, "rg", environ, writable=(workspace,))
    return found.path if found is not None else ""


async def narrow(
    paths: Sequence[str], expression: SearchExpression, *, locate: Callable[[], str], folder: Path
) -> Sequence[str]:
    """Return the paths that may have a match, in order; all of them if ripgrep fails or takes too long."""
    translated = translate_for_ripgrep(expression.text)
    if translated is None or len(paths) < MIN_FILES or not (program := locate()):
        return paths
    ripgrep = use_own_program(RIPGREP, program, environment={})
    # With `--regexp` and `--`, neither the expression nor a file name can be taken for an option.
    options = (*_FLAGS, *(["--ignore-case"] if expression.ignore_case else []), "--regexp", translated, "--")
    worth: set[str] = set()
    with anyio.move_on_after(_TIMEOUT_SECONDS):
        for batch in _batches(paths):
            # Ripgrep reads standard input for a file called `-`.
            named = [path if path.startswith("/") else f"./{path}" for path in batch]
            done = await run_program_async(ripgrep, *options, *named, folder=folder)
            if done.returncode not in {0, _NONE_FOUND}:
                return paths
            worth.update(name.removeprefix("./") for name in done.stdout.decode("utf-8", "surrogateescape").split("\0"))
        return [path for path in paths if path in worth]
    return paths


def _batches(paths: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for path in paths:
        batch.append(path)
        # `./` in front and the zero byte behind it.
        size += len(path.encode("utf-8", "surrogateescape")) + 3
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


DEFAULT_RESULTS = 100
MAX_RESULTS = 1000
MAX_CONTEXT = 10
MAX_LINE_CHARACTERS = 400
MAX_CHARACTERS = 28_000
_MAX_SECONDS = 30.0


class _Query(Struct, frozen=True, kw_only=True):
    expression: SearchExpression
    context: int
    most: int
    files_only: bool


class Grep(FolderTool):
    info = ToolInfo(
        id="builtin:Grep",
        name="Grep",
        description=load_tool_text("Grep").description,
        category="grep",
        input_schema=build_parameters(
            "Grep",
            {
                "pattern": "string",
                "path": "string",
                "glob": "string",
                "ignore_case": "boolean",
                "context": "integer",
                "files_only": "boolean",
                "limit": "integer",
            },
            required=("pattern",),
        ),
        output_schema={"type": "string"},
        risk="low",
        effect="read",
    )

    def __init__(self, scope: Scope, *, ripgrep: Callable[[], str] = str, skip: Collection[str] = ()) -> None:
        """`ripgrep` returns the program's path, or an empty string to do without it."""
        super().__init__(scope, skip=skip)
        self._ripgrep = ripgrep

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        query = _parse(arguments)
        glob = arguments.get("glob")
        pattern = PathPattern(glob) if isinstance(glob, str) else None
        paths, notes = await run_sync(self._list, self.get_path(arguments), pattern, context.paths)
        paths = await narrow(paths, query.expression, locate=self._ripgrep, folder=self._scope.workspace)
        found = await run_sync(self._search, paths, query, context.paths)
        return ToolResult(ok=True, output="\n".join([found, *notes]))

    def _list(self, path: str, pattern: PathPattern | None, guard: PathGuard) -> tuple[Sequence[str], list[str]]:
        """List the files to search, with notes about those that are left out."""
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
        """Check a file that the call names: unlike a listed file, it fails with a reason instead of being skipped."""
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
        """Return the content as UTF-8 with plain line ends; empty for a binary or unreadable file."""
        try:
            with self._scope.open_file(path, guard=_Itself(path)) as opened:
                data = read_all(opened.descriptor, path)
        except ToolFailed:
            return b""
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF8)) and (found := decode(data)):
            # RE2 searches UTF-8 only.
            data = found.text.encode("utf-8", "surrogatepass")
        return b"" if is_binary(data) else data.replace(b"\r\n", b"\n")


class _Itself:
    """Guard for a listed file: fails if a link has replaced it since it was listed."""

    def __init__(self, path: str) -> None:
        self._path = path

    def check(self, path: str, *, key: str = "path") -> None:
        if path != self._path:
            raise ToolFailed(f"The {key} {self._path!r} leads elsewhere now", code="conflict")

    def hides(self, path: str, *, key: str = "path") -> bool:
        del key
        return path != self._path


class _Page:
    """One page of matches, up to the limits."""

    def __init__(self, query: _Query, guard: PathGuard) -> None:
        self._query = query
        self._guard = guard
        self._lines: list[str] = []
        self._characters = 0
        self._left = query.most
        self._until = time.monotonic() + _MAX_SECONDS
        self._stop = ""

    def is_full(self, following: str) -> bool:
        """Return True if a limit is reached. Called before each file, whose path is `following`."""
        if not self._stop and time.monotonic() > self._until:
            self._stop_at(f"{_MAX_SECONDS:.0f} seconds", following)
        return bool(self._stop)

    def add(self, path: str, data: bytes) -> None:
        # One more than fits shows that there are more.
        most = 1 if self._query.files_only else self._left + 1
        matched = _list_lines(self._query.expression, data, most)
        # Only for files with a match: the rules are evaluated for each path.
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


def _list_lines(expression: SearchExpression, data: bytes, most: int) -> list[int]:
    """List the numbers of the first matching lines, from 0, up to `most`."""
    found: list[int] = []
    line = counted = start = 0
    while start < len(data) and len(found) < most and (place := expression.find(data, start)) >= 0:
        line += data.count(b"\n", counted, place)
        if place == len(data) and data.endswith(b"\n"):
            break  # the end of the last line does not start another one
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
