"""Suggestions for misspelled names."""

from collections.abc import Iterable, Sequence

from rapidfuzz import fuzz, process

_ALIKE = 60.0
_WITHIN = 85.0
_LONG_ENOUGH = 4
"""Minimum length for a partial match, because shorter words occur inside others by chance."""
_MAX_COMPARED = 500
"""Maximum number of characters to compare: a name from a model may have millions."""


def find_nearest(word: str, words: Iterable[str]) -> str | None:
    """Find the most similar word, or one that contains the given word.

    `-` and `_` are equal. The first in alphabetical order wins a tie.
    """
    choices = sorted(words)
    best = process.extractOne(word, choices, scorer=fuzz.ratio, processor=_fold, score_cutoff=_ALIKE)
    if best is None and len(word) >= _LONG_ENOUGH:
        longer = [choice for choice in choices if len(choice) >= _LONG_ENOUGH]
        best = process.extractOne(word, longer, scorer=fuzz.partial_ratio, processor=_fold, score_cutoff=_WITHIN)
    return best[0] if best else None


def list_nearest(word: str, words: Sequence[str], *, at_least: float = 0.0, most: int = 3) -> list[str]:
    """Return the most similar words, best first. `at_least` is a similarity from 0 to 1."""
    nearest = process.extract(
        word, words, scorer=fuzz.WRatio, processor=_truncate, limit=most, score_cutoff=100 * at_least
    )
    return [found for found, *_ in nearest]


def hint_nearest(word: str, words: Iterable[str]) -> str:
    """Return `Did you mean 'x'?` for the nearest word, or an empty string."""
    return suggest(find_nearest(word, words))


def suggest(name: str | None) -> str:
    """Return `Did you mean 'x'?`, or an empty string without a name."""
    return f"Did you mean {name!r}?" if name else ""


def _fold(word: str) -> str:
    return _truncate(word).replace("_", "-")


def _truncate(word: str) -> str:
    return word[:_MAX_COMPARED]
