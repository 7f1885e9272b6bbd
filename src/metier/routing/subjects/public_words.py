"""What the texts of 11,529 public skills teach about words: which subjects each belongs to.

A small catalog cannot tell that postgres has to do with queries. The table is made by `scripts/public_words.py`, holds
10,000 stems and no text, and is read once per process.
"""

import sys
from array import array
from functools import cache
from pathlib import Path

FORMAT = 1
FILE = Path(__file__).with_name("public_words.bin")

_ZERO = 128
"""The byte that stands for 0."""
_LANE = 4
"""Bytes of one number while numbers are added up."""


class PublicWords:
    """The table. Words are stems."""

    def __init__(self, data: bytes) -> None:
        header, _, rest = data.partition(b"\n")
        self._numbers = int(header.split()[-1])
        listed, _, vectors = rest.partition(b"\n\n")
        self._places = {word: place for place, word in enumerate(listed.decode().split("\n"))}
        self._vectors = memoryview(vectors)
        self._lanes: dict[str, int] = {}

    def find_lanes(self, word: str) -> int:
        """The subjects of a word as one large integer, 0 where it is unknown; `read` reads a sum of these.

        Each number has 32 bits of its own and is never negative, so that one addition adds all of them.
        """
        lanes = self._lanes.get(word)
        if lanes is None:
            place = self._places.get(word)
            lanes = 0 if place is None else self._spread(place)
            self._lanes[word] = lanes
        return lanes

    def read(self, total: int, weights: int) -> list[int]:
        """The numbers of a sum of lanes whose weights add up to `weights`."""
        lanes = array("I", total.to_bytes(_LANE * self._numbers, "little"))
        if sys.byteorder == "big":
            lanes.byteswap()
        zero = _ZERO * weights
        return [lane - zero for lane in lanes]

    def _spread(self, place: int) -> int:
        room = bytearray(_LANE * self._numbers)
        room[::_LANE] = self._vectors[place * self._numbers : (place + 1) * self._numbers]
        return int.from_bytes(room, "little")


@cache
def read_public_words() -> PublicWords:
    return PublicWords(FILE.read_bytes())
