"""The word somebody probably meant."""

from collections.abc import Iterable

from rapidfuzz import process

_SCORE = 70


def find_nearest(word: str, words: Iterable[str]) -> str | None:
    """The most similar of the words, when one is similar at all; of equals the first in the alphabet."""
    best = process.extractOne(word, sorted(words), score_cutoff=_SCORE)
    return best[0] if best else None


def hint_nearest(word: str, words: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or nothing."""
    nearest = find_nearest(word, words)
    return f"Did you mean {nearest!r}?" if nearest else ""
