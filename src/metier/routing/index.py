"""A catalog turned into posting lists, so that a request touches only the skills that share a word with it. Pure.

Skills are numbered by name, then id: the smaller number wins a tie. Every posting carries its finished impact, so a
request only multiplies and adds.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, Protocol

from metier.dataclass import dataclass
from metier.routing.calibration import RARITY_POWER, find_rarity
from metier.routing.names import normal_name
from metier.routing.skill import BODY, RoutableSkill
from metier.routing.subjects.topics import TopicBuilder, Topics
from metier.routing.tally import Tally, take_tally
from metier.routing.term import Term
from metier.routing.word_lists import FILLER_WORDS, FUNCTION_WORDS
from metier.routing.words import stem

META_LENGTH_WEIGHT, NAME_LENGTH_WEIGHT, BODY_LENGTH_WEIGHT = 0.4, 0.3, 0.45
"""How far a long field dilutes its words: 0 not at all, 1 in proportion."""
NAME_IMPACT, BODY_IMPACT = 0.3, 0.55
"""Beside 1.0 for name, description and tags together."""
SATURATION = 0.6
"""How soon a repeated word stops counting; a skill that stuffs a word gains at most 1 + this."""
FIRST_SPAN = 0.42
"""How much of the words is weighed by the process that does the pairs too, where there are two."""
BODY_ONLY_SHARE = 0.8
"""A skill that has a word only in its body counts this much towards the word being common."""


@dataclass(slots=True)
class Postings:
    """For each key, the skills that have it, with impact and fields; keys share flat columns."""

    starts: array[int] = field(default_factory=lambda: array("I", [0]))
    """Where the skills of a key begin; one more entry than keys."""
    skills: list[int] | array[int] = field(default_factory=list[int])
    """A list where the index was built, which is searched faster: one object per skill, however often it stands. An
    array where it was read from disk: most commands rank one request, and a list takes longer to make."""
    impacts: array[float] = field(default_factory=lambda: array("f"))
    fields: array[int] = field(default_factory=lambda: array("B"))
    rarities: array[float] = field(default_factory=lambda: array("f"))


@dataclass(frozen=True, slots=True)
class IndexTables:
    """Everything needed to rank a request; built by `build_tables`, kept on disk by `cache`."""

    ids: tuple[str, ...]
    names: tuple[str, ...]
    words: dict[str, int]
    """Stem to key in `postings`."""
    postings: Postings
    pair_starts: array[int]
    """Where the pairs that begin with a word begin; one more entry than words."""
    pair_seconds: array[int]
    """The second word of every pair, sorted within the first; its place here is the key in `pairs`."""
    pairs: Postings
    forms: dict[str, int]
    """Every spelling in the catalog, and every function and filler word, with the key of its stem (-1: none)."""
    name_words: tuple[tuple[int, ...], ...]
    """The keys of the words in each name."""
    name_rarities: array[float]
    """Summed rarity of the words in each name."""
    by_name: dict[str, tuple[int, ...]]
    """Normal form of a name to the skills that have it."""
    topics: Topics
    """The subjects of each skill."""
    forms_by_start: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """`forms` grouped for the repair of typos; filled when a request first needs it."""
    letters_by_start: dict[str, list[tuple[str, int]]] = field(default_factory=dict[str, list[tuple[str, int]]])
    """Those with one first letter and length, each with its letters as bits; filled as requests need them."""
    readings: dict[str, tuple[Term, ...]] = field(default_factory=dict[str, tuple[Term, ...]])
    """What the words of `forms` mean in a request; filled as requests need them."""
    rows: dict[int, array[float]] = field(default_factory=dict[int, "array[float]"])
    """The impacts of common words and of grammar, one entry per skill of the catalog; filled as requests need them."""

    def __len__(self) -> int:
        return len(self.ids)

    def find_pairs(self, words: Iterable[int]) -> Iterator[int]:
        """The keys in `pairs` of the words side by side; a word of -1 is in no pair."""
        starts, seconds = self.pair_starts, self.pair_seconds
        for first, second in pairwise(words):
            if first >= 0 and second >= 0:
                end = starts[first + 1]
                at = bisect_left(seconds, second, starts[first], end)
                if at < end and seconds[at] == second:
                    yield at

    def find_row(self, key: int) -> array[float]:
        """The impact of a word on every skill, 0 where it is missing. Kept: ask for common words and grammar only."""
        row = self.rows.get(key)
        if row is None:
            row = array("f", bytes(4 * len(self)))
            start, end = self.postings.starts[key], self.postings.starts[key + 1]
            for skill, impact in zip(self.postings.skills[start:end], self.postings.impacts[start:end], strict=True):
                row[skill] = impact
            self.rows[key] = row
        return row


class Columns(NamedTuple):
    """The postings of some words, one after the other, before they are joined."""

    sizes: array[int]
    """How many skills each word has."""
    skills: array[int]
    impacts: array[float]
    fields: array[int]
    rarities: array[float]


type BuildSpans = Callable[[Sequence[range], Callable[[range], Columns]], list[Columns]]
"""Builds each span of words, perhaps in two processes."""


def build_each(spans: Sequence[range], build: Callable[[range], Columns]) -> list[Columns]:
    """In this process."""
    return [build(span) for span in spans]


class NamedSkill(Protocol):
    """What an index keeps of a skill beside its words."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...


def build_tables(skills: Iterable[RoutableSkill]) -> IndexTables:
    """Index a catalog. The order of the skills does not matter."""
    ordered = sorted(skills, key=lambda skill: (skill.name, skill.id))
    return join_tallies(ordered, [take_tally(ordered)]) if ordered else _build_empty()


@cache
def _build_empty() -> IndexTables:
    """Runs without skills share one: it still holds every word of grammar."""
    return join_tallies([], [])


def join_tallies(
    ordered: Sequence[NamedSkill], tallies: Sequence[Tally], *, build_spans: BuildSpans = build_each
) -> IndexTables:
    """The index of skills in their order, from the tallies of its parts."""
    words, forms, parts = _join_words(tallies)
    drags = _find_drags(parts)
    columns = build_spans(_find_spans(parts, len(words)), lambda span: _build_columns(span, parts, drags))
    postings = _join_columns(columns, len(ordered))
    pair_keys, pairs = _build_pair_postings(parts)
    firsts = Counter([key >> 32 for key in pair_keys])
    names = [frozenset(map(part.numbers.__getitem__, name)) for part in parts for name in part.tally.names]
    return IndexTables(
        ids=tuple([skill.id for skill in ordered]),
        names=tuple([skill.name for skill in ordered]),
        words=words,
        postings=postings,
        pair_starts=array("I", accumulate(map(firsts.__getitem__, range(len(words))), initial=0)),
        pair_seconds=array("I", [key & 0xFFFFFFFF for key in pair_keys]),
        pairs=pairs,
        forms=forms,
        name_words=tuple([tuple(sorted(name)) for name in names]),
        name_rarities=array("f", [sum([postings.rarities[word] for word in name]) for name in names]),
        by_name=_build_name_table(skill.name for skill in ordered),
        topics=_build_topics(words, postings, len(ordered)),
    )


def _build_topics(words: Iterable[str], postings: Postings, skills: int) -> Topics:
    topics = TopicBuilder(skills)
    if topics.counts:
        for word, (start, end) in zip(words, pairwise(postings.starts), strict=True):
            topics.add(word, postings.skills[start:end], postings.fields[start:end])
    return topics.build()


def _build_name_table(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Normal form of each name to the numbers of the skills that have it."""
    table: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        key = normal_name(name)
        if key:
            table.setdefault(key, []).append(number)
    return {key: tuple(numbers) for key, numbers in table.items()}


class _Part(NamedTuple):
    """A tally of some of the skills, with the numbers that its words have in the index."""

    tally: Tally
    numbers: Sequence[int]
    keys: Mapping[int, int]
    """From a number of the index to the number in the tally."""


class _Words(NamedTuple):
    words: dict[str, int]
    forms: dict[str, int]
    parts: list[_Part]


def _join_words(tallies: Sequence[Tally]) -> _Words:
    """One number per stem and one entry per spelling, and every word of grammar among the spellings."""
    words: dict[str, int] = {}
    forms: dict[str, int] = {}
    parts: list[_Part] = []
    for tally in tallies:
        numbers = [words.setdefault(word, len(words)) for word in tally.words]
        forms.update((form, numbers[key]) for form, key in tally.forms.items())
        parts.append(_Part(tally, numbers, dict(zip(numbers, range(len(numbers)), strict=True))))
    for word in sorted(FUNCTION_WORDS | FILLER_WORDS):
        forms.setdefault(word, words.get(stem(word), -1))
    return _Words(words, forms, parts)


class _Drags(NamedTuple):
    """For each skill, what its length takes from a word that it says once."""

    bodies: list[float]
    told: list[float]
    names: list[float]


def _find_drags(parts: Sequence[_Part]) -> _Drags:
    return _Drags(
        _drag_all([length for part in parts for length in part.tally.lengths.bodies], BODY_LENGTH_WEIGHT),
        _drag_all([length for part in parts for length in part.tally.lengths.told], META_LENGTH_WEIGHT),
        _drag_all([len(name) for part in parts for name in part.tally.names], NAME_LENGTH_WEIGHT),
    )


def _find_spans(parts: Sequence[_Part], words: int) -> list[range]:
    """All words, in two spans where the catalog is so large that it was counted in two parts.

    The second span has more of the work: pairs follow in the process that builds the first. Common words come first.
    """
    if len(parts) < 2:
        return [range(words)]
    starts = parts[0].tally.bodies.starts
    middle = bisect_left(starts, FIRST_SPAN * starts[-1], hi=len(starts) - 1)
    return [range(middle), range(middle, words)]


def _build_columns(span: range, parts: Sequence[_Part], drags: _Drags) -> Columns:
    columns = Columns(array("I"), array("I"), array("f"), array("B"), array("f"))
    for number in span:
        word = _Column()
        for part in parts:
            key = part.keys.get(number)
            if key is not None:
                word.add(part.tally, key, drags)
        columns.sizes.append(len(word.skills))
        columns.skills.extend(word.skills)
        columns.impacts.extend(word.impacts)
        columns.fields.frombytes(word.fields)
        having = len(word.skills) - (1 - BODY_ONLY_SHARE) * word.fields.count(BODY)
        columns.rarities.append(find_rarity(having, len(drags.told)) ** RARITY_POWER)
    return columns


def _join_columns(columns: Sequence[Columns], skills: int) -> Postings:
    numbers = list(range(skills))
    postings = Postings(skills=[*chain.from_iterable(map(numbers.__getitem__, each.skills) for each in columns)])
    sizes = array("I")
    for each in columns:
        sizes += each.sizes
        postings.impacts += each.impacts
        postings.fields += each.fields
        postings.rarities += each.rarities
    postings.starts = array("I", accumulate(sizes, initial=0))
    return postings


class _Column:
    """The skills that have a word, in order."""

    __slots__ = ("fields", "impacts", "skills")

    def __init__(self) -> None:
        self.skills: list[int] = []
        self.impacts: list[float] = []
        self.fields = bytearray()

    def add(self, tally: Tally, key: int, drags: _Drags) -> None:
        """Those of a tally, which has all its skills after those of the one before."""
        starts, owners, counts = tally.bodies
        start, end = starts[key], starts[key + 1]
        skills = owners[start:end].tolist()
        most, drag = BODY_IMPACT * (SATURATION + 1), drags.bodies
        # The innermost loop of the index: once per word and skill.
        impacts = [most * times / (times + drag[skill]) for skill, times in zip(skills, counts[start:end], strict=True)]
        fields = bytearray([BODY]) * len(skills)
        at = 0
        for skill, impact, bits in _weigh_told(tally, key, drags):
            at = bisect_left(skills, skill, at)
            if at < len(skills) and skills[at] == skill:
                impacts[at] += impact
                fields[at] |= bits
            else:
                skills.insert(at, skill)
                impacts.insert(at, impact)
                fields.insert(at, bits)
        self.skills += skills
        self.impacts += impacts
        self.fields += fields


def _weigh_told(tally: Tally, key: int, drags: _Drags) -> Iterator[tuple[int, float, int]]:
    """The skills that have a word in name, description or tags, with its impact there and the fields."""
    told = tally.told
    chosen = slice(told.starts[key], told.starts[key + 1])
    columns = told.skills[chosen], told.said[chosen], told.named[chosen], told.fields[chosen]
    for skill, said, named, bits in zip(*columns, strict=True):
        impact = _saturated(said, drags.told[skill])
        if named:
            impact += NAME_IMPACT * _saturated(named, drags.names[skill])
        yield skill, impact, bits


def _build_pair_postings(parts: Sequence[_Part]) -> tuple[list[int], Postings]:
    lengths = [length for part in parts for length in part.tally.lengths.pairs]
    impacts = [_saturated(1, drag) for drag in _drag_all(lengths, META_LENGTH_WEIGHT)]
    owners: dict[int, array[int]] = {}
    for part in parts:
        keys, starts, skills = part.tally.pairs
        numbers = part.numbers
        for pair, start, end in zip(keys, starts, starts[1:], strict=False):
            renamed = (numbers[pair >> 32] << 32) | numbers[pair & 0xFFFFFFFF]
            known = owners.get(renamed)
            owners[renamed] = skills[start:end] if known is None else known + skills[start:end]
    pairs = sorted(owners)
    sizes = [len(owners[pair]) for pair in pairs]
    rarities = {size: find_rarity(size, len(lengths)) for size in set(sizes)}
    numbers = list(range(len(lengths)))
    postings = Postings(
        starts=array("I", accumulate(sizes, initial=0)),
        skills=[numbers[skill] for pair in pairs for skill in owners[pair]],
        rarities=array("f", [rarities[size] for size in sizes]),
    )
    postings.impacts.extend([impacts[skill] for skill in postings.skills])
    return pairs, postings


def _drag_all(lengths: Sequence[int], length_weight: float) -> list[float]:
    mean = sum(lengths) / len(lengths) if lengths else 0.0
    return [_drag(length, mean, length_weight) for length in lengths]


def _saturated(times: float, drag: float) -> float:
    return times * (SATURATION + 1) / (times + drag)


def _drag(length: int, mean: float, length_weight: float) -> float:
    return SATURATION * (1 - length_weight + length_weight * length / mean) if mean else SATURATION
