"""Rank the skills of an index for a request. Pure and deterministic: score first, then name, then id.

Two passes: the telling words of the request collect the skills that share one, then the best of them are looked at
closely (grammar, share of the request covered, share of the name said).
"""

from bisect import bisect_left
from collections.abc import Sequence
from heapq import nlargest
from typing import NamedTuple

from metier.routing.calibration import calibrate, find_strength
from metier.routing.index import IndexTables, Postings
from metier.routing.names import find_named
from metier.routing.request import Pair, Request, Term, clip_request, read_request
from metier.routing.skill import NAME, MatchedWord, SkillCandidate, field_names

COVERAGE_POWER = 0.2
NAME_BONUS = 0.1
CLOSE_LOOK = 24
"""Skills looked at closely, at least; always more than are asked for."""
MATCHES_SHOWN = 8
ENOUGH_WORDS = 20
COMMON_SHARE = 0.22
"""Of a request with enough telling words, those that more of the skills have only refine the order: measured on long
requests, they bring nobody in that the others would not."""
SPARE = 4
"""How many more skills are then looked at closely."""
SCAN_FACTOR = 8
"""A posting list shorter than this many times the skills looked for is scanned whole, a longer one searched."""


FIELDS_BY_BITS = tuple(field_names(bits) for bits in range(16))


class _Hit(NamedTuple):
    number: int
    score: float
    matches: tuple[tuple[Term, int], ...]
    """The telling words the skill has, with the fields they stand in."""


class _Slot:
    """What is added up for one skill under the close look."""

    __slots__ = ("covered", "matches", "said", "sum")

    def __init__(self) -> None:
        self.sum = 0.0
        self.covered = 0.0
        self.said = 0.0
        self.matches: list[tuple[Term, int]] = []


def rank_skills(index: IndexTables, query: str, k: int) -> list[SkillCandidate]:
    """The `k` best skills for a request. A catalog of at most `k` skills comes back whole."""
    if k <= 0 or not len(index):
        return []
    text = clip_request(query)
    request = read_request(text, index)
    named = find_named(text, index.by_name)[:k]
    whole = len(index) <= k
    numbers = range(len(index)) if whole else _collect(index, request, max(CLOSE_LOOK, k + 12))
    hits = {hit.number: hit for hit in _look_closely(index, request, {*numbers, *named})}
    first = [hits.pop(number) for number in named]
    rest = sorted((hit for hit in hits.values() if hit.score > 0 or whole), key=lambda hit: (-hit.score, hit.number))
    return _build_candidates(index, [*first, *rest][:k], named=len(first))


def _collect(index: IndexTables, request: Request, wanted: int) -> list[int]:
    """The skills with the highest sums, `wanted` of them where so many share a telling word with the request."""
    heavy = [term for term in request.terms if not term.light]
    if len(heavy) > ENOUGH_WORDS:
        starts, most = index.postings.starts, COMMON_SHARE * len(index)
        rare = [term for term in heavy if starts[term.key + 1] - starts[term.key] <= most]
        best = _best(_add_up(index, rare, request.pairs), wanted + SPARE) if len(rare) >= ENOUGH_WORDS else []
        if len(best) >= wanted:
            return best
    best = _best(_add_up(index, heavy, request.pairs), wanted)
    if len(best) >= wanted or len(heavy) == len(request.terms):
        return best
    return _best(_add_up(index, request.terms, request.pairs), wanted)


def _add_up(index: IndexTables, terms: Sequence[Term], pairs: Sequence[Pair]) -> list[float]:
    sums = [0.0] * len(index)
    for postings, entries in ((index.postings, terms), (index.pairs, pairs)):
        starts, skills, impacts = postings.starts, postings.skills, postings.impacts
        for entry in entries:
            weight = entry.weight
            start, end = starts[entry.key], starts[entry.key + 1]
            for skill, impact in zip(skills[start:end], impacts[start:end], strict=True):
                sums[skill] += weight * impact
    return sums


def _best(sums: Sequence[float], wanted: int) -> list[int]:
    cut = nlargest(wanted, sums)[-1]
    if cut <= 0:
        return [number for number, total in enumerate(sums) if total > 0]
    best = [number for number, total in enumerate(sums) if total >= cut]
    if len(best) > wanted:
        best.sort(key=lambda number: (-sums[number], number))
    return best[:wanted]


def _look_closely(index: IndexTables, request: Request, numbers: set[int]) -> list[_Hit]:
    chosen = frozenset(numbers)
    slots = {number: _Slot() for number in chosen}
    total = sum([term.weight for term in request.terms])
    impacts, fields, rarities = index.postings.impacts, index.postings.fields, index.postings.rarities
    for term in request.terms:
        key, weight, _, _, light = term
        rarity = rarities[key]
        for number, at in _find_positions(index.postings, key, chosen):
            slot = slots[number]
            slot.sum += weight * impacts[at]
            slot.covered += weight
            bits = fields[at]
            if bits & NAME:
                slot.said += rarity
            if not light:
                slot.matches.append((term, bits))
    for pair in request.pairs:
        for number, at in _find_positions(index.pairs, pair.key, chosen):
            slots[number].sum += pair.weight * index.pairs.impacts[at]
    return [
        _Hit(number, _finish(slot, total, index.name_rarities[number]), tuple(slot.matches))
        for number, slot in slots.items()
    ]


def _finish(slot: _Slot, total: float, name_rarity: float) -> float:
    if slot.sum <= 0:
        return 0.0
    name_share = slot.said / name_rarity if name_rarity else 0.0
    return slot.sum * (slot.covered / total) ** COVERAGE_POWER * (1 + NAME_BONUS * name_share * name_share)


def _find_positions(postings: Postings, key: int, chosen: frozenset[int]) -> list[tuple[int, int]]:
    """The chosen skills that are in one posting list, and where."""
    skills = postings.skills
    start, end = postings.starts[key], postings.starts[key + 1]
    if end - start < SCAN_FACTOR * len(chosen):
        having = chosen.intersection(skills[start:end])
        return [(number, bisect_left(skills, number, start, end)) for number in having] if having else []
    found = [(number, bisect_left(skills, number, start, end)) for number in chosen]
    return [(number, at) for number, at in found if at < end and skills[at] == number]


def _build_candidates(index: IndexTables, hits: Sequence[_Hit], *, named: int) -> list[SkillCandidate]:
    best = max((hit.score for hit in hits), default=0.0)
    strength = find_strength(best, len(index))
    return [
        SkillCandidate(
            skill_id=index.ids[hit.number],
            skill_name=index.names[hit.number],
            score=100.0 if place < named else calibrate(hit.score, best, strength),
            matched=_render_matches(hit),
            named=place < named,
        )
        for place, hit in enumerate(hits)
    ]


def _render_matches(hit: _Hit) -> tuple[MatchedWord, ...]:
    return tuple(
        [MatchedWord(term.word, FIELDS_BY_BITS[bits], term.meant) for term, bits in hit.matches[:MATCHES_SHOWN]]
    )
