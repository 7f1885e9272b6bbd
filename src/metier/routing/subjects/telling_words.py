"""What the example requests of public skills teach: which words of a request tell which skill is wanted.

Rarity alone does not say it: in "research my competitors this month", "month" is rarer than "research" and tells less.
The table is made by `scripts/telling_words.py`, holds stems and factors and no text, and is read once per process.
"""

from functools import cache, lru_cache
from pathlib import Path

from metier.routing.words import stem

FORMAT = 1
FILE = Path(__file__).with_name("telling_words.txt")
LEAST_SKILLS = 500
"""Factors were learned in catalogs of 1,000 and 10,000 skills; in a catalog smaller than this they do not count."""


@cache
def read_telling_words() -> dict[str, float]:
    """The factor of each stem that counts more or less than its rarity says."""
    lines = FILE.read_text(encoding="utf-8").splitlines()[1:]
    return {word: int(percent) / 100 for word, percent in map(str.split, lines)}


def find_factor(word: str, skills: int) -> float:
    """What a word of a request counts in a catalog of so many skills, beside what its rarity says."""
    return _find_factor(word) if skills >= LEAST_SKILLS else 1.0


@lru_cache(maxsize=8_192)
def _find_factor(word: str) -> float:
    """Kept: requests are made of the same words again and again, and finding a stem costs more than the rest."""
    return read_telling_words().get(stem(word), 1.0)
