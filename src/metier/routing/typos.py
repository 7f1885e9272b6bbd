"""Guess what an unknown word of a request meant: the nearest spellings that the catalog has. Pure.

Only words that no skill has are looked at, so a correctly written request costs nothing.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from metier.definitions.spelling import measure_beginning, measure_typing, rank
from metier.routing.index import IndexTables

SHORTEST_WORD = 4
LONGEST_WORD = 40
MOST_REPAIRS = 32
"""Unknown words of one request that are looked at; a pasted log has thousands."""
MIN_SIMILARITY = 0.74
MEANINGS = 3
CERTAINTY = 0.8
"""What a repaired word counts at most, beside 1.0 for a known one."""
ROUNDING = 1e-6
"""A bound that is a whole number stays one, whatever the last bits of the product are."""

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
    letters = _find_letters(word)
    # The first letter stays: people rarely mistype it, and another one makes another word (`vstack`, `gstack`).
    for length in range(len(word) - reach, len(word) + reach + 1):
        # A letter that only one of the two has was typed wrong; comparing letters costs less than comparing spellings.
        slips = int((1 - MIN_SIMILARITY) * max(len(word), length) + ROUNDING)
        choices += [
            form
            for form, having in _list_forms(index, word[0], length)
            # The first of the three turns nearly all of them down.
            if (apart := letters ^ having).bit_count() <= 2 * slips
            and (apart & letters).bit_count() <= slips
            and (apart & having).bit_count() <= slips
        ]
    # Of equally near spellings the first stays, so their order must not depend on how the index was built.
    for form, similarity, _ in rank(word, sorted(choices), measure_typing, at_least=MIN_SIMILARITY, most=2 * MEANINGS):
        yield form, similarity


def _list_forms(index: IndexTables, first: str, length: int) -> list[tuple[str, int]]:
    """The spellings of this length with this first letter, each with its letters."""
    key = f"1{first}{length}"
    known = index.letters_by_start.get(key)
    if known is None:
        known = [(form, _find_letters(form)) for form in index.forms_by_start.get(key, ())]
        index.letters_by_start[key] = known
    return known


def _find_letters(word: str) -> int:
    """One bit for each letter that the word has, and one for each that it has twice; some letters share a bit."""
    letters = 0
    for letter in word:
        bit = 1 << (ord(letter) & 31)
        letters |= bit << 32 if letters & bit else bit
    return letters


def _inflected(word: str, index: IndexTables) -> Iterator[tuple[str, float]]:
    """Spellings with the same beginning: `translator` for `translation`, and the cases of inflected languages."""
    least = word[: math.ceil(MIN_PREFIX * len(word) - ROUNDING)]
    choices = sorted(form for form in index.forms_by_start.get(word[:STEM_LETTERS], ()) if form.startswith(least))
    for form, similarity, _ in rank(word, choices, measure_beginning, at_least=MIN_PREFIX, most=MEANINGS):
        yield form, similarity


def _group_forms(index: IndexTables) -> None:
    """Group spellings by first letter and length, and by beginning."""
    groups: dict[str, list[str]] = {}
    for form in index.forms:
        if len(form) >= SHORTEST_WORD - 1 and not form.isdigit():
            groups.setdefault(f"1{form[0]}{len(form)}", []).append(form)
            groups.setdefault(form[:STEM_LETTERS], []).append(form)
    # At once, so that another thread never sees half of it.
    index.forms_by_start.update(groups)
