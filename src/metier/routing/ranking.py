"""Ranks the skills of an index for a request. Pure and deterministic: ties are resolved by name, then ID.

There are two passes. The content words of the request select skills; then the best ones are scored in detail, with
function words, the share of the request that they cover, and the share of the name that the request mentions. Scores
from 0 to 100 have the same meaning in catalogs of ten and of ten thousand skills. The constants were fitted to the
development split of the data that `bench/routing.py` measures with.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain, compress
from math import sumprod
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct
from rapidfuzz import process
from rapidfuzz.distance import OSA, Prefix

from metier.routing.index import RARITY_POWER, IndexTables, Postings, Term, build_tables, get_rarity
from metier.routing.named_skills import list_named
from metier.routing.skill import MatchedWord, RoutableSkill, SkillCandidate, field_names
from metier.routing.words import FUNCTION_WEIGHT, split_segments, split_words, stem, weight_of

# Together these weights earn 0.4 points of recall at 100 and at 1,000 skills, and 0.9 at 10,000.
ACT_WEIGHT = 1.2
FIRST_WEIGHT, LAST_WEIGHT = 1.15, 1.2
"""The first and the last of several sentences usually contain the request, those between them the background."""
CODE_WEIGHT = 0.6
"""Weight of a word that only occurs in code, paths or addresses."""

_VAGUE_ACTS = frozenset(
    {"add", "build", "check", "create", "find", "list", "look", "make", "set", "show", "update", "write"}
)
"""Verbs of many skills, which are less specific than their object."""

_ACT = re.compile(
    r"(?:(?:^|[.!?\n])\s*|\b(?:and|i|let's|lets|me|need|please|then|to|want|we|you)\s+)([a-z]+)", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
_CODE_SIGNS = re.compile(r"[`/]|\.[a-z]")
_FILE = re.compile(r"\.(?:cs|csv|go|java|js|json|jsx|md|pdf|py|rs|ts|tsx|ya?ml)\b", re.IGNORECASE)


def get_emphasis(text: str) -> Callable[[str], float]:
    """Return a function that computes the weight of a word of this request."""
    acts = {match.lower() for match in _ACT.findall(text)} - _VAGUE_ACTS
    prose = _find_prose(text)
    first, last = _get_ends(text)

    def emphasize(word: str) -> float:
        factor = ACT_WEIGHT if word in acts else 1.0
        if word in last:
            factor *= LAST_WEIGHT
        elif word in first:
            factor *= FIRST_WEIGHT
        return factor if prose is None or word in prose else factor * CODE_WEIGHT

    return emphasize


def _get_ends(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words of the first and the last sentence; none if there is only one."""
    sentences = _SENTENCE_END.split(text.strip())
    if len(sentences) < 2:
        return frozenset(), frozenset()
    return frozenset(split_words(sentences[0])), frozenset(split_words(sentences[-1]))


def _find_prose(text: str) -> set[str] | None:
    """Find the words outside of code, paths and addresses; None if the text has none of these."""
    if not _CODE_SIGNS.search(text):
        return None
    pieces = [piece for piece in _CODE.sub(" ", text).split() if not _is_path(piece)]
    return set(split_words(" ".join(pieces)))


def _is_path(piece: str) -> bool:
    return piece.count("/") > 1 or _FILE.search(piece) is not None


MIN_WORD_LENGTH = 4
MAX_WORD_LENGTH = 40
MAX_CORRECTIONS = 32
"""Maximum number of unknown words that are corrected; a pasted log has thousands."""
MIN_SIMILARITY = 0.74
MAX_MEANINGS = 3
CERTAINTY = 0.8
"""Maximum weight of a corrected word, relative to 1.0 for a known one."""

STEM_LETTERS = 4
MIN_PREFIX = 0.55
INFLECTED_CERTAINTY = 0.9


class Meaning(NamedTuple):
    """A spelling in the catalog that an unknown word may be."""

    word: str
    weight: float


def list_meanings(word: str, index: IndexTables) -> list[Meaning]:
    """List the closest known spellings, best first; none for short words and numbers."""
    if not MIN_WORD_LENGTH <= len(word) <= MAX_WORD_LENGTH or word.isdigit():
        return []
    if not index.forms_by_start:
        _group_forms(index)
    weights: dict[str, float] = {}
    for form, similarity in _list_misspelled(word, index):
        weights[form] = CERTAINTY * similarity
    for form, similarity in _list_inflected(word, index):
        weights[form] = max(weights.get(form, 0.0), INFLECTED_CERTAINTY * similarity)
    surest = sorted(weights.items(), key=lambda item: (-item[1], item[0]))
    return [Meaning(form, weight) for form, weight in surest[:MAX_MEANINGS]]


def _list_misspelled(word: str, index: IndexTables) -> Iterator[tuple[str, float]]:
    choices: list[str] = []
    # Spellings with a larger difference in length can't be similar enough.
    reach = int((1 - MIN_SIMILARITY) * (len(word) + 2))
    # The first letter must match: it is rarely mistyped, and another one usually makes another word (`vstack`,
    # `gstack`).
    for length in range(len(word) - reach, len(word) + reach + 1):
        choices += index.forms_by_start.get(f"1{word[0]}{length}", ())
    scorer = OSA.normalized_similarity
    yield from _rank_spelling(word, choices, scorer, at_least=MIN_SIMILARITY, limit=2 * MAX_MEANINGS)


def _list_inflected(word: str, index: IndexTables) -> Iterator[tuple[str, float]]:
    """List spellings with the same prefix: `translator` for `translation`, and the cases of inflected languages."""
    choices = index.forms_by_start.get(word[:STEM_LETTERS], ())
    yield from _rank_spelling(word, choices, Prefix.normalized_similarity, at_least=MIN_PREFIX, limit=MAX_MEANINGS)


def _rank_spelling(
    word: str, choices: Iterable[str], scorer: Callable[..., float], *, at_least: float, limit: int
) -> Iterator[tuple[str, float]]:
    # Sorted, because ties are resolved by order, which must not depend on how the index was built.
    found = process.extract(word, sorted(choices), scorer=scorer, limit=limit, score_cutoff=at_least)
    return ((form, similarity) for form, similarity, _ in found)


def _group_forms(index: IndexTables) -> None:
    """Group spellings by first letter and length, and by prefix."""
    groups: dict[str, list[str]] = {}
    for form in index.forms:
        if len(form) >= MIN_WORD_LENGTH - 1 and not form.isdigit():
            groups.setdefault(f"1{form[0]}{len(form)}", []).append(form)
            groups.setdefault(form[:STEM_LETTERS], []).append(form)
    # In one step, so that other threads never see a partial result.
    index.forms_by_start.update(groups)


HEAD_CHARACTERS, TAIL_CHARACTERS = 6_000, 2_000
"""Parts of a very long request that are read, because users write the request before or after pasted text."""
REPEAT_SATURATION = 0.5
PAIR_IMPACT = 0.35
MAX_PARTS = 6
"""Maximum number of parts of an identifier that are joined again."""
COVERAGE_POWER = 0.2
NAME_BONUS = 0.2
CLOSE_LOOK = 24
"""Minimum number of skills scored in detail; always more than requested."""
MATCHES_SHOWN = 8

FIELDS_BY_BITS = tuple(field_names(bits) for bits in range(16))
SOLID_EVIDENCE = 0.856
"""Strength at which scores are halved. With this value, the best match has a score of 55 at a strength of 0.9."""
STEEPNESS = 4
NEARNESS_POWER = 0.54
"""With this value, a skill with a third of the best sum has 55 % of the best score."""


class RoutingIndex(Struct, frozen=True):
    """An indexed catalog."""

    tables: IndexTables

    def __len__(self) -> int:
        return len(self.tables)

    def rank(self, query: str, k: int) -> list[SkillCandidate]:
        """Return the `k` best skills for a request, or the whole catalog if it has at most `k` skills."""
        return _rank(self.tables, query, k)


def build_index(skills: Iterable[RoutableSkill]) -> RoutingIndex:
    """Index a catalog. The order of the skills does not matter."""
    return _build_index(tuple(skills))


@lru_cache(maxsize=8)
def _build_index(skills: tuple[RoutableSkill, ...]) -> RoutingIndex:
    # Cached, because the runs of a process mostly have the same catalog.
    return RoutingIndex(build_tables(skills))


def rank(query: str, skills: Sequence[RoutableSkill], k: int = 8) -> list[SkillCandidate]:
    """Return the `k` best skills for a request. Use `build_index` for several requests to one catalog."""
    return build_index(skills).rank(query, k)


class Request(Struct, frozen=True, kw_only=True):
    terms: tuple[Term, ...]
    """One per posting list, in descending order of weight."""
    pairs: dict[int, float]
    """Weights of adjacent words that the catalog has as a pair."""


type _Owners = dict[int, AbstractSet[int]]
"""The detailed skills that have each content term, by key."""


class _Collected(NamedTuple):
    """Result of the first pass."""

    sums: Sequence[float]
    """The sum of the pairs and the counted terms for every skill."""
    counted: frozenset[int]
    """Keys of the counted terms; the others are function words."""
    best: Sequence[int]
    """The skills to score in detail."""


def _rank(index: IndexTables, query: str, k: int) -> list[SkillCandidate]:
    """Rank in two passes, with the named skills first."""
    if k <= 0 or not len(index):
        return []
    text = clip_request(query)
    request = read_request(text, index)
    named = list_named(text, index.by_name)[:k]
    whole = len(index) <= k
    collected = _collect(index, request, len(index) if whole else max(CLOSE_LOOK, k + 12))
    chosen = frozenset(range(len(index)) if whole else [*collected.best, *named])
    owners = _get_owners(index.postings, request.terms, chosen)
    by_words = _score_in_detail(index, request.terms, collected, owners=owners, chosen=chosen)
    others = [number for number in sorted(chosen) if number not in named and (by_words[number] > 0 or whole)]
    others.sort(key=by_words.__getitem__, reverse=True)
    best = max(by_words.values(), default=0.0)
    strength = get_strength(best, len(index))
    found = {number: calibrate(by_words[number], best, strength) for number in [*named, *others][:k]}
    return _build_candidates(index, request.terms, found, owners=owners, named=len(named))


def _collect(index: IndexTables, request: Request, wanted: int) -> _Collected:
    """Select up to `wanted` skills with the highest sums."""
    heavy = [term for term in request.terms if not term.light]
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
    """Return the skills with the highest sums above 0; ties are resolved by number."""
    # The skills with the most important words give a threshold: a skill with `wanted` better ones can't be among the
    # best.
    starts, skills, enough = postings.starts, postings.skills, 2 * wanted
    likely: set[int] = set()
    for term in terms:
        likely.update(skills[starts[term.key] : starts[term.key + 1]][:enough])
        if len(likely) >= enough:
            break
    threshold = sorted([sums[number] for number in likely])[-wanted] if len(likely) >= wanted else 0.0
    best = [number for number, total in enumerate(sums) if total >= threshold and total > 0]
    best.sort(key=sums.__getitem__, reverse=True)
    return best[:wanted]


def _get_owners(postings: Postings, terms: Sequence[Term], chosen: frozenset[int]) -> _Owners:
    starts, skills = postings.starts, postings.skills
    return {
        term.key: chosen.intersection(skills[starts[term.key] : starts[term.key + 1]])
        for term in terms
        if not term.light
    }


def _score_in_detail(
    index: IndexTables, terms: Sequence[Term], collected: _Collected, *, owners: _Owners, chosen: frozenset[int]
) -> dict[int, float]:
    """Add function words, the share of the request covered, and the share of the name mentioned."""
    sums, counted, _ = collected
    light = [term for term in terms if term.light]
    rows = [index.get_row(term.key) for term in light]
    weights = [term.weight for term in light]
    missing = [0.0 if term.key in counted else term.weight for term in light]
    total = sum([term.weight for term in terms])
    rarities = {term.key: index.postings.rarities[term.key] for term in terms}
    scores: dict[int, float] = {}
    for number, covered in _get_covered(terms, owners, chosen).items():
        impacts = [row[number] for row in rows]
        coverage = (covered + sum(compress(weights, impacts))) / total if total else 0.0
        mentioned = sum([rarities.get(key, 0.0) for key in index.name_words[number]])
        name_share = mentioned / index.name_rarities[number] if mentioned else 0.0
        score = sums[number] + sumprod(missing, impacts)
        scores[number] = score * coverage**COVERAGE_POWER * (1 + NAME_BONUS * name_share * name_share)
    return scores


def _get_covered(terms: Sequence[Term], owners: _Owners, chosen: frozenset[int]) -> dict[int, float]:
    """Compute the weight of the content terms of each chosen skill."""
    covered = dict.fromkeys(chosen, 0.0)
    for term in terms:
        for number in owners.get(term.key, ()):
            covered[number] += term.weight
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
    """Build the list of the skill's most important words with their fields."""
    starts, skills, fields = postings.starts, postings.skills, postings.fields
    matches: list[MatchedWord] = []
    for key, _, word, meant, _ in terms:
        bits = fields[bisect_left(skills, number, starts[key], starts[key + 1])]
        # `_make` takes half the time of a call of the class, and there are up to 64 of them.
        matches.append(MatchedWord._make((word, FIELDS_BY_BITS[bits], meant)))
    return tuple(matches)


def clip_request(text: str) -> str:
    """Keep only the start and the end of a very long request."""
    if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return text
    return f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"


def read_request(text: str, index: IndexTables) -> Request:
    """Look up every word of the text and correct unknown ones."""
    segments = list(split_segments(text))
    times = Counter(chain.from_iterable(segments))
    readings = _read_words(times, index, segments)
    emphasize = get_emphasis(text)
    factors = {word: emphasize(word) for word in readings}
    return Request(terms=_build_terms(readings, times, factors), pairs=_build_pairs(segments, readings, index))


def _read_words(words: Iterable[str], index: IndexTables, segments: list[list[str]]) -> dict[str, tuple[Term, ...]]:
    """Find the terms of each word, the most certain first."""
    readings: dict[str, tuple[Term, ...]] = {}
    unknown: list[str] = []
    for word in words:
        terms = index.readings.get(word)
        if terms is None:
            terms = _look_up(word, index)
        if terms is None:
            unknown.append(word)
        readings[word] = terms or ()
    if unknown:
        compounds = _list_compounds(segments, frozenset(unknown))
        for word in [word for word in unknown if word not in compounds][:MAX_CORRECTIONS]:
            readings[word] = _correct(word, index)
    return readings


def _list_compounds(segments: list[list[str]], unknown: frozenset[str]) -> set[str]:
    """List unknown identifiers that follow their parts in the output of `split_words`, such as v, stack, `vstack`."""
    # An unknown identifier is a name, not a typo. Its parts are looked up separately.
    return {
        word
        for segment in segments
        for at, word in enumerate(segment)
        if word in unknown
        and any("".join(segment[at - parts : at]) == word for parts in range(2, min(at, MAX_PARTS) + 1))
    }


def _look_up(word: str, index: IndexTables) -> tuple[Term, ...] | None:
    """Find the terms of a known word; empty for a function or filler word that no skill has, None if unknown."""
    key = index.forms.get(word)
    if key is None:
        key = index.words.get(stem(word))
        return None if key is None else (_build_term(word, key, index),)
    return index.readings.setdefault(word, (_build_term(word, key, index),) if key >= 0 else ())


def _correct(word: str, index: IndexTables) -> tuple[Term, ...]:
    meanings = [(index.forms[meaning.word], meaning) for meaning in list_meanings(word, index)]
    return tuple(
        _build_term(word, key, index, certainty=weight * weight_of(meant), meant=meant)
        for key, (meant, weight) in meanings
        if key >= 0
    )


def _build_term(word: str, key: int, index: IndexTables, *, certainty: float = 1.0, meant: str = "") -> Term:
    grade = weight_of(word)
    return Term(
        key=key,
        weight=index.postings.rarities[key] * grade * certainty,
        word=word,
        meant=meant,
        light=grade * certainty <= FUNCTION_WEIGHT,
    )


def _build_terms(
    readings: dict[str, tuple[Term, ...]], times: Counter[str], factors: Mapping[str, float]
) -> tuple[Term, ...]:
    # Words with the same stem are counted together.
    counts: dict[int, int] = {}
    best: dict[int, Term] = {}
    for word, terms in readings.items():
        for plain in terms:
            term = plain.weigh(factors[word])
            key = term.key
            known = best.get(key)
            if known is None or known.weight < term.weight:
                best[key] = term
            counts[key] = counts.get(key, 0) + times[word]
    for key, count in counts.items():
        if count > 1:
            best[key] = best[key].weigh(_repeated(count))
    return tuple(sorted([best[key] for key in sorted(best)], key=attrgetter("weight"), reverse=True))


def _build_pairs(
    segments: list[list[str]], readings: dict[str, tuple[Term, ...]], index: IndexTables
) -> dict[int, float]:
    keys = {word: terms[0].key for word, terms in readings.items() if terms}
    counts: dict[int, int] = {}
    for segment in segments:
        for pair in index.list_pairs([keys.get(word, -1) for word in segment]):
            counts[pair] = counts.get(pair, 0) + 1
    rarities = index.pairs.rarities
    return {pair: PAIR_IMPACT * rarities[pair] * _repeated(count) for pair, count in counts.items()}


def _repeated(times: int) -> float:
    return times * (REPEAT_SATURATION + 1) / (times + REPEAT_SATURATION)


def get_strength(best: float, catalog_size: int) -> float:
    """Express the best sum in words that no other skill has, independent of the catalog's size."""
    return best / get_rarity(0, catalog_size) ** RARITY_POWER


def calibrate(total: float, best: float, strength: float) -> float:
    """Compute the score of a skill from its sum, the best sum and its strength."""
    if total <= 0 or best <= 0:
        return 0.0
    certainty = strength**STEEPNESS / (strength**STEEPNESS + SOLID_EVIDENCE**STEEPNESS)
    return round(100 * certainty * min(1.0, total / best) ** NEARNESS_POWER, 2)
