"""The words of some skills, counted: what an index is made from. Pure.

A tally has its own numbers for words, so that two processes can each make one; `index` puts them together. Its columns
are flat arrays: they cost little to send from one process to the other.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import NamedTuple

from metier.routing.clauses import find_trigger_clauses, leave_out_exclusions
from metier.routing.skill import DESCRIPTION, NAME, TAGS, RoutableSkill
from metier.routing.word_lists import FUNCTION_WORDS
from metier.routing.words import count_tokens, split_into_tokens, split_words, stem

TRIGGER_SHARE = 0.15
"""How much more often a word counts as said that stands after "Use when"."""


class Bodies(NamedTuple):
    """For each word, the skills that have it in their body, in order, and how often each has it."""

    starts: array[int]
    """Where the skills of a word begin in the columns; one more entry than words."""
    skills: array[int]
    times: array[int]


class Told(NamedTuple):
    """For each word, the skills that have it in name, description or tags, in order."""

    starts: array[int]
    skills: array[int]
    said: array[float]
    """How often each of them says it, with `TRIGGER_SHARE`."""
    named: array[int]
    """How often its name does."""
    fields: array[int]
    """As bits."""


class Pairs(NamedTuple):
    """Words side by side in name, description or tags, and the skills that have them there, in order."""

    keys: array[int]
    """The first word above the second."""
    starts: array[int]
    skills: array[int]


class Lengths(NamedTuple):
    """One entry for each skill, in words."""

    told: array[int]
    """Of name, description and tags."""
    bodies: array[int]
    pairs: array[int]


class Tally(NamedTuple):
    """Some skills of a catalog, one after the other."""

    words: dict[str, int]
    """Stem to number."""
    forms: dict[str, int]
    """Every spelling, with the number of its stem."""
    names: list[list[int]]
    """The words of each name."""
    lengths: Lengths
    bodies: Bodies
    told: Told
    pairs: Pairs


def take_tally(skills: Iterable[RoutableSkill], *, first: int = 0) -> Tally:
    """Count the words of these skills, in this order; the first of them has the number `first`."""
    reader = _Reader(first)
    for number, skill in enumerate(skills, first):
        reader.read(number, skill)
    return reader.build()


class _Reader:
    def __init__(self, first: int) -> None:
        self._first = first
        self._vocabulary = _Vocabulary()
        self._names: list[list[int]] = []
        self._lengths = Lengths(array("I"), array("I"), array("I"))
        self._told: defaultdict[int, list[tuple[int, float, int, int]]] = defaultdict(list)
        self._pairs: defaultdict[int, list[int]] = defaultdict(list)
        self._tokens: defaultdict[str, array[int]] = defaultdict(lambda: array("I"))
        """For each token of a body, number and times of one skill after the other."""

    def read(self, number: int, skill: RoutableSkill) -> None:
        pairs: set[int] = set()
        description = leave_out_exclusions(skill.description)
        name = self._read_text(skill.name, pairs)
        words = self._read_text(description, pairs)
        tags = [key for tag in skill.tags for key in self._read_text(tag, pairs)]
        triggers = self._read_text(find_trigger_clauses(description), None)
        self._add_told(number, (name, words, tags), triggers)
        for pair in pairs:
            self._pairs[pair].append(number)
        self._names.append(name)
        self._lengths.told.append(len(name) + len(words) + len(tags))
        self._lengths.pairs.append(len(pairs))
        self._lengths.bodies.append(self._count_body(number, skill.body))

    def build(self) -> Tally:
        bodies = self._join_bodies()
        return Tally(
            words=self._vocabulary.words,
            forms=self._vocabulary.forms,
            names=self._names,
            lengths=self._lengths,
            bodies=bodies,
            told=self._build_told(),
            pairs=_build_pairs(self._pairs),
        )

    def _read_text(self, text: str, pairs: set[int] | None) -> list[int]:
        """The words of a text, and those side by side into `pairs`."""
        keys: list[int] = []
        known = self._vocabulary.__getitem__
        for tokens in split_into_tokens(text):
            numbers = [*chain.from_iterable(map(known, tokens))]
            if pairs is not None:
                pairs.update([(first << 32) | second for first, second in pairwise(numbers)])
            keys += numbers
        return keys

    def _add_told(self, number: int, told: tuple[list[int], list[int], list[int]], triggers: list[int]) -> None:
        name, words, tags = told
        names, triggered = Counter(name), Counter(triggers)
        fields = dict.fromkeys(words, DESCRIPTION)
        for bit, keys in ((NAME, name), (TAGS, tags)):
            for key in keys:
                fields[key] = fields.get(key, 0) | bit
        for key, times in Counter([*name, *words, *tags]).items():
            said = times + TRIGGER_SHARE * triggered.get(key, 0)
            self._told[key].append((number, said, names.get(key, 0), fields[key]))

    def _count_body(self, number: int, text: str) -> int:
        """The number of its tokens."""
        counted = count_tokens(text)
        known = self._tokens
        for token, times in counted.items():
            # Once per token and skill. Arrays: two numbers each would be two objects that stay.
            entries = known[token]
            entries.append(number)
            entries.append(times)
        return counted.total()

    def _join_bodies(self) -> Bodies:
        """Tokens become words, once each; grammar is left out."""
        vocabulary, lengths, first = self._vocabulary, self._lengths.bodies, self._first
        by_word: dict[int, list[array[int]]] = {}
        for token, entries in self._tokens.items():
            keys = vocabulary.find([word for word in split_words(token) if word not in FUNCTION_WORDS])
            for key in keys:
                by_word.setdefault(key, []).append(entries)
            if len(keys) != 1:
                for skill, times in zip(entries[::2], entries[1::2], strict=True):
                    lengths[skill - first] += (len(keys) - 1) * times
        columns = Bodies(array("I", [0]), array("I"), array("I"))
        for key in range(len(vocabulary.words)):
            joined = _add_up(by_word.get(key, ()))
            columns.skills.extend(joined[::2])
            columns.times.extend(joined[1::2])
            columns.starts.append(len(columns.skills))
        return columns

    def _build_told(self) -> Told:
        columns = Told(array("I", [0]), array("I"), array("d"), array("I"), array("B"))
        for key in range(len(self._vocabulary.words)):
            for skill, said, named, fields in self._told.get(key, ()):
                columns.skills.append(skill)
                columns.said.append(said)
                columns.named.append(named)
                columns.fields.append(fields)
            columns.starts.append(len(columns.skills))
        return columns


class _Vocabulary(dict[str, tuple[int, ...]]):
    """The words of each token. Numbers words as they come; each token is split once, and each spelling stemmed once."""

    def __init__(self) -> None:
        super().__init__()
        self.words: dict[str, int] = {}
        self.forms: dict[str, int] = {}

    def __missing__(self, token: str) -> tuple[int, ...]:
        keys = self[token] = tuple(self.find(split_words(token)))
        return keys

    def find(self, words: Iterable[str]) -> list[int]:
        """The numbers of words as `split_words` gives them."""
        keys: list[int] = []
        for word in words:
            key = self.forms.get(word)
            if key is None:
                key = self.forms[word] = self.words.setdefault(stem(word), len(self.words))
            keys.append(key)
        return keys


def _add_up(entries: Sequence[array[int]]) -> array[int]:
    """Number and times of one skill after the other, from the same of each spelling."""
    if len(entries) == 1:
        return entries[0]
    times: dict[int, int] = {}
    for each in entries:
        for skill, count in zip(each[::2], each[1::2], strict=True):
            times[skill] = times.get(skill, 0) + count
    return array("I", chain.from_iterable(sorted(times.items())))


def _build_pairs(skills: Mapping[int, Sequence[int]]) -> Pairs:
    return Pairs(
        array("Q", skills),
        array("I", accumulate(map(len, skills.values()), initial=0)),
        array("I", chain.from_iterable(skills.values())),
    )
