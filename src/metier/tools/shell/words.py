"""Words of a command that mean more than their letters: file patterns and known variables. Marks, and what they become.

A mark is a character that no line contains, since lines are ASCII. So a word stays one text, `*` in quotes is told from
`*` as a pattern, and who compares literal words never takes one for the other.
"""

import os
from collections.abc import Mapping
from glob import escape, glob

from metier.lazy_regex import lazy_regex

ANY, ONE, OPEN, NOT, CLOSE = "\ue000", "\ue001", "\ue002", "\ue003", "\ue004"
"""`*`, `?`, `[`, `[!` and `]` where they stand for names of files."""
VARIABLE, END = "\ue010", "\ue011"
"""Around the name of a variable."""
FOLDER = f"{VARIABLE}PWD{END}"

KNOWN_VARIABLES = ("PWD", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "TERM", "TMPDIR")
"""A command sees them as the agent was started with them: nothing that a model wrote is in them."""
MAX_NAMES = 5_000
"""A pattern that stands for more files than this stays as it is."""

_PATTERNS = {"*": ANY, "?": ONE, "[!": NOT, "[^": NOT, "[": OPEN, "]": CLOSE}
_SHOWN = {ANY: "*", ONE: "?", NOT: "[!", OPEN: "[", CLOSE: "]"}
_MARKS = lazy_regex(f"([{ANY}-{CLOSE}]|{VARIABLE}[A-Z]+{END})")
_PATTERN_MARKS = frozenset(_SHOWN)
_WRITTEN_VARIABLE = lazy_regex(r"\$\{?([A-Z]+)\}?")


def mark_patterns(text: str) -> str:
    """A piece of an unquoted word in which `*`, `?` and brackets are patterns."""
    for letter, mark in _PATTERNS.items():
        text = text.replace(letter, mark)
    return text


def mark_variables(text: str) -> str:
    """A piece of a word in which every `$NAME` is a known variable."""
    return _WRITTEN_VARIABLE.sub(lambda found: f"{VARIABLE}{found[1]}{END}", text)


def is_open(word: str) -> bool:
    """It has a mark: what it means is known when it is run."""
    return _MARKS.search(word) is not None


def has_pattern(word: str) -> bool:
    return not _PATTERN_MARKS.isdisjoint(word)


def has_variable(word: str) -> bool:
    return VARIABLE in word


def split_marks(word: str) -> list[str]:
    """Literal texts and marks, in order; a variable is one piece with its name."""
    return [piece for piece in _MARKS.split(word) if piece]


def show_mark(piece: str, following: str = "") -> str:
    """A mark as it is written in a line."""
    if piece[0] != VARIABLE:
        return _SHOWN[piece]
    name = piece[1:-1]
    is_joined = bool(following) and (following[0].isalnum() or following[0] in f"_{OPEN}{NOT}")
    return f"${{{name}}}" if is_joined else f"${name}"


def show_word(word: str) -> str:
    """For people and for rules that read words: with `*` and `$NAME`, whether they stood in quotes or not."""
    if not is_open(word):
        return word
    return "".join(show_mark(piece) if _MARKS.fullmatch(piece) else piece for piece in split_marks(word))


def fill_variables(word: str, values: Mapping[str, str]) -> str:
    """With the value of each variable that has one here; nothing else changes."""
    for name, value in values.items():
        word = word.replace(f"{VARIABLE}{name}{END}", value)
    return word


def expand_pattern(word: str, folder: str) -> list[str]:
    """The files that the word stands for, or the word as it is written where there are none. Looks at the disk.

    A name that begins with a dash comes with `./` in front, so that no file is taken for an option.
    """
    pieces = split_marks(fill_variables(word, {"PWD": folder}))
    pattern = "".join(_SHOWN.get(piece) or escape(piece) for piece in pieces)
    found = sorted(glob(pattern, root_dir=folder))  # noqa: PTH207  names as they were written, `./` and all
    if not found or len(found) > MAX_NAMES:
        return [show_word(word)]
    return [f".{os.sep}{name}" if name.startswith("-") else name for name in found]
