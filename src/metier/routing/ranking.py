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
from itertools import chain, pairwise
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct
from rapidfuzz import process
from rapidfuzz.distance import OSA, Prefix

from metier.routing.index import RARITY_POWER, IndexTables, Postings, build_tables, get_rarity
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
"""Allows one error in a word of four letters, which leaves a similarity of 0.75."""
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
    found = process.extract(word, choices, scorer=scorer, limit=limit, score_cutoff=at_least)
    return ((form, similarity) for form, similarity, _ in found)


def _group_forms(index: IndexTables) -> None:
    """Group spellings by first letter and length, and by prefix."""
    groups: dict[str, list[str]] = {}
    for form in index.forms:
        if len(form) >= MIN_WORD_LENGTH - 1 and not form.isdigit():
            # The `1` keeps these keys apart from the prefixes in the next line.
            groups.setdefault(f"1{form[0]}{len(form)}", []).append(form)
            groups.setdefault(form[:STEM_LETTERS], []).append(form)
    # In one step, so that other threads never see a partial result.
    index.forms_by_start.update(groups)


HEAD_CHARACTERS, TAIL_CHARACTERS = 6_000, 2_000
"""Parts of a very long request that are read, because users write the request before or after pasted text."""
REPEAT_SATURATION = 1
"""Saturation of a word that the request repeats: two occurrences count 1.33 times, any number less than twice."""
PAIR_IMPACT = 0.35
"""Weight of adjacent words relative to single ones; twice the weight loses 0.8 points of recall at 10,000 skills."""
COVERAGE_POWER = 0.15
"""Exponent of the covered share of a request. Small, because long requests mostly describe their background."""
NAME_BONUS = 0.2
"""Bonus for a name that is completely in the request. It falls with the square of the share, because one word of a
long name, such as its publisher, tells little."""
CLOSE_LOOK = 24
"""Minimum number of skills scored in detail; always more than requested."""
MATCHES_SHOWN = 8

SOLID_EVIDENCE = 0.856
"""Strength at which scores are halved. With this value, the best match has a score of 55 at a strength of 0.9, which a
request has whose only word is in the description of the only skill."""
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
    return RoutingIndex(build_tables(skills))


class Term(NamedTuple):
    """A posting list for a word of the request, possibly after typo correction."""

    key: int
    weight: float
    word: str
    meant: str
    light: bool
    """True for function words, which refine the order but give no reason for a skill."""


class _Request(NamedTuple):
    terms: tuple[Term, ...]
    """One per posting list, in descending order of weight."""
    pairs: dict[int, float]
    """Weights of adjacent words that the catalog has as a pair."""
    weight: float
    """Sum of the weights of the terms."""
    keys: frozenset[int]
    """Keys of the terms."""


class _Sums(NamedTuple):
    """For every skill, the sum of the added terms and pairs, and the weight of the terms that it has."""

    totals: list[float]
    covered: list[float]


def _rank(index: IndexTables, query: str, k: int) -> list[SkillCandidate]:
    if k <= 0 or not len(index):
        return []
    text = clip_request(query)
    request = _read_request(text, index)
    named = list_named(text, index.by_name)[:k]
    whole = len(index) <= k
    wanted = len(index) if whole else max(CLOSE_LOOK, k + 12)
    light = [term for term in request.terms if term.light]
    sums = _add_up(index, [term for term in request.terms if not term.light], request.pairs)
    best = _list_best(sums.totals, wanted)
    # Too few skills have a content word of the request, so its function words select the others.
    if len(best) < wanted and light:
        sums, light = _add_up(index, request.terms, request.pairs), []
        best = _list_best(sums.totals, wanted)
    chosen = range(len(index)) if whole else sorted({*best, *named})
    # Function words are in most descriptions: adding them for the whole catalog would take longer than all other words.
    _add_to_chosen(index.postings, light, sums, chosen=chosen)
    scores = {number: _score_in_detail(index, request, number, sums=sums) for number in chosen}
    others = [number for number in chosen if number not in named and (scores[number] > 0 or whole)]
    others.sort(key=scores.__getitem__, reverse=True)
    top = max(scores.values(), default=0.0)
    strength = get_strength(top, len(index))
    return [
        SkillCandidate(
            skill_id=index.ids[number],
            skill_name=index.names[number],
            score=100.0 if place < len(named) else calibrate(scores[number], top, strength),
            matched=_list_matches(index.postings, request.terms, number),
            named=place < len(named),
        )
        for place, number in enumerate([*named, *others][:k])
    ]


def _add_up(index: IndexTables, terms: Sequence[Term], pairs: Mapping[int, float]) -> _Sums:
    totals, covered = [0.0] * len(index), [0.0] * len(index)
    starts, skills, impacts = index.postings.starts, index.postings.skills, index.postings.impacts
    for key, weight, *_ in terms:
        start, end = starts[key], starts[key + 1]
        for skill, impact in zip(skills[start:end], impacts[start:end], strict=True):
            totals[skill] += weight * impact
            covered[skill] += weight
    starts, skills, impacts = index.pairs.starts, index.pairs.skills, index.pairs.impacts
    for key, weight in pairs.items():
        for at in range(starts[key], starts[key + 1]):
            totals[skills[at]] += weight * impacts[at]
    return _Sums(totals, covered)


def _add_to_chosen(postings: Postings, terms: Sequence[Term], sums: _Sums, *, chosen: Sequence[int]) -> None:
    """Add terms for the chosen skills only, which are in ascending order like those of a posting list."""
    skills, impacts = postings.skills, postings.impacts
    for key, weight, *_ in terms:
        at, end = postings.starts[key], postings.starts[key + 1]
        for number in chosen:
            at = bisect_left(skills, number, at, end)
            if at < end and skills[at] == number:
                sums.totals[number] += weight * impacts[at]
                sums.covered[number] += weight


def _list_best(totals: Sequence[float], wanted: int) -> list[int]:
    """Return the skills with the highest totals above 0; ties are resolved by number."""
    # Only the skills above the threshold are ordered with a key function, which takes longer than sorting numbers.
    threshold = sorted(totals)[-wanted] if wanted < len(totals) else 0.0
    best = [number for number, total in enumerate(totals) if total >= threshold and total > 0]
    best.sort(key=totals.__getitem__, reverse=True)
    return best[:wanted]


def _score_in_detail(index: IndexTables, request: _Request, number: int, *, sums: _Sums) -> float:
    """Weigh the sum by the shares of the request covered and of the name mentioned."""
    total = sums.totals[number]
    if not total:
        return 0.0
    name, rarities = index.name_words[number], index.postings.rarities
    mentioned = sum([rarities[key] for key in name if key in request.keys])
    name_share = mentioned / sum([rarities[key] for key in name]) if mentioned else 0.0
    coverage = sums.covered[number] / request.weight
    return total * coverage**COVERAGE_POWER * (1 + NAME_BONUS * name_share**2)


def _list_matches(postings: Postings, terms: Sequence[Term], number: int) -> tuple[MatchedWord, ...]:
    """List the most important words that the skill has."""
    matches: list[MatchedWord] = []
    for term in terms:
        if len(matches) == MATCHES_SHOWN:
            break
        if not term.light and (at := postings.find(term.key, number)) is not None:
            matches.append(MatchedWord(term.word, field_names(postings.fields[at]), term.meant))
    return tuple(matches)


def clip_request(text: str) -> str:
    """Keep only the start and the end of a very long request."""
    if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return text
    return f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"


def _read_request(text: str, index: IndexTables) -> _Request:
    """Look up every word of the text and correct unknown ones."""
    segments = list(split_segments(text))
    times = Counter(chain.from_iterable(segments))
    readings = _read_words(times, index)
    emphasize = get_emphasis(text)
    factors = {word: emphasize(word) for word in readings}
    for word, parts in _list_joined(segments, index):
        # Unless the request itself also has the joined word, which then counts already.
        if word not in readings:
            readings[word] = (_build_joined_term(word, parts, index),)
            factors[word] = max(map(emphasize, parts))
            times[word] = 1
    terms = _build_terms(readings, times, factors)
    return _Request(
        terms=terms,
        pairs=_build_pairs(segments, readings, index),
        weight=sum([term.weight for term in terms]),
        keys=frozenset([term.key for term in terms]),
    )


def _read_words(words: Iterable[str], index: IndexTables) -> dict[str, tuple[Term, ...]]:
    """Find the terms of each word, the most certain first."""
    readings: dict[str, tuple[Term, ...]] = {}
    unknown: list[str] = []
    for word in words:
        terms = _look_up(word, index)
        if terms is None:
            unknown.append(word)
        readings[word] = terms or ()
    for word in unknown[:MAX_CORRECTIONS]:
        readings[word] = _correct(word, index)
    return readings


def _look_up(word: str, index: IndexTables) -> tuple[Term, ...] | None:
    """Find the terms of a known word; empty for a function or filler word that no skill has, None if unknown."""
    key = index.forms.get(word)
    if key is None:
        key = index.words.get(stem(word))
    if key is None:
        return None
    return (_build_term(word, key, index),) if key >= 0 else ()


def _correct(word: str, index: IndexTables) -> tuple[Term, ...]:
    meanings = [(index.forms[meaning.word], meaning) for meaning in list_meanings(word, index)]
    return tuple(
        _build_term(word, key, index, certainty=weight * weight_of(meant), meant=meant)
        for key, (meant, weight) in meanings
        if key >= 0
    )


def _list_joined(segments: list[list[str]], index: IndexTables) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield adjacent words that the catalog writes as one, with their parts: `pushback` for `push back`."""
    # The hyphen of `e-mail` separates words, and spelling varies between `frontend`, `front-end` and `front end`.
    # Only in requests: joining the words of descriptions too costs 0.3 points of recall at 10,000 skills.
    for segment in segments:
        for first, second in pairwise(segment):
            if index.forms.get(first + second, -1) >= 0:
                yield first + second, (first, second)


def _build_joined_term(word: str, parts: tuple[str, str], index: IndexTables) -> Term:
    return _build_term(" ".join(parts), index.forms[word], index, certainty=weight_of(word), meant=word)


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
    best: dict[int, tuple[float, Term]] = {}
    for word, terms in readings.items():
        for term in terms:
            weight = term.weight * factors[word]
            counts[term.key] = counts.get(term.key, 0) + times[word]
            if term.key not in best or best[term.key][0] < weight:
                best[term.key] = (weight, term)
    weighted = [term._replace(weight=weight * _repeated(counts[key])) for key, (weight, term) in sorted(best.items())]
    return tuple(sorted(weighted, key=attrgetter("weight"), reverse=True))


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
