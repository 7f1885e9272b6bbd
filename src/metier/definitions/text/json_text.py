"""Parses JSON into the same nodes as YAML, so that every value has a line."""

import json
import re
from bisect import bisect_right

from msgspec import Struct

from metier.definitions.problems import Problem
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_WORD = re.compile(r"[^\s,\]}]+")


class JsonDocument(Struct, frozen=True):
    root: Node | None
    """None if the text is not JSON."""
    problems: tuple[Problem, ...] = ()


def read_json(data: bytes | str, *, file: str = "") -> JsonDocument:
    """Parse a document. Never raises; problems are in `problems`. The last of duplicate keys is used, as in `json`."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        # The standard parser validates the text; the nodes only add lines.
        json.loads(text)
        nodes = _Nodes(text, file)
        root, _ = nodes.read(0)
    except UnicodeDecodeError:
        return JsonDocument(None, (_error("not_utf8", "The file is not UTF-8", file),))
    except json.JSONDecodeError as error:
        return JsonDocument(None, (_error("not_json", f"The file is not JSON: {error.msg}", file, error.lineno),))
    except ValueError as error:  # a number with more digits than Python converts
        return JsonDocument(None, (_error("not_json", f"The file is not JSON: {error}", file),))
    except RecursionError:
        return JsonDocument(None, (_error("too_deep", "The file is nested too deeply", file),))
    return JsonDocument(root, tuple(nodes.problems))


class _Nodes:
    """Builds the nodes of a text that is valid JSON."""

    def __init__(self, text: str, file: str) -> None:
        self._text = text
        self._file = file
        self._ends = [match.end() for match in re.finditer("\n", text)]
        self.problems: list[Problem] = []

    def read(self, at: int) -> tuple[Node, int]:
        """Return the value at a position, and the position after it."""
        at = self._skip(at)
        match self._text[at]:
            case "{":
                return self._read_object(at)
            case "[":
                return self._read_array(at)
            case '"':
                value, end = self._read_string(at)
                return Scalar(value, self._line(at), is_plain=False), end
            case _:
                word = _WORD.match(self._text, at)
                assert word is not None
                return Scalar(word[0], self._line(at)), word.end()

    def _read_object(self, start: int) -> tuple[Mapping, int]:
        entries: dict[str, Entry] = {}
        at = self._skip(start + 1)
        while self._text[at] != "}":
            line = self._line(at)
            key, at = self._read_string(at)
            value, at = self.read(self._skip(at) + 1)
            if key in entries:
                message = f"Key {key!r} is repeated; it is first in line {entries[key].line}"
                self.problems.append(_error("duplicate_key", message, self._file, line, hint="Keep one of them"))
            entries[key] = Entry(key, line, value)
            at = self._skip_comma(at)
        return Mapping(tuple(entries.values()), self._line(start)), at + 1

    def _read_array(self, start: int) -> tuple[Sequence, int]:
        items: list[Node] = []
        at = self._skip(start + 1)
        while self._text[at] != "]":
            item, at = self.read(at)
            items.append(item)
            at = self._skip_comma(at)
        return Sequence(tuple(items), self._line(start)), at + 1

    def _read_string(self, at: int) -> tuple[str, int]:
        string = _STRING.match(self._text, at)
        assert string is not None
        return str(json.loads(string[0])), string.end()

    def _skip(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return space.end() if space else at

    def _skip_comma(self, at: int) -> int:
        at = self._skip(at)
        return self._skip(at + 1) if self._text[at] == "," else at

    def _line(self, at: int) -> int:
        return bisect_right(self._ends, at) + 1


def _error(code: str, message: str, file: str, line: int = 1, *, hint: str = "") -> Problem:  # noqa: PLR0917
    return Problem(severity="error", code=code, message=message, file=file, line=line, hint=hint)
