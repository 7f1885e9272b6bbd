"""A request read against an index: which posting lists to walk, and how much each counts. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import NamedTuple

from metier.routing.index import IndexTables
from metier.routing.typos import MOST_REPAIRS, find_meanings
from metier.routing.words import FUNCTION_WEIGHT, split_segments, stem, weight_of

HEAD_CHARACTERS, TAIL_CHARACTERS = 6_000, 2_000
"""What is read of a very long request: people put what they want before or after what they pasted."""
REPEAT_SATURATION = 1.2
PAIR_IMPACT = 0.2


class Term(NamedTuple):
    """One word of the request that the catalog knows, perhaps by repair."""

    key: int
    weight: float
    word: str
    meant: str
    light: bool
    """Grammar only: refines the order, brings no skill in."""


class Pair(NamedTuple):
    key: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    terms: tuple[Term, ...]
    pairs: tuple[Pair, ...]


type _Meanings = tuple[tuple[int, float, str], ...]
"""Key, certainty, and the spelling that was taken instead; the best first."""


def clip_request(text: str) -> str:
    """The beginning and the end of a very long request, so that no request takes long."""
    if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return text
    return f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"


def read_request(text: str, index: IndexTables) -> Request:
    """Look up every word of the text; unknown ones are repaired where something near is known."""
    segments = list(split_segments(text))
    times = Counter(chain.from_iterable(segments))
    readings = _read_words(times, index)
    return Request(
        terms=_build_terms(readings, times, index),
        pairs=_build_pairs(segments, readings, index),
    )


def _read_words(words: Iterable[str], index: IndexTables) -> dict[str, _Meanings]:
    readings: dict[str, _Meanings] = {}
    forms = index.forms
    repairs = 0
    for word in words:
        key = forms.get(word)
        if key is None:
            key = index.words.get(stem(word))
        if key is not None:
            readings[word] = ((key, 1.0, ""),) if key >= 0 else ()
        elif repairs < MOST_REPAIRS:
            repairs += 1
            readings[word] = _repair(word, index)
        else:
            readings[word] = ()
    return readings


def _repair(word: str, index: IndexTables) -> _Meanings:
    meanings = [
        (index.forms[meaning.word], meaning.weight * weight_of(meaning.word), meaning.word)
        for meaning in find_meanings(word, index)
    ]
    return tuple(meaning for meaning in meanings if meaning[0] >= 0)


def _build_terms(readings: dict[str, _Meanings], times: Counter[str], index: IndexTables) -> tuple[Term, ...]:
    """One term per posting list, words with the same stem counted together; the weightiest first."""
    counts: dict[int, int] = {}
    best: dict[int, tuple[float, str, str, bool]] = {}
    rarities = index.postings.rarities
    for word, meanings in readings.items():
        grade = weight_of(word)
        for key, certainty, meant in meanings:
            counts[key] = counts.get(key, 0) + times[word]
            weight = rarities[key] * grade * certainty
            known = best.get(key)
            if known is None or known[0] < weight:
                best[key] = (weight, word, meant, grade * certainty <= FUNCTION_WEIGHT)
    ordered = sorted([(-found[0] * _repeated(counts[key]), key, found) for key, found in best.items()])
    return tuple([Term(key, -weight, word, meant, light) for weight, key, (_, word, meant, light) in ordered])


def _build_pairs(segments: list[list[str]], readings: dict[str, _Meanings], index: IndexTables) -> tuple[Pair, ...]:
    counts: dict[int, int] = {}
    keys = {word: meanings[0][0] for word, meanings in readings.items() if meanings}
    for segment in segments:
        for first, second in pairwise([keys.get(word, -1) for word in segment]):
            if first >= 0 and second >= 0:
                key = index.find_pair(first, second)
                counts[key] = counts.get(key, 0) + 1
    counts.pop(-1, None)
    rarities = index.pairs.rarities
    return tuple([Pair(key, PAIR_IMPACT * rarities[key] * _repeated(times)) for key, times in counts.items()])


def _repeated(times: int) -> float:
    return times * (REPEAT_SATURATION + 1) / (times + REPEAT_SATURATION)
