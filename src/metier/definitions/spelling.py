"""How alike two spellings are, from 0 to 1. Pure; a word is at most some hundred characters, so Python is fast enough.

The measures are those of `rapidfuzz`, which weighs twelve megabytes; a test compares them.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

_COMPARED = 500
"""Characters of a text that are compared: lines of files may have millions."""

type Measure = Callable[[str, str], float]


class Alike(NamedTuple):
    text: str
    similarity: float
    place: int


def rank(word: str, choices: Iterable[str], measure: Measure, *, at_least: float, most: int) -> list[Alike]:
    """The choices that are alike enough, the most alike first; of equals the first one."""
    wanted = word[:_COMPARED]
    measured = (Alike(choice, measure(wanted, choice[:_COMPARED]), index) for index, choice in enumerate(choices))
    alike = [each for each in measured if each.similarity >= at_least]
    return sorted(alike, key=lambda each: (-each.similarity, each.place))[:most]


def measure_common(one: str, other: str) -> float:
    """The share of letters that stand in the same order in both."""
    total = len(one) + len(other)
    return 2 * _count_common(one, other) / total if total else 1.0


def measure_part(one: str, other: str) -> float:
    """As `measure_common`, for the part of the longer one that is most like the shorter one."""
    short, long = sorted((one, other), key=len)
    if not short:
        return float(not long)
    if len(short) == len(long):
        return max(_measure_windows(short, long), _measure_windows(long, short))
    return _measure_windows(short, long)


def measure_name(one: str, other: str) -> float:
    """As `measure_common`; where one is much longer, a part of it that is alike counts for somewhat less."""
    whole = measure_common(one, other)
    short, long = sorted((len(one), len(other)))
    if not short or long < 1.5 * short:
        return whole
    return max(whole, measure_part(one, other) * (0.9 if long <= 8 * short else 0.6))


def measure_typing(one: str, other: str) -> float:
    """What is left after the letters that were typed wrong: left out, added, exchanged, or swapped with the next."""
    longest = max(len(one), len(other))
    return 1 - _count_slips(one, other) / longest if longest else 1.0


def measure_beginning(one: str, other: str) -> float:
    """The share of the longer one that both begin with."""
    longest = max(len(one), len(other))
    same = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return same / longest if longest else 1.0


def _measure_windows(short: str, long: str) -> float:
    size = len(short)
    starts: Sequence[int] = range(1 - size, len(long))
    return max(measure_common(short, long[max(0, start) : start + size]) for start in starts)


def _count_common(one: str, other: str) -> int:
    """The length of the longest common subsequence, one bit for each letter of the first (Hyyrö 2004)."""
    places = _find_places(one)
    full = (1 << len(one)) - 1
    row = full
    for letter in other:
        hit = row & places.get(letter, 0)
        row = ((row + hit) | (row - hit)) & full
    return len(one) - row.bit_count()


def _count_slips(one: str, other: str) -> int:
    """The optimal string alignment distance, one bit for each letter of the first (Hyyrö 2003)."""
    if not one:
        return len(other)
    places = _find_places(one)
    full, last = (1 << len(one)) - 1, 1 << (len(one) - 1)
    up, down, diagonal, before = full, 0, 0, 0
    distance = len(one)
    for letter in other:
        here = places.get(letter, 0)
        swapped = (((~diagonal) & here) << 1) & before
        diagonal = ((((here & up) + up) ^ up) | here | down | swapped) & full
        right, left = down | (~(diagonal | up) & full), diagonal & up
        distance += bool(right & last) - bool(left & last)
        right, left = ((right << 1) | 1) & full, (left << 1) & full
        up, down = left | (~(diagonal | right) & full), right & diagonal
        before = here
    return distance


@functools.lru_cache(maxsize=64)
def _find_places(word: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, letter in enumerate(word):
        places[letter] = places.get(letter, 0) | (1 << index)
    return places
