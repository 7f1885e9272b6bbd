"""Tokenization: fold, split, stem and weight words. Pure, the same in every process.

Words of scripts without spaces become pairs of characters. Stems are only for comparison, not for display.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from metier.routing.word_lists import FILLER_WORDS, FUNCTION_WORDS

FUNCTION_WEIGHT = 0.2
FILLER_WEIGHT = 0.5
NUMBER_WEIGHT = 0.5

_WORD = re.compile(r"[^\W_]+(?:\+\+|#(?!\w))?")
_PLAIN_WORD = re.compile(r"[a-z0-9]+(?:\+\+|#(?!\w))?")
_MARKS, _BREAKS = ".,;:!?|'‘’", '"“”()\n。、，！？；：「」（）'
# One character class first, so that the search is fast. Marks end a segment before a space, breaks anywhere.
_SEGMENT_END = re.compile(rf"[{_MARKS}{_BREAKS}](?:(?<=[{_BREAKS}])|(?<=[{_MARKS}])[{_MARKS}]*+(?:\s|$))")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_INNER_CAPITAL = re.compile(r"[A-Z](?<=\w.)")
_ACCENTS = re.compile("[\u0300-\u036f]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003134f]+"
)
_VOWEL = re.compile("[aeiouy]")

_ASCII = bytes(range(128))
_SPACED = bytes(code if chr(code).isalnum() or chr(code) in "+#" else 32 for code in _ASCII).ljust(256)
"""Translation table that replaces every byte outside of ASCII words with a space."""
_WORD_SIGNS = frozenset("+#")

_SUFFIXES = ("ings", "ing", "edly", "ed", "ly", "ments", "ment")
_ENDINGS = frozenset(suffix[-2:] for suffix in _SUFFIXES)
_DOUBLING = frozenset({"ing", "ed"})


def split_words(text: str) -> list[str]:
    """Split a text into lowercase words without accents; `parseJson` gives parse, json and parsejson."""
    if not text.isascii():
        text = _fold(text)
    if text.isascii() and not _INNER_CAPITAL.search(text):
        return _PLAIN_WORD.findall(text.lower())
    is_plain = text.isascii()
    words: list[str] = []
    for word in _WORD.findall(text):
        if is_plain and word.islower():
            words.append(word)
        else:
            words += _split_word(word)
    return words


def count_tokens(text: str) -> Counter[str]:
    """Count the tokens of a text; `split_words` of a token gives its words.

    For long texts without regard to order: it takes a third of the time of `split_words`, and a caller can cache the
    words of each token for a whole catalog.
    """
    tokens = _split_plain(text)
    if tokens is not None:
        return Counter(tokens)
    # Non-ASCII characters are usually in a few lines only.
    lines = text.split("\n")
    counted = Counter(_split_ascii("\n".join([line for line in lines if line.isascii()]).encode()))
    counted.update(_WORD.findall(_fold("\n".join([line for line in lines if not line.isascii()]))))
    return counted


def split_into_tokens(text: str) -> Iterator[list[str]]:
    """Yield the tokens of each segment; `split_words` of a token gives its words."""
    for segment in _SEGMENT_END.split(text):
        # The character after a `#` decides whether it belongs to the word, so the fast path doesn't apply.
        tokens = None if "#" in segment else _split_plain(segment)
        yield _WORD.findall(_fold(segment)) if tokens is None else tokens


def split_segments(text: str) -> Iterator[list[str]]:
    """Yield the words between punctuation marks, because phrases don't cross them."""
    for segment in _SEGMENT_END.split(text):
        words = split_words(segment)
        if words:
            yield words


def stem(word: str) -> str:
    """Remove plural, -ing, -ed, -ly and -ment."""
    # Not a Porter stemmer: stronger stemming was measured and finds fewer skills.
    if len(word) < 4 or not word.isascii():
        return word
    if word[-1] == "s" and word[-2] not in "su":
        word = _singular(word)
    if word[-2:] in _ENDINGS:
        word = _without_suffix(word)
    if len(word) > 3 and word[-1] == "e":
        word = word[:-1]
    if len(word) > 3 and word[-1] == "y":
        word = word[:-1] + "i"
    return word


def weight_of(word: str) -> float:
    """Return the weight of a word before rarity: low for function words, half for filler words and numbers."""
    if word in FUNCTION_WORDS:
        return FUNCTION_WEIGHT
    if word in FILLER_WORDS:
        return FILLER_WEIGHT
    return NUMBER_WEIGHT if word.isdigit() else 1.0


def _split_word(word: str) -> list[str]:
    if not word.isascii():
        return list(_pieces(word.casefold()))
    humps = [] if word.islower() or word.isupper() or word.isdigit() else _HUMP.split(word)
    return [*(hump.lower() for hump in humps if len(humps) > 1), word.lower()]


def _split_plain(text: str) -> list[str] | None:
    """Return the tokens of a text if all its words are ASCII, or else None."""
    # On bytes, because that takes a third of the time of a regular expression.
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > len(text):
        others = data.translate(None, _ASCII).decode("utf-8", "surrogatepass")
        if not all(map(_is_break, set(others))):
            return None
    return _split_ascii(data)


def _split_ascii(data: bytes) -> list[str]:
    """Split UTF-8 text with ASCII letters only."""
    return data.translate(_SPACED).decode("ascii").split()


@lru_cache(maxsize=4096)
def _is_break(character: str) -> bool:
    """Return True if the character is neither part of a word nor an accent in any normalization form."""
    return not any(
        part.isalnum() or part in _WORD_SIGNS or unicodedata.combining(part)
        for part in unicodedata.normalize("NFKD", character)
    )


def _fold(text: str) -> str:
    """Unify compatibility forms and remove Latin, Greek and Cyrillic accents, but not those of Hangul and kana."""
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFKD", text)))


def _pieces(word: str) -> Iterator[str]:
    start = 0
    for run in _UNSPACED.finditer(word):
        if run.start() > start:
            yield word[start : run.start()]
        characters = run.group()
        if len(characters) == 1:
            yield characters
        for first, second in pairwise(characters):
            yield first + second
        start = run.end()
    if start < len(word):
        yield word[start:]


def _singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y" if len(word) > 4 else word[:-1]
    if word.endswith(("sses", "xes", "ches", "shes", "zes")):
        return word[:-2]
    return word[:-1]


def _without_suffix(word: str) -> str:
    for suffix in _SUFFIXES:
        root = word[: -len(suffix)]
        if word.endswith(suffix) and len(root) >= 3 and _VOWEL.search(root):
            doubled = suffix in _DOUBLING and len(root) > 3 and root[-1] == root[-2] and root[-1] not in "lsz"
            return root[:-1] if doubled else root
    return word
