"""Reads YAML as text: every scalar stays a string with its line.

YAML's own types would turn a skill named `on` into true and a version `1.0` into a number, and lose the line. Instead,
the model of a file defines the types.

Hostile input costs a bounded amount of work: size, depth and number of nodes are limited. Anchors, aliases, merge
keys, tags and directives are errors; a lenient reader continues with the text as written, counts the expansion of an
alias, and treats a merge key as an ordinary key.
"""

from collections.abc import Iterator

import yaml
from msgspec import Struct

from metier.definitions.problems import Problem, Severity

MAX_BYTES = 64 * 1024
MAX_DEPTH = 20
MAX_NODES = 10_000
_NOTHING = frozenset({"", "~", "null", "Null", "NULL"})

type Node = Scalar | Sequence | Mapping
type Plain = str | list[Plain] | dict[str, Plain] | None


class Scalar(Struct, frozen=True):
    value: str
    line: int
    is_plain: bool = True
    """True if written without quotes and not as a block. Only then `null` and `~` mean null."""


class Sequence(Struct, frozen=True):
    items: tuple[Node, ...]
    line: int


class Entry(Struct, frozen=True):
    key: str
    line: int
    value: Node


class Mapping(Struct, frozen=True):
    entries: tuple[Entry, ...]
    line: int

    def find(self, key: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.key == key), None)

    def find_value(self, key: str) -> Node | None:
        """Find the value of a key, if it is not empty."""
        entry = self.find(key)
        return None if entry is None or is_nothing(entry.value) else entry.value


class YamlDocument(Struct, frozen=True):
    root: Node | None
    """None if the text is empty or invalid."""
    problems: tuple[Problem, ...] = ()


_SYNTAX_HINTS = {
    "found character that cannot start any token": "Indent with spaces instead of tabs, and quote values like '@name'",
    "mapping values are not allowed in this context": "Quote a value that contains ': ', or correct the indentation",
}
"""Common causes of the parser's messages."""


class _Refused(Exception):
    """Stops reading a text. The reader converts it to a problem."""

    def __init__(self, code: str, message: str, *, line: int, hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.line, self.hint = code, message, line, hint


def read_yaml(text: str, *, file: str = "", first_line: int = 1) -> YamlDocument:
    """Read a document. Never raises; problems are in `problems`."""
    reader = _Reader(file=file, first_line=first_line)
    try:
        root = reader.read(text)
    except _Refused as refused:
        reader.report("error", refused.code, refused.message, line=refused.line, hint=refused.hint)
        root = None
    except yaml.YAMLError as error:
        reader.report_syntax(error)
        root = None
    return YamlDocument(root, tuple(reader.problems))


def plain_value(node: Node) -> Plain:
    """Return strings, lists and dicts without positions; an unquoted empty or `null` scalar is None."""
    match node:
        case Scalar() if is_nothing(node):
            return None
        case Scalar(value=value):
            return value
        case Sequence(items=items):
            return [plain_value(item) for item in items]
        case Mapping(entries=entries):
            return {entry.key: plain_value(entry.value) for entry in entries}


def is_nothing(node: Node) -> bool:
    return isinstance(node, Scalar) and node.is_plain and node.value in _NOTHING


def flat_texts(node: Node) -> list[str]:
    """Return every text below the node in order. Entries of a mapping become `key: value`."""
    match node:
        case Scalar(value=value):
            return [value.strip()] if value.strip() and not is_nothing(node) else []
        case Sequence(items=items):
            return [text for item in items for text in flat_texts(item)]
        case Mapping(entries=entries):
            return [f"{entry.key}: {', '.join(flat_texts(entry.value))}".rstrip(": ") for entry in entries]


def list_texts(node: Node) -> tuple[str, ...]:
    """Return every text below a node; a single text is split at commas."""
    if isinstance(node, Scalar):
        return tuple(part.strip() for part in node.value.split(",") if part.strip())
    return tuple(flat_texts(node))


def _with_last_line_end(text: str) -> str:
    """Add a line end after trailing spaces, which the parser would otherwise treat as another line."""
    return f"{text}\n" if text[text.rfind("\n") + 1 :].isspace() else text


def _parse(text: str) -> Iterator[yaml.Event]:
    # Like `yaml.parse`, without its Python loop: after the last event the parser returns `None`.
    return iter(yaml.CBaseLoader(text).get_event, None)


class _Reader:
    """Builds nodes from parser events, and enforces the limits."""

    def __init__(self, *, file: str, first_line: int) -> None:
        self.file = file
        self.offset = first_line
        self.problems: list[Problem] = []
        self._reported: set[tuple[str, str]] = set()
        """Codes and messages of reported problems. An alias that is used a thousand times is reported once."""
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0
        self._text = ""

    def report(self, severity: Severity, code: str, message: str, *, line: int, hint: str = "") -> None:
        if (code, message) not in self._reported:
            self._reported.add((code, message))
            self.problems.append(
                Problem(severity=severity, code=code, message=message, file=self.file, line=line, hint=hint)
            )

    def report_syntax(self, error: yaml.YAMLError) -> None:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        line = (mark.line if mark else 0) + self.offset
        what = (error.problem if isinstance(error, yaml.MarkedYAMLError) else None) or "the text is not YAML"
        self.report("error", "yaml_syntax", f"YAML syntax error: {what}", line=line, hint=_SYNTAX_HINTS.get(what, ""))

    def read(self, text: str) -> Node | None:
        # A character has at most four bytes, so a short text is within the limit without encoding it.
        if len(text) * 4 > MAX_BYTES and len(text.encode("utf-8", "replace")) > MAX_BYTES:
            raise _Refused("yaml_too_large", f"The YAML is larger than {MAX_BYTES} bytes", line=self.offset)
        self._text = _with_last_line_end(text)
        events = _parse(self._text)
        root: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if event.version or event.tags:
                    message = "A YAML directive has no effect here"
                    self.report("error", "yaml_directive", message, line=self.offset, hint="Remove the line")
                if documents > 1:
                    where = self._line(event)
                    raise _Refused("yaml_many_documents", "The YAML has more than one document", line=where)
                root = self._node(next(events), events, depth=1)
        return root

    def _node(self, event: yaml.Event, events: Iterator[yaml.Event], *, depth: int) -> Node:
        line = self._line(event)
        self._spend(1, line)
        if depth > MAX_DEPTH:
            raise _Refused("yaml_too_deep", f"The YAML is nested deeper than {MAX_DEPTH} levels", line=line)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event.anchor or "", line)
        self._check_properties(event, line)
        before = self._count
        node = self._collection_or_scalar(event, events, depth=depth)
        anchor = getattr(event, "anchor", None)
        if anchor:
            # After the node was read: an alias inside it would refer to itself.
            self._anchors[anchor] = (node, self._count - before + 1)
        return node

    def _check_properties(self, event: yaml.Event, line: int) -> None:
        """Report anchors and tags, because tools interpret them differently."""
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor:
            message = f"Anchor '&{anchor}' is not supported"
            self.report("error", "yaml_anchor", message, line=line, hint="Write the value out where it is used")
        if tag:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            message = f"Tag {shown!r} is not supported: every value is text"
            self.report("error", "yaml_tag", message, line=line, hint="Remove the tag")

    def _collection_or_scalar(self, event: yaml.Event, events: Iterator[yaml.Event], *, depth: int) -> Node:
        line = self._line(event)
        match event:
            case yaml.ScalarEvent():
                return Scalar(event.value, line, is_plain=event.style is None or event.style == "")
            case yaml.SequenceStartEvent():
                return Sequence(tuple(self._items(events, depth=depth)), line)
            case _:
                return Mapping(tuple(self._entries(events, depth=depth)), line)

    def _items(self, events: Iterator[yaml.Event], *, depth: int) -> Iterator[Node]:
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                return
            yield self._node(event, events, depth=depth + 1)

    def _entries(self, events: Iterator[yaml.Event], *, depth: int) -> Iterator[Entry]:
        seen: dict[str, int] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                return
            self._check_key(event)
            key = self._node(event, events, depth=depth + 1)
            if not isinstance(key, Scalar):
                raise _Refused("yaml_key", "A key must be plain text", line=key.line)
            value = self._node(next(events), events, depth=depth + 1)
            if key.value in seen:
                message = f"Key {key.value!r} is repeated; it is first in line {seen[key.value]}"
                self.report("error", "duplicate_key", message, line=key.line, hint="Keep one of them")
                continue
            if key.value == "<<" and key.is_plain:
                message = "The merge key '<<' is not supported"
                self.report("error", "yaml_merge_key", message, line=key.line, hint="Write the fields out")
            seen[key.value] = key.line
            yield Entry(key.value, key.line, value)

    def _check_key(self, event: yaml.Event) -> None:
        # In `{?a: b}` libyaml reads the question mark as an indicator; by the specification it is part of the key.
        index = event.start_mark.index if event.start_mark else 0
        if index and self._text[index - 1 : index] == "?":
            raise _Refused("yaml_key", "A key must not begin with '?'", line=self._line(event), hint="Put it in quotes")

    def _alias(self, anchor: str, line: int) -> Node:
        known = self._anchors.get(anchor)
        if known is None:
            raise _Refused("yaml_alias", f"Alias {anchor!r} names no anchor before it", line=line)
        node, size = known
        # Counted as if written out: a few nested aliases can stand for billions of values.
        self._spend(size, line)
        message = f"Alias '*{anchor}' is not supported"
        self.report("error", "yaml_alias", message, line=line, hint="Write the value out")
        return node

    def _line(self, event: yaml.Event) -> int:
        return (event.start_mark.line if event.start_mark else 0) + self.offset

    def _spend(self, nodes: int, line: int) -> None:
        self._count += nodes
        if self._count > MAX_NODES:
            hint = "Write the value out, or split the file"
            raise _Refused("yaml_too_many_nodes", f"The YAML has more than {MAX_NODES} values", line=line, hint=hint)
