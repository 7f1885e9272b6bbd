"""A catalog turned into posting lists, so that a request touches only the skills that share a word with it. Pure.

Skills are numbered by name, then id: the smaller number wins a tie. Every posting carries its finished impact, so a
request only multiplies and adds.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from functools import cache
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple, Protocol

from metier.dataclass import dataclass
from metier.routing.calibration import RARITY_POWER, find_rarity
from metier.routing.names import normal_name
from metier.routing.skill import BODY, DESCRIPTION, NAME, TAGS, RoutableSkill
from metier.routing.subjects.topics import TopicBuilder, Topics
from metier.routing.tally import Tally, Told, take_tally
from metier.routing.term import Term
from metier.routing.word_lists import FILLER_WORDS, FUNCTION_WORDS
from metier.routing.words import stem

META_LENGTH_WEIGHT, NAME_LENGTH_WEIGHT, BODY_LENGTH_WEIGHT = 0.4, 0.3, 0.45
"""How far a long field dilutes its words: 0 not at all, 1 in proportion."""
NAME_IMPACT, BODY_IMPACT = 0.3, 0.55
"""Beside 1.0 for name, description and tags together."""
SATURATION = 0.6
"""How soon a repeated word stops counting; a skill that stuffs a word gains at most 1 + this."""
TRIGGER_SHARE = 0.15
"""How much more often a word counts as said that stands after "Use when"."""
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

    def append(self, skills: Sequence[int], impacts: Sequence[float], fields: bytes | bytearray) -> None:
        """Add the next key; its rarity is appended by the caller."""
        self.skills.extend(skills)
        self.impacts.extend(impacts)
        self.fields.frombytes(fields)
        self.starts.append(len(self.skills))


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


def join_tallies(ordered: Sequence[NamedSkill], tallies: Sequence[Tally]) -> IndexTables:
    """The index of skills in their order, from the tallies of its parts."""
    words, forms, renamed = _join_words(tallies)
    told = [each for tally, numbers in zip(tallies, renamed, strict=True) for each in _rename(tally.told, numbers)]
    topics = TopicBuilder(len(told))
    postings = _build_word_postings(told, words, _join_columns(tallies, renamed, count=len(words)), topics=topics)
    pair_keys, pairs = _build_pair_postings(told)
    firsts = Counter([key >> 32 for key in pair_keys])
    return IndexTables(
        ids=tuple(skill.id for skill in ordered),
        names=tuple(skill.name for skill in ordered),
        words=words,
        postings=postings,
        pair_starts=array("I", accumulate((firsts[word] for word in range(len(words))), initial=0)),
        pair_seconds=array("I", [key & 0xFFFFFFFF for key in pair_keys]),
        pairs=pairs,
        forms=forms,
        name_words=tuple(tuple(sorted(set(each.name))) for each in told),
        name_rarities=array("f", (sum(postings.rarities[word] for word in set(each.name)) for each in told)),
        by_name=_build_name_table(skill.name for skill in ordered),
        topics=topics.build(),
    )


def _build_name_table(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Normal form of each name to the numbers of the skills that have it."""
    table: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        key = normal_name(name)
        if key:
            table.setdefault(key, []).append(number)
    return {key: tuple(numbers) for key, numbers in table.items()}


class _Words(NamedTuple):
    words: dict[str, int]
    forms: dict[str, int]
    renamed: list[list[int]]
    """For each tally, the number here of each of its words."""


def _join_words(tallies: Sequence[Tally]) -> _Words:
    """One number per stem and one entry per spelling, and every word of grammar among the spellings."""
    words: dict[str, int] = {}
    forms: dict[str, int] = {}
    renamed: list[list[int]] = []
    for tally in tallies:
        numbers = [words.setdefault(word, len(words)) for word in tally.words]
        forms.update((form, numbers[key]) for form, key in tally.forms.items())
        renamed.append(numbers)
    for word in sorted(FUNCTION_WORDS | FILLER_WORDS):
        forms.setdefault(word, words.get(stem(word), -1))
    return _Words(words, forms, renamed)


def _rename(told: list[Told], numbers: list[int]) -> list[Told]:
    """The first tally has the same numbers already."""
    return told if not numbers or numbers[-1] == len(numbers) - 1 else [each.rename(numbers) for each in told]


class _Columns(NamedTuple):
    """For each word, the skills that have it and how often each has it in its body."""

    skills: list[list[int]]
    times: list[list[int]]


def _join_columns(tallies: Sequence[Tally], renamed: Sequence[list[int]], *, count: int) -> _Columns:
    columns = _Columns([[] for _ in range(count)], [[] for _ in range(count)])
    before = 0
    for tally, numbers in zip(tallies, renamed, strict=True):
        # One object per skill, however often it stands.
        own = range(before, before + len(tally.told))
        skills = list(map(list(own).__getitem__, tally.skills))
        for key, number in enumerate(numbers):
            start, end = tally.starts[key], tally.starts[key + 1]
            columns.skills[number] += skills[start:end]
            columns.times[number].extend(tally.times[start:end])
        before = own.stop
    return columns


def _build_word_postings(
    told: Sequence[Told], words: Iterable[str], columns: _Columns, *, topics: TopicBuilder
) -> Postings:
    body_mean = _mean([each.body_length for each in told])
    drags = [_drag(each.body_length, body_mean, BODY_LENGTH_WEIGHT) for each in told]
    additions = _weigh_told(told, count=len(columns.skills))
    most = BODY_IMPACT * (SATURATION + 1)
    postings = Postings()
    for word, skills, times, added in zip(words, columns.skills, columns.times, additions, strict=True):
        # The innermost loop of the index: once per word and skill.
        impacts = [most * count / (count + drags[skill]) for skill, count in zip(skills, times, strict=True)]
        fields = bytearray([BODY]) * len(skills)
        for skill, impact, bits in added:
            at = bisect_left(skills, skill)
            impacts[at] += impact
            fields[at] = bits | BODY if times[at] else bits
        postings.append(skills, impacts, fields)
        having = len(skills) - (1 - BODY_ONLY_SHARE) * fields.count(BODY)
        postings.rarities.append(find_rarity(having, len(told)) ** RARITY_POWER)
        topics.add(word, skills, fields)
    return postings


def _weigh_told(told: Sequence[Told], *, count: int) -> list[list[tuple[int, float, int]]]:
    """For each word, the skills that have it in name, description or tags, with its impact there and the fields."""
    name_mean = _mean([len(each.name) for each in told])
    told_mean = _mean([each.length for each in told])
    weighed: list[list[tuple[int, float, int]]] = [[] for _ in range(count)]
    for number, each in enumerate(told):
        drag = _drag(each.length, told_mean, META_LENGTH_WEIGHT)
        name_drag = _drag(len(each.name), name_mean, NAME_LENGTH_WEIGHT)
        triggers, names = Counter(each.triggers), Counter(each.name)
        fields = _find_fields(each)
        for key, counted in Counter([*each.name, *each.description, *each.tags]).items():
            impact = _saturated(counted + TRIGGER_SHARE * triggers.get(key, 0), drag)
            if key in names:
                impact += NAME_IMPACT * _saturated(names[key], name_drag)
            weighed[key].append((number, impact, fields[key]))
    return weighed


def _find_fields(told: Told) -> dict[int, int]:
    """The fields of every word that does not stand in the body alone."""
    fields: dict[int, int] = {}
    for bit, keys in ((NAME, told.name), (DESCRIPTION, told.description), (TAGS, told.tags)):
        for key in keys:
            fields[key] = fields.get(key, 0) | bit
    return fields


def _build_pair_postings(told: Sequence[Told]) -> tuple[array[int], Postings]:
    mean = _mean([len(each.pairs) for each in told])
    impacts = [_saturated(1, _drag(len(each.pairs), mean, META_LENGTH_WEIGHT)) for each in told]
    # One number per entry, pair above skill, so that one sort groups the skills of each pair in order.
    entries = [(pair << 32) | number for number, each in enumerate(told) for pair in each.pairs]
    entries.sort()
    keys = array("Q")
    skills = list(range(len(told)))
    postings = Postings()
    for pair, group in groupby(entries, key=lambda entry: entry >> 32):
        numbers = [skills[entry & 0xFFFFFFFF] for entry in group]
        keys.append(pair)
        postings.append(numbers, [impacts[number] for number in numbers], b"")
        postings.rarities.append(find_rarity(len(numbers), len(told)))
    return keys, postings


def _saturated(times: float, drag: float) -> float:
    return times * (SATURATION + 1) / (times + drag)


def _drag(length: int, mean: float, length_weight: float) -> float:
    return SATURATION * (1 - length_weight + length_weight * length / mean) if mean else SATURATION


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
