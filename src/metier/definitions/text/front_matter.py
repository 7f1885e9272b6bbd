"""Split a Markdown file into front matter and body, as people write it. Reads text; knows no field names.

In strict reading a file begins with `---`, ends its front matter with a line `---`, and is YAML in between. A lenient
reader takes more: blank lines first, no end marker, one broken value among good ones. Each is a problem with a line.
"""

import re

from metier.dataclass import dataclass
from metier.definitions.problems import Problem, Severity
from metier.definitions.text.flat_yaml import read_flat
from metier.definitions.text.repair import repair_yaml
from metier.definitions.text.yaml_text import Mapping, Scalar, read_yaml
from metier.lazy_regex import lazy_regex

_OPEN = lazy_regex(r"---[ \t]*\n")
_LATE_OPEN = lazy_regex(r"^---[ \t]*\n(?=(?:name|description)[ \t]*:)", re.MULTILINE)
_GLUED_OPEN = lazy_regex(r"---[ \t]*(?=(?:name|description)[ \t]*:)")
_RULE_CLOSE = lazy_regex(r"(?<=\n\n)-{4,}[ \t]*$", re.MULTILINE)
_BARE_FIELD = lazy_regex(r"(?=(?:name|description)[ \t]*:)")
_CLOSE = lazy_regex(r"^(?:---|\.\.\.)[ \t]*$", re.MULTILINE)
_CONTROL = lazy_regex(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff\ud800-\udfff]")
_LINE_ENDS = lazy_regex(r"\r\n?")
_HEADING_OR_GAP = lazy_regex(r"^(?:#{1,6}[ \t]|[ \t]*$)", re.MULTILINE)
_HEADING_AFTER_GAP = lazy_regex(r"^[ \t]*\n(?=#{1,6}[ \t])", re.MULTILINE)
_PREFACE = 2_000
"""How many characters may stand before the first marker of a file whose author put a remark there."""
_LIMITS = frozenset({"yaml_too_large", "yaml_too_deep", "yaml_too_many_nodes"})
"""What is too much for the reader is not taken apart a second time."""
_BEGIN = "Begin the file with a line '---', the fields, and a line '---'"
_NO_END = "End the front matter with a line '---'"


@dataclass(frozen=True, slots=True)
class FrontMatter:
    mapping: Mapping | None
    """Nothing when there is none, or it could not be read."""
    body: str
    body_line: int
    """The line of the file in which the body begins, from 1."""
    header: str
    """The text between the markers, as it was read."""
    problems: tuple[Problem, ...]


def read_front_matter(data: bytes, *, file: str = "", strict: bool = False) -> FrontMatter:
    """Never raises: what is wrong is in `problems`."""
    return _Splitter(file=file, strict=strict).read(data)


def read_body(data: bytes) -> str:
    """The body of a file that `read_front_matter` reads without a problem; its fields are not read again."""
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
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            self._deviate("not_utf8", "The file is UTF-16, not UTF-8", line=1)
            return data.decode("utf-16", "replace")
        line = data.count(b"\n", 0, error.start) + 1
        self._deviate("not_utf8", f"Byte 0x{data[error.start]:02x} is not UTF-8", line=line)
        return data.decode("utf-8", "replace")

    def _find_late_opening(self, text: str) -> re.Match[str] | None:
        """Front matter after blank lines, a comment or a code fence, or without its first marker."""
        start = len(text) - len(text.lstrip())
        found = (
            _OPEN.match(text, start)
            or _GLUED_OPEN.match(text, start)
            or _LATE_OPEN.search(text, start, start + _PREFACE)
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
        """The header and where the body begins."""
        closing = _CLOSE.search(text, start)
        rule = _RULE_CLOSE.search(text, start, closing.start() if closing else len(text))
        if rule is not None and _BARE_FIELD.match(text, start):
            line = text.count("\n", 0, rule.start()) + 1
            self._deviate("unclosed_front_matter", "The front matter ends with a rule", line=line, hint=_NO_END)
            closing = rule
        if closing is not None:
            return text[start : closing.start()], min(closing.end() + 1, len(text))
        line = max(1, text.count("\n", 0, start))
        self._deviate("unclosed_front_matter", "The front matter has no end", line=line, hint=_NO_END)
        gap = _HEADING_OR_GAP.search(text, start)
        end = gap.start() if gap else len(text)
        return text[start:end], end

    def _parse(self, header: str, *, first_line: int) -> tuple[Mapping | None, int]:
        """The fields, and how much of the header they are."""
        flat = read_flat(header, first_line=first_line)
        if flat is not None:
            return flat, len(header)
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
                # A rule at the top of a text, not a marker: there is no field at all.
                self._deviate("no_front_matter", "The file has no front matter", line=first_line, hint=_BEGIN)
                return None, 0
        self._refuse(document.problems, first_line=first_line, is_empty=document.root is None)
        return None, len(header)

    def _repair(self, header: str, *, first_line: int) -> tuple[Mapping, int] | None:
        # A rule in the body was taken for the end: the fields stop where the first heading begins.
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
