"""The words of some skills, counted: what an index is made from. Pure.

A tally has its own numbers for words, so that two processes can each make one; `index` puts them together.
"""

from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from metier.routing.clauses import find_trigger_clauses, leave_out_exclusions
from metier.routing.skill import RoutableSkill
from metier.routing.word_lists import FUNCTION_WORDS
from metier.routing.words import count_tokens, split_segments, split_words, stem


class Told(NamedTuple):
    """What one skill says of itself: the words of each field in order, and which words stand side by side."""

    name: list[int]
    description: list[int]
    triggers: list[int]
    """Those of the description that say when the skill is used."""
    tags: list[int]
    pairs: set[int]
    body_length: int

    @property
    def length(self) -> int:
        """Without the body."""
        return len(self.name) + len(self.description) + len(self.tags)

    def rename(self, numbers: list[int]) -> "Told":
        """The same with other numbers for its words."""
        renamed = numbers.__getitem__
        return Told(
            list(map(renamed, self.name)),
            list(map(renamed, self.description)),
            list(map(renamed, self.triggers)),
            list(map(renamed, self.tags)),
            {(numbers[pair >> 32] << 32) | numbers[pair & 0xFFFFFFFF] for pair in self.pairs},
            self.body_length,
        )


class Tally(NamedTuple):
    """Some skills of a catalog, one after the other; the first has number 0."""

    words: dict[str, int]
    """Stem to number."""
    forms: dict[str, int]
    """Every spelling, with the number of its stem."""
    told: list[Told]
    starts: array[int]
    """Where the skills of a word begin in the two columns; one more entry than words."""
    skills: array[int]
    """The skills that have a word, in order."""
    times: array[int]
    """How often each of them has it in its body."""


def take_tally(skills: Iterable[RoutableSkill]) -> Tally:
    """Count the words of these skills, in this order."""
    reader = _Reader()
    told = [reader.read(number, skill) for number, skill in enumerate(skills)]
    starts, owners, times = array("I", [0]), array("I"), array("I")
    for key in range(len(reader.words)):
        owners.extend(reader.owners[key])
        times.extend(reader.times[key])
        starts.append(len(owners))
    return Tally(reader.words, reader.forms, told, starts, owners, times)


class _Reader:
    """Numbers words as they come; remembers each spelling, so that a word is stemmed once."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.forms: dict[str, int] = {}
        self.owners: list[list[int]] = []
        self.times: list[list[int]] = []
        self._tokens: dict[str, tuple[int, ...]] = {}

    def read(self, number: int, skill: RoutableSkill) -> Told:
        pairs: set[int] = set()
        description = leave_out_exclusions(skill.description)
        name = self._read_text(skill.name, pairs)
        words = self._read_text(description, pairs)
        triggers = self._keys(split_words(find_trigger_clauses(description)))
        tags = [key for tag in skill.tags for key in self._read_text(tag, pairs)]
        body = self._count_body(skill.body)
        told = Told(name, words, triggers, tags, pairs, sum(body.values()))
        for key in (*name, *words, *tags):
            body.setdefault(key, 0)
        owners, counted = self.owners, self.times
        for key, times in body.items():
            owners[key].append(number)
            counted[key].append(times)
        return told

    def _read_text(self, text: str, pairs: set[int]) -> list[int]:
        keys: list[int] = []
        for segment in split_segments(text):
            numbers = self._keys(segment)
            pairs.update([(first << 32) | second for first, second in pairwise(numbers)])
            keys += numbers
        return keys

    def _count_body(self, text: str) -> dict[int, int]:
        """Grammar is left out."""
        counts: dict[int, int] = {}
        known = self._tokens
        for token, times in count_tokens(text).items():
            keys = known.get(token)
            if keys is None:
                words = [word for word in split_words(token) if word not in FUNCTION_WORDS]
                keys = known[token] = tuple(self._keys(words))
            for key in keys:
                counts[key] = counts.get(key, 0) + times
        return counts

    def _keys(self, words: list[str]) -> list[int]:
        keys = list(map(self.forms.get, words))
        return [self._new_key(words[at]) if key is None else key for at, key in enumerate(keys)]

    def _new_key(self, word: str) -> int:
        key = self.forms[word] = self.words.setdefault(stem(word), len(self.words))
        if key == len(self.owners):
            self.owners.append([])
            self.times.append([])
        return key
