"""The known names nearest to one that was mistyped: the one place that compares spellings for a hint."""

from collections.abc import Iterable, Sequence

from metier.definitions.spelling import Measure, measure_common, measure_name, measure_part, rank

_ALIKE = 0.60
_WITHIN = 0.85
_LONG_ENOUGH = 4
"""Shorter words stand inside others by chance."""


def find_nearest(word: str, words: Iterable[str]) -> str | None:
    """The one of the words that is written most alike, or else one that the word is a part of, if there is any.

    `-` and `_` are the same; of equals the first in the alphabet is taken.
    """
    choices = sorted(words)
    best = _find_best(word, choices, measure_common, at_least=_ALIKE)
    if best is None and len(word) >= _LONG_ENOUGH:
        longer = [choice for choice in choices if len(choice) >= _LONG_ENOUGH]
        best = _find_best(word, longer, measure_part, at_least=_WITHIN)
    return best


def _find_best(word: str, choices: Sequence[str], measure: Measure, *, at_least: float) -> str | None:
    found = rank(_fold(word), map(_fold, choices), measure, at_least=at_least, most=1)
    return choices[found[0].place] if found else None


def list_nearest(word: str, words: Sequence[str], *, at_least: float = 0.0, most: int = 3) -> list[str]:
    """The words most alike, the best first; `at_least` is a similarity from 0 to 1."""
    return [found.text for found in rank(word, words, measure_name, at_least=at_least, most=most)]


def hint_nearest(word: str, words: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or nothing."""
    return suggest(find_nearest(word, words))


def suggest(name: str | None) -> str:
    """A hint, or nothing."""
    return f"Did you mean {name!r}?" if name else ""


def _fold(word: str) -> str:
    return word.replace("_", "-")
