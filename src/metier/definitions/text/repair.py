"""Save what can be saved of front matter that is not YAML: each field is read alone, a broken one as plain text."""

import re

from metier.dataclass import dataclass
from metier.definitions.problems import Problem
from metier.definitions.text.flat_yaml import read_flat
from metier.definitions.text.yaml_text import Entry, Mapping, Scalar, read_yaml
from metier.lazy_regex import lazy_regex

_FIELD = lazy_regex(r"""(["']?)([A-Za-z_][A-Za-z0-9_. -]{0,63})\1[ \t]*:(?:[ \t]+(.*)|[ \t]*)""")
_GLUED_VALUE = lazy_regex(r"^(name|description|license|version|author|compatibility):(?=[^\s:/])", re.MULTILINE)
_BLOCK_START = lazy_regex(r"[|>][+-]?[0-9]?[ \t]*")
_INDENT_TAB = lazy_regex(r"^[ ]*\t[ \t]*", re.MULTILINE)
_MAX_LINES = 2_000


@dataclass(frozen=True, slots=True)
class Repaired:
    mapping: Mapping
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Block:
    line: int
    lines: tuple[str, ...]


def repair_yaml(text: str, *, file: str, first_line: int) -> Repaired | None:
    """The fields that could be read, with a warning for each that was not YAML; `None` when there is no field."""
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
                message = f"Key {entry.key!r} stands twice, first in line {entries[entry.key].line}"
                problems.append(_warning("duplicate_key", message, file=file, line=entry.line))
            else:
                entries[entry.key] = entry
    if not entries:
        return None
    return Repaired(Mapping(tuple(entries.values()), first_line), tuple(problems))


def _split(text: str, *, first_line: int) -> list[_Block]:
    """One block for each line that begins a field at the margin, with the lines that follow it."""
    lines = text.split("\n")[:_MAX_LINES]
    starts = [index for index, line in enumerate(lines) if _FIELD.fullmatch(line)]
    ends = [*starts[1:], len(lines)]
    return [
        _Block(first_line + start, tuple(lines[start:end])) for start, end in zip(starts, ends, strict=bool(starts))
    ]


def _read_block(block: _Block, *, file: str, problems: list[Problem]) -> tuple[Entry, ...]:
    text = "\n".join(block.lines) + "\n"
    flat = read_flat(text, first_line=block.line)
    if flat is not None:
        return flat.entries
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
