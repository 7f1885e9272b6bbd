"""Characters that a person does not see and a model reads: zero-width, direction marks, tags, controls. Pure."""

import unicodedata

from metier.dataclass import dataclass

_JOINERS = "\u200c\u200d"
_BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols that look like nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenCharacter:
    line: int
    code_point: str
    """`U+200B`"""
    name: str


def find_hidden(text: str, *, limit: int = 20) -> tuple[HiddenCharacter, ...]:
    """The first hidden characters, in order. A byte order mark at the start and the joiners inside words and emoji of
    scripts that need them are not hidden."""
    found: list[HiddenCharacter] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if line.isascii() and line.replace("\t", "").rstrip("\r").isprintable():
            continue
        for position, char in enumerate(line):
            if _is_hidden(char) and not _is_joined(line, position):
                name = unicodedata.name(char, "control character")
                found.append(HiddenCharacter(line=number, code_point=f"U+{ord(char):04X}", name=name))
                if len(found) >= limit:
                    return tuple(found)
    return tuple(found)


def _is_hidden(char: str) -> bool:
    if char.isascii():
        return not char.isprintable() and char not in "\t\r\f"
    if 0xE0100 <= ord(char) <= 0xE01EF or char in _BLANKS:
        return True
    return unicodedata.category(char) in ("Cf", "Cc", "Co", "Zl", "Zp")


def _is_joined(line: str, position: int) -> bool:
    if line[position] not in _JOINERS or position == 0 or position + 1 >= len(line):
        return False
    before, after = line[position - 1], line[position + 1]
    return not before.isascii() and not after.isascii() and not _is_hidden(before) and not _is_hidden(after)
