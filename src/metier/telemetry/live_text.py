"""Streamed text for users, sanitized and redacted, shown as early as possible.

It holds back text that could still become part of a secret: an incomplete word, the value after a secret name, a random
word until the text around it is known, the start of a known value, an unfinished private key. Shown text is kept as
context, so that the result equals `redact` of the whole text.
"""

import re

from metier.telemetry.formats import PEM_BEGIN, PEM_BODY, Span, list_literals
from metier.telemetry.redaction import Redactor, is_open_key
from metier.telemetry.sanitize import SUSPECT, sanitize
from metier.telemetry.secret_names import MARK

CONTEXT = 1_024
"""Number of shown characters kept as context for the following text."""
LIMIT = 16_384
"""Maximum number of characters to hold back; the rest of a longer secret is dropped."""

_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_LONG_WORD = re.compile(r"[!-~]{15,}")
_REACH = 40
"""Number of characters after a random word that are needed to classify it, with a margin."""
_WORD_REST = re.compile(r"""[^\s"'`<>]*""")
_PROSE = re.compile(r"""["'(*_`\[]{0,3}[A-Za-z]?[a-z]{0,13}(?:'[a-z]{0,2})?[,.;:!?)*_`"]{0,3}""")
_SIGNS = "\"'(*_`["
_UNFINISHED = re.compile("(?:\x1b|[\x90\x98\x9b\x9d\x9e\x9f])[^\x07\x1b\x9c]{0,4096}\\Z")
_FINISHED = re.compile("(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|\x1b[()*+][0-9A-Za-z]|\x1b[=>78cDEHM]")


class LiveText:
    """One stream of text. `feed` and `pause` return the text that can be shown, `close` the rest."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._raw = ""
        """Text that cannot be sanitized yet because it may be the start of a terminal sequence."""
        self._window = ""
        self._shown = 0
        """Number of characters of the window that were shown and are kept as context."""
        self._dropping: re.Pattern[str] | None = None

    @property
    def is_holding(self) -> bool:
        return len(self._window) > self._shown

    def feed(self, chunk: str) -> str:
        self._raw += chunk
        cut = get_whole(self._raw)
        clean, self._raw = sanitize(self._raw[:cut]), self._raw[cut:]
        return self._take(clean)

    def pause(self) -> str:
        """Return an incomplete word of prose. Called when no text has arrived for a moment."""
        held = self._window[self._shown :]
        word = self._window[_get_word(self._window) :]
        if not _is_prose(word) or len(held) > len(word) or self._redactor.may_begin_value(self._window):
            return ""
        spans = self._redactor.spans(self._window)
        if self._get_open(spans, word=False) < len(self._window):
            return ""
        return self._emit(len(self._window), spans)

    def close(self) -> str:
        clean, self._raw = sanitize(self._raw), ""
        self._window += clean
        self._drop()
        if self._dropping is not None:
            self._window, self._shown, self._dropping = "", 0, None
        given = self._emit(len(self._window), self._redactor.spans(self._window))
        self._window, self._shown = "", 0
        return given

    def _take(self, clean: str) -> str:
        self._window += clean
        self._drop()
        if self._dropping is not None or not self.is_holding:
            return ""
        spans = self._redactor.spans(self._window)
        cut = self._get_open(spans)
        if len(self._window) - self._shown <= LIMIT or cut > self._shown:
            return self._emit(cut, spans)
        return self._force(spans)

    def _get_open(self, spans: list[Span], *, word: bool = True) -> int:
        """Return the start of the text that later text may still change; never before the shown part."""
        window = self._window
        found = [self._redactor.get_open(window), _get_address(window)]
        if word:
            found.append(_get_word(window))
        found += [match.start() for match in self._list_recent_words()]
        cut = max(min(*found, self._get_key()), self._shown)
        for span in reversed(spans):
            # A secret at the end of the text may continue in the next chunk.
            if span.start < cut < span.end or span.end == len(window):
                cut = min(cut, max(span.start, self._shown))
        return cut

    def _list_recent_words(self) -> list[re.Match[str]]:
        """List long words with a digit that are too close to the end to be classified."""
        window = self._window
        line = window.rfind("\n") + 1
        return [
            match
            for match in _LONG_WORD.finditer(window, max(line, self._shown - 600))
            if match.end() > len(window) - _REACH and any(character.isdigit() for character in match[0])
        ]

    def _get_key(self) -> int:
        """Return the start of an unfinished private key, or the end of the text."""
        begin = self._window.rfind("-----BEGIN ")
        header = PEM_BEGIN.match(self._window, begin) if begin >= 0 else None
        return header.end() if header and is_open_key(self._window, begin) else len(self._window)

    def _force(self, spans: list[Span]) -> str:
        last = spans[-1] if spans else None
        if last is not None and last.end == len(self._window):
            text = self._emit(max(last.start, self._shown), spans) + MARK
            self._dropping = PEM_BODY if last.kind == "private-key" else _WORD_REST
            self._window, self._shown = "", 0
            return text
        cut = len(self._window) - LIMIT // 4
        for span in reversed(spans):
            if span.start < cut < span.end:
                cut = span.start
        return self._emit(max(cut, self._shown), spans)

    def _drop(self) -> None:
        if self._dropping is None:
            return
        match = self._dropping.match(self._window)
        end = match.end() if match else 0
        if end < len(self._window):
            self._dropping = None
        self._window = self._window[end:]

    def _emit(self, cut: int, spans: list[Span]) -> str:
        parts: list[str] = []
        at = self._shown
        for span in spans:
            if span.end <= at:
                continue
            if span.end > cut:
                break
            parts += (self._window[at : max(span.start, at)], MARK)
            at = span.end
        parts.append(self._window[at:cut])
        # From a blank on: the rest of a word that was cut could look like a secret.
        keep = self._window.find(" ", max(0, cut - CONTEXT)) if cut > CONTEXT else 0
        begin = keep if 0 <= keep < cut else max(0, cut - CONTEXT)
        self._window, self._shown = self._window[begin:], cut - begin
        return "".join(parts)


def _get_word(text: str) -> int:
    """Return the start of the word at the end of the text, or the end if the text ends in a space or non-ASCII."""
    return len(text.rstrip(_PRINTABLE))


def _get_address(text: str) -> int:
    """Return the start of a URL at the end of the text. It may contain non-ASCII letters."""
    start = max(text.rfind(blank) for blank in " \n\t") + 1
    return start if "://" in text[start:] else len(text)


def get_whole(text: str) -> int:
    """Return the length of the prefix that can be sanitized before the rest is known."""
    end = _get_sequence(text)
    # No sequence and no emoji continues across a line feed.
    if end and text[end - 1] == "\n":
        return end
    if end and text[end - 1].isascii() and text[end - 1].isprintable() and text[end - 1] not in "0123456789#*":
        return end
    # Split between two ordinary characters, because joiners in emoji and letters depend on the character before them.
    at = end - 1
    while at > 0 and (SUSPECT.match(text[at]) or SUSPECT.match(text[at - 1])):
        at -= 1
    return _get_sequence(text[: max(at, 0)])


def _get_sequence(text: str) -> int:
    """Return the start of an incomplete terminal sequence, or the end of the text."""
    for match in _UNFINISHED.finditer(text):
        if not _FINISHED.match(match[0]):
            return match.start()
    return len(text)


def _is_prose(word: str) -> bool:
    if not _PROSE.fullmatch(word):
        return False
    bare = word.lstrip(_SIGNS)
    return not any(literal.startswith(bare) or bare.startswith(literal) for literal in list_literals())
