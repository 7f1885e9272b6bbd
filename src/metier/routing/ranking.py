"""Rank the skills of an index for a request. Pure and deterministic: of equal ones, the name decides, then the id.

Two passes: the telling words of the request collect the skills that share one, then the best of them are looked at
closely (grammar, share of the request covered, share of the name said, subject).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import compress
from math import sumprod
from typing import NamedTuple

from metier.routing.calibration import calibrate, find_strength
from metier.routing.index import IndexTables, Postings
from metier.routing.names import find_named
from metier.routing.request import Request, clip_request, read_request
from metier.routing.skill import MatchedWord, SkillCandidate, field_names
from metier.routing.term import Term

COVERAGE_POWER = 0.2
NAME_BONUS = 0.2
CLOSE_LOOK = 24
"""Skills looked at closely, at least; always more than are asked for."""
MATCHES_SHOWN = 8
ENOUGH_WORDS = 12
"""Of a request with so many telling words, the common ones only refine the order: measured on long requests, they
bring in no skill that the others would not."""
SPARE = 4
"""How many more skills are then looked at closely."""
SCAN_FACTOR = 8
"""A posting list shorter than this many times the skills looked for is scanned whole, a longer one searched."""

FIELDS_BY_BITS = tuple(field_names(bits) for bits in range(16))

type _Owners = dict[int, AbstractSet[int]]
"""For each telling term of a request, by key, the skills under the close look that have it."""


class _Collected(NamedTuple):
    """What the first pass leaves to the close look."""

    sums: Sequence[float]
    """For every skill, what the pairs and the counted terms add up to."""
    counted: frozenset[int]
    """Keys of these terms. The others are grammar or common words."""
    best: Sequence[int]
    """The skills to look at."""


def rank_skills(index: IndexTables, query: str, k: int) -> list[SkillCandidate]:
    """The `k` best skills for a request. A catalog of at most `k` skills comes back whole."""
    if k <= 0 or not len(index):
        return []
    text = clip_request(query)
    request = read_request(text, index)
    named = find_named(text, index.by_name)[:k]
    whole = len(index) <= k
    collected = _collect(index, request, len(index) if whole else max(CLOSE_LOOK, k + 12))
    chosen = frozenset(range(len(index)) if whole else [*collected.best, *named])
    owners = _find_owners(index, request.terms, chosen)
    by_words = _look_closely(index, request.terms, collected, owners=owners, chosen=chosen)
    ordered = index.topics.reweigh(by_words, request.subjects)
    others = [number for number in sorted(chosen) if number not in named and (by_words[number] > 0 or whole)]
    others.sort(key=ordered.__getitem__, reverse=True)
    # A subject is no evidence that a skill answers the request: scores stay those of the words.
    best = max(by_words.values(), default=0.0)
    strength = find_strength(best, len(index))
    found = {number: calibrate(by_words[number], best, strength) for number in [*named, *others][:k]}
    return _build_candidates(index, request.terms, found, owners=owners, named=len(named))


def _collect(index: IndexTables, request: Request, wanted: int) -> _Collected:
    """The skills with the highest sums, `wanted` of them where so many share a telling word with the request."""
    heavy = [term for term in request.terms if not term.light]
    if len(heavy) > ENOUGH_WORDS:
        rare = [term for term in heavy if not term.common]
        if len(rare) >= ENOUGH_WORDS:
            collected = _add_and_choose(index, rare, request.pairs, wanted=wanted + SPARE)
            if len(collected.best) >= wanted:
                return collected
    collected = _add_and_choose(index, heavy, request.pairs, wanted=wanted)
    if len(collected.best) >= wanted or len(heavy) == len(request.terms):
        return collected
    return _add_and_choose(index, request.terms, request.pairs, wanted=wanted)


def _add_and_choose(
    index: IndexTables, terms: Sequence[Term], pairs: Mapping[int, float], *, wanted: int
) -> _Collected:
    sums = _add_up(index, terms, pairs)
    return _Collected(sums, frozenset([term.key for term in terms]), _best(index.postings, terms, sums, wanted=wanted))


def _add_up(index: IndexTables, terms: Sequence[Term], pairs: Mapping[int, float]) -> list[float]:
    sums = [0.0] * len(index)
    weights: list[tuple[Postings, Iterable[tuple[int, float]]]] = [
        (index.postings, [(term.key, term.weight) for term in terms]),
        (index.pairs, pairs.items()),
    ]
    for postings, weighted in weights:
        starts, skills, impacts = postings.starts, postings.skills, postings.impacts
        for key, weight in weighted:
            start, end = starts[key], starts[key + 1]
            for skill, impact in zip(skills[start:end], impacts[start:end], strict=True):
                sums[skill] += weight * impact
    return sums


def _best(postings: Postings, terms: Sequence[Term], sums: Sequence[float], *, wanted: int) -> list[int]:
    """The skills with the highest sums above 0; of equal ones those with the smaller number."""
    # Some skills with the most telling words set the bar: no skill below `wanted` others is among the best.
    starts, skills, enough = postings.starts, postings.skills, 2 * wanted
    likely: set[int] = set()
    for term in terms:
        likely.update(skills[starts[term.key] : starts[term.key + 1]][:enough])
        if len(likely) >= enough:
            break
    cut = sorted([sums[number] for number in likely])[-wanted] if len(likely) >= wanted else 0.0
    best = [number for number, total in enumerate(sums) if total >= cut and total > 0]
    best.sort(key=sums.__getitem__, reverse=True)
    return best[:wanted]


def _find_owners(index: IndexTables, terms: Sequence[Term], chosen: frozenset[int]) -> _Owners:
    owners: _Owners = {}
    for key, _, _, _, light, common in terms:
        if common and not light:
            row = index.find_row(key)
            owners[key] = {number for number in chosen if row[number]}
        elif not light:
            owners[key] = _find_having(index.postings, key, chosen)
    return owners


def _find_having(postings: Postings, key: int, chosen: frozenset[int]) -> AbstractSet[int]:
    skills, start, end = postings.skills, postings.starts[key], postings.starts[key + 1]
    if end - start < SCAN_FACTOR * len(chosen):
        return chosen.intersection(skills[start:end])
    found = [(number, bisect_left(skills, number, start, end)) for number in chosen]
    return {number for number, at in found if at < end and skills[at] == number}


def _look_closely(
    index: IndexTables, terms: Sequence[Term], collected: _Collected, *, owners: _Owners, chosen: frozenset[int]
) -> dict[int, float]:
    """Add grammar and common words, the share of the request covered, and the share of the name said."""
    sums, counted, _ = collected
    tabled = [term for term in terms if term.light or term.common]
    rows = [index.find_row(term.key) for term in tabled]
    weights = [term.weight for term in tabled]
    missing = [0.0 if term.key in counted else term.weight for term in tabled]
    total = sum([term.weight for term in terms])
    rarities = {term.key: index.postings.rarities[term.key] for term in terms}
    scores: dict[int, float] = {}
    for number, covered in _find_covered(terms, owners, chosen).items():
        impacts = [row[number] for row in rows]
        coverage = (covered + sum(compress(weights, impacts))) / total if total else 0.0
        said = sum([rarities.get(key, 0.0) for key in index.name_words[number]])
        name_share = said / index.name_rarities[number] if said else 0.0
        score = sums[number] + sumprod(missing, impacts)
        scores[number] = score * coverage**COVERAGE_POWER * (1 + NAME_BONUS * name_share * name_share)
    return scores


def _find_covered(terms: Sequence[Term], owners: _Owners, chosen: frozenset[int]) -> dict[int, float]:
    """For each of the chosen skills, the weight of the rare terms it has."""
    covered = dict.fromkeys(chosen, 0.0)
    for key, weight, _, _, light, common in terms:
        if not (light or common):
            for number in owners[key]:
                covered[number] += weight
    return covered


def _build_candidates(
    index: IndexTables, terms: Sequence[Term], scores: Mapping[int, float], *, owners: _Owners, named: int
) -> list[SkillCandidate]:
    telling = [(term, owners[term.key]) for term in terms if not term.light]
    return [
        SkillCandidate(
            skill_id=index.ids[number],
            skill_name=index.names[number],
            score=100.0 if place < named else score,
            matched=_build_matches(
                index.postings, [term for term, having in telling if number in having][:MATCHES_SHOWN], number
            ),
            named=place < named,
        )
        for place, (number, score) in enumerate(scores.items())
    ]


def _build_matches(postings: Postings, terms: Sequence[Term], number: int) -> tuple[MatchedWord, ...]:
    """The most telling words the skill has, and the fields they stand in."""
    starts, skills, fields = postings.starts, postings.skills, postings.fields
    matches: list[MatchedWord] = []
    for key, _, word, meant, _, _ in terms:
        bits = fields[bisect_left(skills, number, starts[key], starts[key + 1])]
        # `_make` takes half the time of a call of the class, and there are up to 64 of them.
        matches.append(MatchedWord._make((word, FIELDS_BY_BITS[bits], meant)))
    return tuple(matches)
