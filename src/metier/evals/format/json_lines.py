"""Where the values of a JSON text stand: path of keys and positions → line. Pure; for text that was parsed before."""

import re
from collections.abc import Mapping

from metier.lazy_regex import lazy_regex

type Path = tuple[str | int, ...]

_TOKEN = lazy_regex(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)


class JsonLines:
    """Lines of the values in one text. Found when the first one is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines: Mapping[Path, int] | None = None

    def find(self, *path: str | int) -> int:
        """The line of a value; of what is around it where the path leads nowhere."""
        if self._lines is None:
            self._lines = find_lines(self._text)
        for length in range(len(path), -1, -1):
            if (line := self._lines.get(path[:length])) is not None:
                return line
        return 1


def find_lines(text: str) -> dict[Path, int]:
    """The line of each value by its path. Of a key that is there twice the last one counts, as in the parsed value."""
    lines: dict[Path, int] = {}
    stack: list[str | int] = []
    is_key_next = False
    position, line = 0, 1
    for token in _TOKEN.finditer(text):
        line += text.count("\n", position, token.start())
        position = token.start()
        word = token.group()
        match word:
            case "{":
                lines[tuple(stack)] = line
                stack.append("")
                is_key_next = True
            case "[":
                lines[tuple(stack)] = line
                stack.append(0)
                is_key_next = False
            case "}" | "]":
                if stack:
                    stack.pop()
                is_key_next = False
            case ",":
                if stack and isinstance(last := stack[-1], int):
                    stack[-1] = last + 1
                else:
                    is_key_next = True
            case ":":
                is_key_next = False
            case _ if is_key_next and stack:
                stack[-1] = _unescape(word)
            case _:
                lines[tuple(stack)] = line
    return lines


def _unescape(word: str) -> str:
    """Names of fields have no escapes in practice; one that has is found under its spelling in the file."""
    return word[1:-1] if word.startswith('"') else word
