"""Splits a Markdown file into front matter and body.

In strict mode, a file must start with a line `---` and end its front matter with another one, with YAML in between. A
lenient reader accepts and reports deviations, such as leading blank lines, a missing end marker or an invalid value.
"""

import re
from pathlib import Path

from msgspec import Struct

from metier.definitions.files.contained_path import read_contained
from metier.definitions.problems import Problem, Severity, has_errors
from metier.definitions.text.yaml_text import Entry, Mapping, Scalar, read_yaml

_FIELD = re.compile(r"""(["']?)([A-Za-z_][A-Za-z0-9_. -]{0,63})\1[ \t]*:(?:[ \t]+(.*)|[ \t]*)""")
_GLUED_VALUE = re.compile(r"^(name|description|license|version|author|compatibility):(?=[^\s:/])", re.MULTILINE)
_BLOCK_START = re.compile(r"[|>][+-]?[0-9]?[ \t]*")
_INDENT_TAB = re.compile(r"^[ ]*\t[ \t]*", re.MULTILINE)
_MAX_LINES = 2_000
_OPEN = re.compile(r"---[ \t]*\n")
_LATE_OPEN = re.compile(r"^---[ \t]*\n(?=(?:name|description)[ \t]*:)", re.MULTILINE)
_GLUED_OPEN = re.compile(r"---[ \t]*(?=(?:name|description)[ \t]*:)")
_RULE_CLOSE = re.compile(r"(?<=\n\n)-{4,}[ \t]*$", re.MULTILINE)
_BARE_FIELD = re.compile(r"(?=(?:name|description)[ \t]*:)")
# YAML also ends a document with three dots.
_CLOSE = re.compile(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)
# Everything that YAML does not allow in a text. It allows U+0085, a line end of mainframes.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff\ud800-\udfff]")
_LINE_ENDS = re.compile(r"\r\n?")
_HEADING_OR_GAP = re.compile(r"^(?:#{1,6}[ \t]|[ \t]*$)", re.MULTILINE)
_HEADING_AFTER_GAP = re.compile(r"^[ \t]*\n(?=#{1,6}[ \t])", re.MULTILINE)
_MAX_PREFACE = 2_000
"""Maximum number of characters before the first marker, for files that start with a comment."""
_LIMITS = frozenset({"yaml_too_large", "yaml_too_deep", "yaml_too_many_nodes"})
"""A text that exceeds a limit is not parsed again field by field."""
_BEGIN = "Begin the file with a line '---', the fields, and a line '---'"
_NO_END = "End the front matter with a line '---'"


class Repaired(Struct, frozen=True):
    mapping: Mapping
    problems: tuple[Problem, ...]


class _Block(Struct, frozen=True):
    line: int
    lines: tuple[str, ...]


def repair_yaml(text: str, *, file: str, first_line: int) -> Repaired | None:
    """Return the readable fields, with a warning for each invalid one, or None if there are no fields."""
    entries: dict[str, Entry] = {}
    problems: list[Problem] = []
    for glued in _GLUED_VALUE.finditer(text):
        message = f"Field {glued[1]!r} has no space behind its colon"
        line = first_line + text.count("\n", 0, glued.start())
        problems.append(_warning("yaml_repaired", message, file=file, line=line, hint=f"Write '{glued[1]}: …'"))
    text = _GLUED_VALUE.sub(r"\1: ", text)
    for block in _split(text, first_line=first_line):
        for entry in _read_block(block, file=file, problems=problems):
            if entry.key in entries:
                message = f"Key {entry.key!r} is repeated; it is first in line {entries[entry.key].line}"
                problems.append(_warning("duplicate_key", message, file=file, line=entry.line))
            else:
                entries[entry.key] = entry
    if not entries:
        return None
    return Repaired(Mapping(tuple(entries.values()), first_line), tuple(problems))


def _split(text: str, *, first_line: int) -> list[_Block]:
    """Return one block per field: its unindented line and the lines up to the next field."""
    lines = text.split("\n")[:_MAX_LINES]
    starts = [index for index, line in enumerate(lines) if _FIELD.fullmatch(line)]
    # Without any field there is still this one end, so `zip` is strict only if there are fields.
    ends = [*starts[1:], len(lines)]
    return [
        _Block(first_line + start, tuple(lines[start:end])) for start, end in zip(starts, ends, strict=bool(starts))
    ]


def _read_block(block: _Block, *, file: str, problems: list[Problem]) -> tuple[Entry, ...]:
    text = "\n".join(block.lines) + "\n"
    # YAML forbids tabs as indentation, so the second attempt has spaces instead.
    for attempt in (text, _INDENT_TAB.sub(_spaces, text)):
        document = read_yaml(attempt, file=file, first_line=block.line)
        if isinstance(document.root, Mapping):
            problems.extend(
                _warning(problem.code, problem.message, file=file, line=problem.line or block.line)
                for problem in document.problems
            )
            if attempt is not text:
                problems.append(_warning("tab_indent", "Tabs indent this field", file=file, line=block.line))
            return document.root.entries
    return (_as_text(block, file=file, problems=problems),)


def _as_text(block: _Block, *, file: str, problems: list[Problem]) -> Entry:
    found = _FIELD.fullmatch(block.lines[0])
    assert found is not None
    key, value = found.group(2).strip(), (found.group(3) or "").strip()
    rest = " ".join(line.strip() for line in block.lines[1:] if line.strip() and not line.startswith("#"))
    # Only the marker of a block scalar; its text is in the lines below.
    if _BLOCK_START.fullmatch(value):
        value = ""
    value = f"{value} {rest}".strip()
    message = f"Field {key!r} is not YAML and was read as plain text"
    problems.append(_warning("yaml_repaired", message, file=file, line=block.line, hint="Put the value in quotes"))
    return Entry(key, block.line, Scalar(_unquoted(value), block.line, is_plain=False))


def _unquoted(value: str) -> str:
    quote = value[:1]
    if quote not in ("'", '"') or not value:
        return value
    inner = value[1:]
    return inner[:-1] if inner.endswith(quote) else inner


def _spaces(found: re.Match[str]) -> str:
    return found.group().replace("\t", "  ")


def _warning(code: str, message: str, *, file: str, line: int, hint: str = "") -> Problem:
    return Problem(severity="warning", code=code, message=message, file=file, line=line, hint=hint)


class FrontMatter(Struct, frozen=True):
    mapping: Mapping | None
    """None if the front matter is missing or unreadable."""
    body: str
    body_line: int
    """Line of the file in which the body starts, counted from 1."""
    header: str
    """The text between the markers."""
    problems: tuple[Problem, ...]


def read_front_matter(data: bytes, *, file: str = "", strict: bool = False) -> FrontMatter:
    """Split a text. Never raises; problems are in `problems`."""
    return _Splitter(file=file, strict=strict).read(data)


def read_body(data: bytes) -> str:
    """Return the body of a file for which `read_front_matter` reported no problem."""
    return _Splitter(file="", strict=False).read_body(data)


class _Splitter:
    def __init__(self, *, file: str, strict: bool) -> None:
        self._file = file
        self._strict = strict
        self._problems: list[Problem] = []

    def read(self, data: bytes) -> FrontMatter:
        text = self._decode(data)
        opening = _OPEN.match(text) or self._find_late_opening(text)
        if opening is None:
            return self._without_front_matter(text)
        start = opening.end()
        header, body_at = self._cut(text, start)
        mapping, used = self._parse(header, first_line=text.count("\n", 0, start) + 1)
        if used < len(header):
            header, body_at = header[:used], start + used
        body_line = text.count("\n", 0, body_at) + 1
        return FrontMatter(mapping, text[body_at:], body_line, header, tuple(self._problems))

    def read_body(self, data: bytes) -> str:
        text = self._decode(data)
        opening = _OPEN.match(text)
        return text if opening is None else text[self._cut(text, opening.end())[1] :]

    def _decode(self, data: bytes) -> str:
        if data.startswith(b"\xef\xbb\xbf"):
            data = data[3:]
            self._report("warning", "byte_order_mark", "The file begins with a byte order mark", line=1)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            text = self._decode_other(data, error)
        return _LINE_ENDS.sub("\n", text) if "\r" in text else text

    def _decode_other(self, data: bytes, error: UnicodeDecodeError) -> str:
        # Windows PowerShell writes redirected output like this.
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            self._deviate("not_utf8", "The file is UTF-16, not UTF-8", line=1)
            return data.decode("utf-16", "replace")
        line = data.count(b"\n", 0, error.start) + 1
        self._deviate("not_utf8", f"Byte 0x{data[error.start]:02x} is not UTF-8", line=line)
        return data.decode("utf-8", "replace")

    def _find_late_opening(self, text: str) -> re.Match[str] | None:
        """Find front matter after blank lines, a comment or a code fence, or without its first marker."""
        start = len(text) - len(text.lstrip())
        found = (
            _OPEN.match(text, start)
            or _GLUED_OPEN.match(text, start)
            or _LATE_OPEN.search(text, start, start + _MAX_PREFACE)
        )
        if found is None:
            found = _BARE_FIELD.match(text, start)
        if found is not None:
            line = text.count("\n", 0, found.start()) + 1
            self._deviate("late_front_matter", "The file must begin with a line '---'", line=line)
        return found

    def _without_front_matter(self, text: str) -> FrontMatter:
        if text.strip():
            self._deviate("no_front_matter", "The file has no front matter", line=1, hint=_BEGIN)
        else:
            self._report("error", "empty_file", "The file is empty", line=1)
        return FrontMatter(None, text, 1, "", tuple(self._problems))

    def _cut(self, text: str, start: int) -> tuple[str, int]:
        """Return the header and the start of the body."""
        closing = _CLOSE.search(text, start)
        rule = _RULE_CLOSE.search(text, start, closing.start() if closing else len(text))
        if rule is not None and _BARE_FIELD.match(text, start):
            line = text.count("\n", 0, rule.start()) + 1
            self._deviate("unclosed_front_matter", "The front matter ends with a rule", line=line, hint=_NO_END)
            closing = rule
        if closing is not None:
            # The marker may be the last line of the file, without a line end.
            return text[start : closing.start()], min(closing.end() + 1, len(text))
        line = max(1, text.count("\n", 0, start))
        self._deviate("unclosed_front_matter", "The front matter has no end", line=line, hint=_NO_END)
        gap = _HEADING_OR_GAP.search(text, start)
        end = gap.start() if gap else len(text)
        return text[start:end], end

    def _parse(self, header: str, *, first_line: int) -> tuple[Mapping | None, int]:
        """Return the fields, and the length of the header that they cover."""
        clean = self._without_control(header, first_line=first_line)
        document = read_yaml(clean, file=self._file, first_line=first_line)
        if isinstance(document.root, Mapping):
            for problem in document.problems:
                self._deviate(problem.code, problem.message, line=problem.line, hint=problem.hint)
            return document.root, len(header)
        if not self._strict and not any(problem.code in _LIMITS for problem in document.problems):
            repaired = self._repair(clean, first_line=first_line)
            if repaired is not None:
                return repaired
            if isinstance(document.root, Scalar) or document.problems:
                # Without any field, the marker was a horizontal rule at the top of a text.
                self._deviate("no_front_matter", "The file has no front matter", line=first_line, hint=_BEGIN)
                return None, 0
        self._refuse(document.problems, first_line=first_line, is_empty=document.root is None)
        return None, len(header)

    def _repair(self, header: str, *, first_line: int) -> tuple[Mapping, int] | None:
        # If a heading follows, the end marker was a horizontal rule in the body, and the fields end at the heading.
        heading = _HEADING_AFTER_GAP.search(header)
        used = heading.start() if heading else len(header)
        repaired = repair_yaml(header[:used], file=self._file, first_line=first_line)
        if repaired is None:
            return None
        if heading:
            line = first_line + header.count("\n", 0, used)
            self._deviate("unclosed_front_matter", "The front matter has no end", line=line, hint=_NO_END)
        self._problems.extend(repaired.problems)
        return repaired.mapping, used

    def _refuse(self, problems: tuple[Problem, ...], *, first_line: int, is_empty: bool) -> None:
        self._problems.extend(problems)
        if problems:
            return
        if is_empty:
            self._deviate("empty_front_matter", "The front matter has no fields", line=first_line)
        else:
            hint = "Write one 'key: value' in each line"
            self._report("error", "not_a_mapping", "The front matter is not a mapping", line=first_line, hint=hint)

    def _without_control(self, header: str, *, first_line: int) -> str:
        found = _CONTROL.search(header)
        if found is None:
            return header
        line = first_line + header.count("\n", 0, found.start())
        message = f"Control character U+{ord(found.group()):04X} in the front matter"
        self._deviate("control_character", message, line=line)
        return _CONTROL.sub("\ufffd", header)

    def _deviate(self, code: str, message: str, *, line: int | None, hint: str = "") -> None:
        self._report("error" if self._strict else "warning", code, message, line=line, hint=hint)

    def _report(self, severity: Severity, code: str, message: str, *, line: int | None, hint: str = "") -> None:
        self._problems.append(
            Problem(severity=severity, code=code, message=message, file=self._file, line=line, hint=hint)
        )


MAX_FILE_BYTES = 4 * 1024 * 1024


class Document(Struct, frozen=True, kw_only=True):
    file: str
    root: Mapping = Mapping((), 1)
    """The front matter."""
    problems: tuple[Problem, ...] = ()
    body: str = ""
    body_line: int = 1
    data: bytes = b""
    """The bytes of the file."""

    @property
    def is_unreadable(self) -> bool:
        """Return True if no field could be read. The reason is in `problems`."""
        return not self.root.entries and has_errors(self.problems)


def load_document(file: Path, *, within: Path | None = None) -> Document:
    """Load a file. Never raises; problems are in `problems`. Links must not leave `within`, by default the folder."""
    try:
        data = read_contained(file, within=within or file.parent, limit=MAX_FILE_BYTES)
    except OSError as error:
        return _without_text(file, "unreadable", f"The file cannot be read: {error.strerror}")
    return parse_document(data, file=file)


def parse_document(data: bytes, *, file: Path) -> Document:
    """Parse the bytes of a file; `file` is its path in problems."""
    if len(data) > MAX_FILE_BYTES:
        return _without_text(file, "file_too_large", f"The file is larger than {MAX_FILE_BYTES} bytes")
    front = read_front_matter(data, file=str(file), strict=True)
    return Document(
        file=str(file),
        # A problem of the whole front matter is reported for the first line.
        root=Mapping(front.mapping.entries if front.mapping else (), 1),
        problems=front.problems,
        body=front.body,
        body_line=front.body_line,
        data=data,
    )


def _without_text(file: Path, code: str, message: str) -> Document:
    problem = Problem(severity="error", code=code, message=message, file=str(file), line=1)
    return Document(file=str(file), problems=(problem,))
