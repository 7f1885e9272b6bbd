"""A request read against an index: which posting lists to walk, and how much each counts. Pure."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
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
    unknown_weight: float
    """What the words would have counted that no skill has."""


class _Reading(NamedTuple):
    word: str
    key: int
    """Of its best meaning; -1 where there is none."""
    meanings: tuple[tuple[int, float, str], ...]
    """Key, certainty, and the spelling that was taken instead."""


def clip_request(text: str) -> str:
    """The beginning and the end of a very long request, so that no request takes long."""
    if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return text
    return f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"


def read_request(text: str, index: IndexTables) -> Request:
    """Look up every word of the text; unknown ones are repaired where something near is known."""
    segments = list(split_segments(text))
    times = Counter(word for segment in segments for word in segment)
    readings = _read_words(list(times), index)
    return Request(
        terms=_build_terms(readings, times, index),
        pairs=_build_pairs(segments, readings, index),
        unknown_weight=sum(weight_of(word) for word, reading in readings.items() if not reading.meanings),
    )


def _read_words(words: list[str], index: IndexTables) -> dict[str, _Reading]:
    readings: dict[str, _Reading] = {}
    repairs = 0
    for word in words:
        key = index.forms.get(word)
        if key is None:
            key = index.words.get(stem(word))
        if key is not None:
            readings[word] = _Reading(word, key, ((key, 1.0, ""),) if key >= 0 else ())
        elif repairs < MOST_REPAIRS:
            repairs += 1
            readings[word] = _repair(word, index)
        else:
            readings[word] = _Reading(word, -1, ())
    return readings


def _repair(word: str, index: IndexTables) -> _Reading:
    meanings = [
        (index.forms[meaning.word], meaning.weight * weight_of(meaning.word), meaning.word)
        for meaning in find_meanings(word, index)
    ]
    known = tuple(meaning for meaning in meanings if meaning[0] >= 0)
    return _Reading(word, known[0][0] if known else -1, known)


def _build_terms(readings: dict[str, _Reading], times: Counter[str], index: IndexTables) -> tuple[Term, ...]:
    """One term per posting list, words with the same stem counted together; the weightiest first."""
    counts: Counter[int] = Counter()
    best: dict[int, Term] = {}
    rarities = index.postings.rarities
    for word, reading in readings.items():
        grade = weight_of(word)
        for key, certainty, meant in reading.meanings:
            counts[key] += times[word]
            weight = rarities[key] * grade * certainty
            if key not in best or best[key].weight < weight:
                light = grade * certainty <= FUNCTION_WEIGHT
                best[key] = Term(key, weight, word, meant, light)
    terms = [term._replace(weight=term.weight * _repeated(counts[term.key])) for term in best.values()]
    return tuple(sorted(terms, key=lambda term: (-term.weight, term.key)))


def _build_pairs(segments: list[list[str]], readings: dict[str, _Reading], index: IndexTables) -> tuple[Pair, ...]:
    counts: Counter[int] = Counter()
    for segment in segments:
        keys = [readings[word].key for word in segment]
        for first, second in pairwise(keys):
            if first >= 0 and second >= 0:
                counts[index.find_pair(first, second)] += 1
    del counts[-1]
    rarities = index.pairs.rarities
    return tuple(Pair(key, PAIR_IMPACT * rarities[key] * _repeated(times)) for key, times in counts.items())


def _repeated(times: int) -> float:
    return times * (REPEAT_SATURATION + 1) / (times + REPEAT_SATURATION)
