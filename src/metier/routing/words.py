"""Text into words that can be compared: folded, split, stemmed and graded. Pure, the same in every process.

Words of scripts written without spaces become pairs of characters. Stems are for comparing, never for showing.
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
# One set of characters first: the search leaps to them. Marks end a segment before a space, breaks anywhere.
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
"""Every byte that is in no ASCII word becomes a space, for `bytes.translate`."""
_WORD_SIGNS = frozenset("+#")

_SUFFIXES = ("ings", "ing", "edly", "ed", "ly", "ments", "ment")
_ENDINGS = frozenset(suffix[-2:] for suffix in _SUFFIXES)
_DOUBLING = frozenset({"ing", "ed"})


def split_words(text: str) -> list[str]:
    """The words of a text in order, lower-cased and without accents; `parseJson` gives parse, json and parsejson."""
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
    """How often each token stands in a text; `split_words` of a token gives its words.

    For long texts whose order does not matter. Splitting and counting take a third of the time of `split_words`, and a
    caller that remembers the words of a token splits it once for a whole catalog.
    """
    tokens = _split_plain(text)
    if tokens is not None:
        return Counter(tokens)
    # Mostly the other characters are in a few lines.
    lines = text.split("\n")
    counted = Counter(_split_ascii("\n".join([line for line in lines if line.isascii()]).encode()))
    counted.update(_WORD.findall(_fold("\n".join([line for line in lines if not line.isascii()]))))
    return counted


def split_into_tokens(text: str) -> Iterator[list[str]]:
    """Like `split_segments`, but tokens: `split_words` of each gives its words."""
    for segment in _SEGMENT_END.split(text):
        # What follows a `#` decides whether it belongs to the word, so such a segment is not taken apart first.
        tokens = None if "#" in segment else _split_plain(segment)
        yield _WORD.findall(_fold(segment)) if tokens is None else tokens


def split_segments(text: str) -> Iterator[list[str]]:
    """The words of each stretch between punctuation marks: phrases do not reach across them."""
    for segment in _SEGMENT_END.split(text):
        words = split_words(segment)
        if words:
            yield words


def stem(word: str) -> str:
    """The word without plural, -ing, -ed, -ly and -ment; stronger stemming was measured and finds fewer skills."""
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
    """How much a word of a request counts before rarity: grammar little, courtesy and bare numbers half."""
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
    """The tokens of a text whose words are all ASCII, as those of most English texts; else nothing.

    On bytes, which takes a third of the time that splitting by a pattern takes.
    """
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > len(text):
        others = data.translate(None, _ASCII).decode("utf-8", "surrogatepass")
        if not all(map(_is_break, set(others))):
            return None
    return _split_ascii(data)


def _split_ascii(data: bytes) -> list[str]:
    """The tokens of a text in UTF-8 without other letters than ASCII."""
    return data.translate(_SPACED).decode("ascii").split()


@lru_cache(maxsize=4096)
def _is_break(character: str) -> bool:
    """No part of a word, and no accent of the character before it, whatever form it is folded to."""
    return not any(
        part.isalnum() or part in _WORD_SIGNS or unicodedata.combining(part)
        for part in unicodedata.normalize("NFKD", character)
    )


def _fold(text: str) -> str:
    """Compatibility forms unified and Latin, Greek and Cyrillic accents removed; Hangul and kana stay whole."""
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
