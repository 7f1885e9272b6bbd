"""A request read against an index: which posting lists to walk, and how much each counts. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from operator import attrgetter

from metier.dataclass import dataclass
from metier.routing.emphasis import find_emphasis
from metier.routing.index import IndexTables
from metier.routing.subjects.telling_words import find_factor
from metier.routing.subjects.topics import Wanted, find_wanted
from metier.routing.term import Term
from metier.routing.typos import MOST_REPAIRS, find_meanings
from metier.routing.words import FUNCTION_WEIGHT, split_segments, stem, weight_of

HEAD_CHARACTERS, TAIL_CHARACTERS = 6_000, 2_000
"""What is read of a very long request: people put what they want before or after what they pasted."""
REPEAT_SATURATION = 0.5
PAIR_IMPACT = 0.35
MOST_PARTS = 6
"""Parts of an identifier that are put together again."""
COMMON_SHARE = 0.22
"""A word that more of the skills have is common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    terms: tuple[Term, ...]
    """One per posting list, the weightiest first."""
    pairs: dict[int, float]
    """The weight of each pair of words side by side that the catalog has."""
    subjects: Wanted | None
    """What it is about, as far as its words tell."""


def clip_request(text: str) -> str:
    """The beginning and the end of a very long request, so that no request takes long."""
    if len(text) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return text
    return f"{text[:HEAD_CHARACTERS]}\n{text[-TAIL_CHARACTERS:]}"


def read_request(text: str, index: IndexTables) -> Request:
    """Look up every word of the text; unknown ones are repaired where something near is known."""
    segments = list(split_segments(text))
    times = Counter(chain.from_iterable(segments))
    readings = _read_words(times, index, segments)
    emphasize = find_emphasis(text)
    factors = {word: emphasize(word) for word in readings}
    return Request(
        terms=_build_terms(readings, times, factors),
        pairs=_build_pairs(segments, readings, index),
        subjects=find_wanted(readings, factors) if index.topics.norms else None,
    )


def _read_words(words: Iterable[str], index: IndexTables, segments: list[list[str]]) -> dict[str, tuple[Term, ...]]:
    """What each word means, the surest first."""
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
        compounds = _find_compounds(segments, frozenset(unknown))
        for word in [word for word in unknown if word not in compounds][:MOST_REPAIRS]:
            readings[word] = _repair(word, index)
    return readings


def _find_compounds(segments: list[list[str]], unknown: frozenset[str]) -> set[str]:
    """Unknown identifiers that `split_words` gave with their parts before them, as `vstack` after v and stack.

    Their parts are looked up on their own: an identifier that no skill knows is a name, not a misspelt word.
    """
    return {
        word
        for segment in segments
        for at, word in enumerate(segment)
        if word in unknown
        and any("".join(segment[at - parts : at]) == word for parts in range(2, min(at, MOST_PARTS) + 1))
    }


def _look_up(word: str, index: IndexTables) -> tuple[Term, ...] | None:
    """The term of a known word, none for a list word that no skill has. Kept for spellings of the catalog."""
    key = index.forms.get(word)
    if key is None:
        key = index.words.get(stem(word))
        return None if key is None else (_build_term(word, key, index),)
    return index.readings.setdefault(word, (_build_term(word, key, index),) if key >= 0 else ())


def _repair(word: str, index: IndexTables) -> tuple[Term, ...]:
    meanings = [(index.forms[meaning.word], meaning) for meaning in find_meanings(word, index)]
    return tuple(
        _build_term(word, key, index, certainty=weight * weight_of(meant), meant=meant)
        for key, (meant, weight) in meanings
        if key >= 0
    )


def _build_term(word: str, key: int, index: IndexTables, *, certainty: float = 1.0, meant: str = "") -> Term:
    grade = weight_of(word)
    starts = index.postings.starts
    return Term(
        key=key,
        weight=index.postings.rarities[key] * grade * certainty * find_factor(meant or word, len(index)),
        word=word,
        meant=meant,
        light=grade * certainty <= FUNCTION_WEIGHT,
        common=starts[key + 1] - starts[key] > COMMON_SHARE * len(index),
    )


def _build_terms(
    readings: dict[str, tuple[Term, ...]], times: Counter[str], factors: Mapping[str, float]
) -> tuple[Term, ...]:
    """Words with the same stem are counted together."""
    counts: dict[int, int] = {}
    best: dict[int, Term] = {}
    for word, terms in readings.items():
        factor = factors[word]
        for plain in terms:
            term = plain.weigh(factor) if factor != 1 else plain
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
        for pair in index.find_pairs([keys.get(word, -1) for word in segment]):
            counts[pair] = counts.get(pair, 0) + 1
    rarities = index.pairs.rarities
    return {pair: PAIR_IMPACT * rarities[pair] * _repeated(count) for pair, count in counts.items()}


def _repeated(times: int) -> float:
    return times * (REPEAT_SATURATION + 1) / (times + REPEAT_SATURATION)
