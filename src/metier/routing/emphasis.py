"""Which words of a request say what is wanted: acts, first and last sentences count more, pasted code less. Pure.

In a request the object ("GraphQL") is often rarer than the act ("estimate"), so that skills about the object win. Where
a sentence begins, and after "to" or "please", people write the act.
"""

import re
from collections.abc import Callable

from metier.routing.words import split_words

ACT_WEIGHT = 1.2
FIRST_WEIGHT, LAST_WEIGHT = 1.15, 1.2
"""Of several sentences, the first and the last say what is wanted; those between tell about it."""
CODE_WEIGHT = 0.6
"""A word that stands only in code, in a path or in an address."""

_VAGUE_ACTS = frozenset(
    {"add", "build", "check", "create", "find", "list", "look", "make", "set", "show", "update", "write"}
)
"""Acts of so many skills that they tell less than their object."""

_ACT = re.compile(
    r"(?:(?:^|[.!?\n])\s*|\b(?:and|i|let's|lets|me|need|please|then|to|want|we|you)\s+)([a-z]+)", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_CODE_SIGNS = re.compile(r"[`/]|\.[a-z]")
_FILE = re.compile(r"\.(?:cs|csv|go|java|js|json|jsx|md|pdf|py|rs|ts|tsx|ya?ml)\b", re.IGNORECASE)


def find_emphasis(text: str) -> Callable[[str], float]:
    """The factor of a word of this request, as `split_words` gives it."""
    acts = {match.lower() for match in _ACT.findall(text)} - _VAGUE_ACTS
    prose = _find_prose(text)
    first, last = _find_ends(text)

    def emphasize(word: str) -> float:
        factor = ACT_WEIGHT if word in acts else 1.0
        if word in last:
            factor *= LAST_WEIGHT
        elif word in first:
            factor *= FIRST_WEIGHT
        return factor if prose is None or word in prose else factor * CODE_WEIGHT

    return emphasize


def _find_ends(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of the first and of the last sentence; none where there is one sentence only."""
    sentences = _SENTENCE_END.split(text.strip())
    if len(sentences) < 2:
        return frozenset(), frozenset()
    return frozenset(split_words(sentences[0])), frozenset(split_words(sentences[-1]))


def _find_prose(text: str) -> set[str] | None:
    """The words outside of code, paths and addresses; nothing where the text has none of these."""
    if not _CODE_SIGNS.search(text):
        return None
    pieces = [piece for piece in _CODE.sub(" ", text).split() if not _is_path(piece)]
    return set(split_words(" ".join(pieces)))


def _is_path(piece: str) -> bool:
    return piece.count("/") > 1 or _FILE.search(piece) is not None
