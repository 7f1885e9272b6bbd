"""A catalog turned into posting lists, so that a request touches only the skills that share a word with it. Pure.

Skills are numbered by name, then id: the smaller number wins a tie. Every posting carries its finished impact, so a
request only multiplies and adds.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, groupby, pairwise
from typing import NamedTuple

from metier.routing.calibration import RARITY_POWER, find_rarity
from metier.routing.clauses import find_trigger_clauses, leave_out_exclusions
from metier.routing.names import normal_name
from metier.routing.skill import BODY, DESCRIPTION, NAME, TAGS, RoutableSkill
from metier.routing.term import Term
from metier.routing.word_lists import FILLER_WORDS, FUNCTION_WORDS
from metier.routing.words import split_segments, split_words, stem

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
    skills: list[int] = field(default_factory=list[int])
    """A list, which is searched three times faster than an array; one object per skill, however often it stands."""
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
    forms_by_start: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """`forms` grouped for the repair of typos; filled when a request first needs it."""
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


class _Read(NamedTuple):
    """One skill, read: its words in order, by field, and which words stand side by side."""

    name: list[int]
    description: list[int]
    triggers: list[int]
    """Those of the description that say when the skill is used."""
    tags: list[int]
    body: list[int]
    pairs: set[int]


def build_tables(skills: Iterable[RoutableSkill]) -> IndexTables:
    """Index a catalog. The order of the skills does not matter."""
    ordered = sorted(skills, key=lambda skill: (skill.name, skill.id))
    return _build_tables(ordered) if ordered else _build_empty()


@cache
def _build_empty() -> IndexTables:
    """Runs without skills share one: it still holds every word of grammar."""
    return _build_tables([])


def _build_tables(ordered: Sequence[RoutableSkill]) -> IndexTables:
    reader = _Reader()
    reads = [reader.read(skill) for skill in ordered]
    postings = _build_word_postings(reads, count=len(reader.words))
    pair_keys, pairs = _build_pair_postings(reads)
    firsts = Counter([key >> 32 for key in pair_keys])
    return IndexTables(
        ids=tuple(skill.id for skill in ordered),
        names=tuple(skill.name for skill in ordered),
        words=reader.words,
        postings=postings,
        pair_starts=array("I", accumulate((firsts[word] for word in range(len(reader.words))), initial=0)),
        pair_seconds=array("I", [key & 0xFFFFFFFF for key in pair_keys]),
        pairs=pairs,
        forms=reader.all_forms(),
        name_words=tuple(tuple(sorted(set(read.name))) for read in reads),
        name_rarities=array("f", (sum(postings.rarities[word] for word in set(read.name)) for read in reads)),
        by_name=build_name_table(skill.name for skill in ordered),
    )


def build_name_table(names: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Normal form of each name to the numbers of the skills that have it."""
    table: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        key = normal_name(name)
        if key:
            table.setdefault(key, []).append(number)
    return {key: tuple(numbers) for key, numbers in table.items()}


class _Reader:
    """Numbers words as they come; remembers each spelling, so that a word is stemmed once per catalog."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.forms: dict[str, int] = {}

    def read(self, skill: RoutableSkill) -> _Read:
        pairs: set[int] = set()
        description = leave_out_exclusions(skill.description)
        return _Read(
            self._read_text(skill.name, pairs),
            self._read_text(description, pairs),
            self._keys(split_words(find_trigger_clauses(description))),
            [key for tag in skill.tags for key in self._read_text(tag, pairs)],
            self._keys([word for word in split_words(skill.body) if word not in FUNCTION_WORDS]),
            pairs,
        )

    def all_forms(self) -> dict[str, int]:
        for word in sorted(FUNCTION_WORDS | FILLER_WORDS):
            self.forms.setdefault(word, self.words.get(stem(word), -1))
        return self.forms

    def _read_text(self, text: str, pairs: set[int]) -> list[int]:
        keys: list[int] = []
        for segment in split_segments(text):
            numbers = self._keys(segment)
            pairs.update([(first << 32) | second for first, second in pairwise(numbers)])
            keys += numbers
        return keys

    def _keys(self, words: list[str]) -> list[int]:
        keys = list(map(self.forms.get, words))
        return [self._new_key(words[at]) if key is None else key for at, key in enumerate(keys)]

    def _new_key(self, word: str) -> int:
        return self.forms.setdefault(word, self.words.setdefault(stem(word), len(self.words)))


def _build_word_postings(reads: Sequence[_Read], *, count: int) -> Postings:
    skills: list[list[int]] = [[] for _ in range(count)]
    impacts: list[list[float]] = [[] for _ in range(count)]
    fields = [bytearray() for _ in range(count)]
    scale = _Scale(reads)
    for number, read in enumerate(reads):
        places = scale.place(read)
        for key, impact in scale.weigh(read).items():
            skills[key].append(number)
            impacts[key].append(impact)
            fields[key].append(places.get(key, BODY))
    postings = Postings()
    for key in range(count):
        postings.append(skills[key], impacts[key], fields[key])
        having = len(skills[key]) - (1 - BODY_ONLY_SHARE) * fields[key].count(BODY)
        postings.rarities.append(find_rarity(having, len(reads)) ** RARITY_POWER)
    return postings


class _Scale:
    """Weighs the words of a skill by field, repetition, and how long its fields are beside the catalog's."""

    def __init__(self, reads: Sequence[_Read]) -> None:
        self.name_mean = _mean([len(read.name) for read in reads])
        self.meta_mean = _mean([_meta_length(read) for read in reads])
        self.body_mean = _mean([len(read.body) for read in reads])

    def weigh(self, read: _Read) -> dict[int, float]:
        """The impact of every word of the skill."""
        drag = _drag(len(read.body), self.body_mean, BODY_LENGTH_WEIGHT)
        body = Counter(read.body)
        impacts = {key: BODY_IMPACT * _saturated(times, drag) for key, times in body.items()}
        drag = _drag(_meta_length(read), self.meta_mean, META_LENGTH_WEIGHT)
        triggers = Counter(read.triggers)
        for key, counted in Counter([*read.name, *read.description, *read.tags]).items():
            times = counted + TRIGGER_SHARE * triggers.get(key, 0)
            impacts[key] = impacts.get(key, 0.0) + _saturated(times, drag)
        drag = _drag(len(read.name), self.name_mean, NAME_LENGTH_WEIGHT)
        for key, times in Counter(read.name).items():
            impacts[key] += NAME_IMPACT * _saturated(times, drag)
        return impacts

    def place(self, read: _Read) -> dict[int, int]:
        """The fields of every word that does not stand in the body alone."""
        places: dict[int, int] = {}
        body = set(read.body)
        for bit, keys in ((NAME, read.name), (DESCRIPTION, read.description), (TAGS, read.tags)):
            for key in keys:
                places[key] = places.get(key, BODY if key in body else 0) | bit
        return places


def _build_pair_postings(reads: Sequence[_Read]) -> tuple[array[int], Postings]:
    mean = _mean([len(read.pairs) for read in reads])
    impacts = [_saturated(1, _drag(len(read.pairs), mean, META_LENGTH_WEIGHT)) for read in reads]
    # One number per entry, pair above skill, so that one sort groups the skills of each pair in order.
    entries = [(pair << 32) | number for number, read in enumerate(reads) for pair in read.pairs]
    entries.sort()
    keys = array("Q")
    skills = list(range(len(reads)))
    postings = Postings()
    for pair, group in groupby(entries, key=lambda entry: entry >> 32):
        numbers = [skills[entry & 0xFFFFFFFF] for entry in group]
        keys.append(pair)
        postings.append(numbers, [impacts[number] for number in numbers], b"")
        postings.rarities.append(find_rarity(len(numbers), len(reads)))
    return keys, postings


def _meta_length(read: _Read) -> int:
    return len(read.name) + len(read.description) + len(read.tags)


def _saturated(times: float, drag: float) -> float:
    return times * (SATURATION + 1) / (times + drag)


def _drag(length: int, mean: float, length_weight: float) -> float:
    return SATURATION * (1 - length_weight + length_weight * length / mean) if mean else SATURATION


def _mean(numbers: Sequence[int]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
