"""Guess what an unknown word of a request meant: the nearest spellings that the catalog has. Pure.

Only words that no skill has are looked at, so a correctly written request costs nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from rapidfuzz import process
from rapidfuzz.distance import OSA, Prefix

from metier.routing.index import IndexTables

SHORTEST_WORD = 4
LONGEST_WORD = 40
MOST_REPAIRS = 32
"""Unknown words of one request that are looked at; a pasted log has thousands."""
MIN_SIMILARITY = 0.74
MEANINGS = 3
CERTAINTY = 0.8
"""What a repaired word counts at most, beside 1.0 for a known one."""

STEM_LETTERS = 4
MIN_PREFIX = 0.55
INFLECTED_CERTAINTY = 0.9


class Meaning(NamedTuple):
    """A spelling of the catalog that an unknown word may stand for."""

    word: str
    weight: float


def find_meanings(word: str, index: IndexTables) -> list[Meaning]:
    """The nearest known spellings, surest first; nothing for short words and plain numbers."""
    if not SHORTEST_WORD <= len(word) <= LONGEST_WORD or word.isdigit():
        return []
    if not index.forms_by_start:
        _group_forms(index)
    weights: dict[str, float] = {}
    for form, similarity in _misspelt(word, index):
        weights[form] = CERTAINTY * similarity
    for form, similarity in _inflected(word, index):
        weights[form] = max(weights.get(form, 0.0), INFLECTED_CERTAINTY * similarity)
    surest = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return [Meaning(form, weight) for form, weight in surest[:MEANINGS]]


def _misspelt(word: str, index: IndexTables) -> Iterator[tuple[str, float]]:
    choices: list[str] = []
    # No spelling that differs more in length can be similar enough.
    reach = int((1 - MIN_SIMILARITY) * (len(word) + 2))
    # The first letter stays: people rarely mistype it, and another one makes another word (`vstack`, `gstack`).
    for length in range(len(word) - reach, len(word) + reach + 1):
        choices += index.forms_by_start.get(f"1{word[0]}{length}", ())
    scorer = OSA.normalized_similarity
    yield from _rank(word, choices, scorer, at_least=MIN_SIMILARITY, most=2 * MEANINGS)


def _inflected(word: str, index: IndexTables) -> Iterator[tuple[str, float]]:
    """Spellings with the same beginning: `translator` for `translation`, and the cases of inflected languages."""
    choices = index.forms_by_start.get(word[:STEM_LETTERS], ())
    yield from _rank(word, choices, Prefix.normalized_similarity, at_least=MIN_PREFIX, most=MEANINGS)


def _rank(
    word: str, choices: Iterable[str], scorer: Callable[..., float], *, at_least: float, most: int
) -> Iterator[tuple[str, float]]:
    # Of equally near spellings the first stays, so their order must not depend on how the index was built.
    found = process.extract(word, sorted(choices), scorer=scorer, limit=most, score_cutoff=at_least)
    return ((form, similarity) for form, similarity, _ in found)


def _group_forms(index: IndexTables) -> None:
    """Group spellings by first letter and length, and by beginning."""
    groups: dict[str, list[str]] = {}
    for form in index.forms:
        if len(form) >= SHORTEST_WORD - 1 and not form.isdigit():
            groups.setdefault(f"1{form[0]}{len(form)}", []).append(form)
            groups.setdefault(form[:STEM_LETTERS], []).append(form)
    # At once, so that another thread never sees half of it.
    index.forms_by_start.update(groups)
