"""Finder of keys by their format: vendor formats, passwords in addresses, private keys. Pure.

Ordinary text is cheap: few of its words are as long as a key, and even fewer have a key's prefix.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from metier.telemetry.patterns import LONG_WORD, KeyFormat, build_key_formats
from metier.telemetry.values import is_code_or_placeholder


class Span(NamedTuple):
    """Position of a secret, and of the text in front of it that identifies it."""

    start: int
    end: int
    context: int
    kind: str


PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
PEM_BODY = re.compile(r"[A-Za-z0-9+/=:,. \t\r\n\\-]*+")

_RUN = b"a" * LONG_WORD
_WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~\\"
_SHAPE = bytes(0x61 if byte in _WORD_BYTES else 0x20 for byte in range(256))
_WORDS = bytes(byte if byte in _WORD_BYTES else 0x20 for byte in range(256))
_SEGMENT = re.compile(rb"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9_.-]{3}")
_MIN_PEM = 16
_REST = re.compile(r"[A-Za-z0-9_-]+")


def get_long_words(text: bytes) -> bytes:
    """Return the words that are long enough for a key, separated by spaces; empty for most prose."""
    if _RUN not in text.translate(_SHAPE):
        return b""
    return b" ".join([word for word in text.translate(_WORDS).split() if len(word) >= LONG_WORD])


class FormatFinder:
    """Finds keys. Immutable, so it can be shared between tasks and threads."""

    def __init__(self) -> None:
        self._formats = build_key_formats()

    def find(self, text: str, *, words: bytes) -> Iterator[Span]:
        """Yield the keys in a text. `words` has its long words."""
        for key_format in self._candidates(text, words):
            yield from list_keys(key_format, text)
        if "-----BEGIN" in text:
            yield from _list_private_keys(text)

    def _candidates(self, text: str, words: bytes) -> list[KeyFormat]:
        formats = [each for each in self._formats.in_context for literal in each.literals if literal in text]
        if not words:
            return formats
        if b"\\" in words:  # the `n` of an escaped line feed would look like the first letter of the next word
            words = words.replace(b"\\n", b"  ").replace(b"\\r", b"  ").replace(b"\\t", b"  ")
        openings = self._formats.by_opening.keys() & set(_SEGMENT.findall(words))
        formats += dict.fromkeys(key_format for opening in openings for key_format in self._formats.by_opening[opening])
        formats += self._formats.among_signs
        formats += [inside for sign, inside in self._formats.inside if sign.search(words)]
        return formats


def list_keys(key_format: KeyFormat, text: str) -> Iterator[Span]:
    """Yield every key of one format."""
    group = "v" if "v" in key_format.regex.groupindex else 0
    for match in _matches(key_format, text):
        start, end = match.span(group)
        if not is_code_or_placeholder(match[group], quoted=True):
            yield Span(start, _word_end(text, end), match.start(), key_format.kind)


def _word_end(text: str, end: int) -> int:
    """Return the end of the word with the key's end, so that a key repeated without a space is hidden whole."""
    if text[end - 1 : end].isalnum() and (rest := _REST.match(text, end)):
        return rest.end()
    return end


def _matches(key_format: KeyFormat, text: str) -> Iterator[re.Match[str]]:
    regex = key_format.regex
    if not key_format.anchored:
        yield from regex.finditer(text)
        return
    for literal in key_format.literals:
        at = text.find(literal)
        while at >= 0:
            match = regex.match(text, at)
            if match:
                yield match
            at = text.find(literal, match.end() if match else at + len(literal))


def _list_private_keys(text: str) -> Iterator[Span]:
    at = 0
    while begin := PEM_BEGIN.search(text, at):
        stop = text.find("-----", begin.end())
        body = PEM_BODY.match(text, begin.end(), stop if stop >= 0 else len(text))
        at = body.end() if body else begin.end()
        if len(text[begin.end() : min(at, begin.end() + 4 * _MIN_PEM)].strip()) >= _MIN_PEM:
            yield Span(begin.end(), at, begin.start(), "private-key")
