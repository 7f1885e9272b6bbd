"""Redaction of secrets: known values in common encodings, vendor key formats, values of secret names, random words.

Secrets are replaced by `***REDACTED***`; names in front of values stay. Text without a secret is returned as the same
object. Nothing here stores or shows a value.
"""

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from metier.telemetry.entropy import list_random_words
from metier.telemetry.formats import LONG_WORD, PEM_BEGIN, PEM_BODY, FormatFinder, Span, get_long_words
from metier.telemetry.secret_names import (
    MARK,
    NameRules,
    is_code_or_placeholder,
    is_ordinary_word,
    list_name_places,
    lower_ascii,
    word_set,
)

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None


class Finding(NamedTuple):
    """The position and the kind of a secret, never the secret itself."""

    kind: str
    start: int
    end: int


_PLAIN = re.compile(rb"[A-Za-z0-9_.~-]+")
_WORD_REST = re.compile(r"""[^\s"'`<>]*""")
_MIN_SECRET_DIGITS = 6

MIN_LENGTH = 6
"""Minimum length of a value: shorter ones occur in ordinary text, so redacting them would do more harm than good."""

_TRIVIAL = word_set(
    """
    true false null none undefined default localhost password passwd secret token apikey api_key changeme example
    test testing admin administrator root user username guest development production staging debug enabled disabled
    string number redacted ***redacted*** anonymous nobody postgres 127.0.0.1 0.0.0.0 unknown optional required
    """
)
ESCAPES = ("\\u", "\\x", "&#")
"""Prefixes of numeric character escapes."""
_HEX_NUMBER = re.compile(r"(?<=[ux])[0-9a-f]+")
_MIN_LINE = 20
_MIN_ENCODED = 8


def is_trivial(value: str) -> bool:
    """Return True for a value that is too short or too ordinary to search for."""
    return len(value) < MIN_LENGTH or value.lower() in _TRIVIAL or len(set(value)) < 3


def build_needles(values: Iterable[str]) -> tuple[str, ...]:
    """Return the texts to search for: each value, plain and in the encodings of `_forms`, longest first."""
    needles: set[str] = set()
    for value in values:
        text = value.strip()
        if is_trivial(text):
            continue
        needles.update(_forms(text))
        # Programs often print values with several lines, such as private keys, line by line.
        needles.update(line.strip() for line in text.splitlines() if len(line.strip()) >= _MIN_LINE)
    return tuple(sorted(needles, key=lambda needle: (-len(needle), needle)))


def _forms(text: str) -> set[str]:
    escaped = json.dumps(text)[1:-1]
    raw = text.encode("utf-8", "surrogatepass")
    forms = {text, repr(text)[1:-1], html.escape(text), html.escape(text, quote=False), raw.hex(), raw.hex().upper()}
    forms |= {
        escaped,
        json.dumps(text, ensure_ascii=False)[1:-1],
        escaped.replace("/", "\\/"),
        json.dumps(escaped)[1:-1],  # JSON within JSON, such as recorded arguments
    }
    for encoded in (quote(raw, safe=""), quote(raw, safe="/"), quote_plus(raw), quote(quote(raw, safe=""), safe="")):
        forms |= {encoded, re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)}
    encoded = {*_base64_forms(raw), *_base32_forms(raw)}
    forms |= {form for form in encoded if len(form) >= _MIN_ENCODED}
    return forms | _character_forms(text, raw)


def _character_forms(text: str, raw: bytes) -> set[str]:
    """Write a value with the numeric escapes of source code and HTML."""
    # Base85 and hex dumps with spaces are not covered: each form costs one more search per value in every text.
    wide = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(wide[at : at + 2]) for at in range(0, len(wide), 2)]
    forms = {
        "".join(f"\\u{unit:04x}" for unit in units),
        "".join(f"\\x{byte:02x}" for byte in raw),
        "".join(f"&#x{ord(letter):x};" for letter in text),
    }
    forms |= {_HEX_NUMBER.sub(lambda match: match[0].upper(), form) for form in forms}
    return forms | {"".join(f"&#{ord(letter)};" for letter in text)}


def _base32_forms(raw: bytes) -> set[str]:
    """List the base32 characters that depend on the value alone, for its five possible positions in a group."""
    forms: set[str] = set()
    for shift in range(5):
        bits = 8 * (shift + len(raw))
        forms.add(base64.b32encode(b"\0" * shift + raw).decode()[(8 * shift + 4) // 5 : bits // 5])
    return forms


def _base64_forms(raw: bytes) -> set[str]:
    """List the base64 characters that depend on the value alone, for its three possible positions in a group."""
    forms: set[str] = set()
    for shift in range(3):
        bits = 8 * (shift + len(raw))
        encoded = base64.b64encode(b"\0" * shift + raw).decode()[(8 * shift + 5) // 6 : bits // 6]
        forms |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return forms


def build_redactor(
    *, values: Iterable[str] = (), names: Iterable[str] = (), generic_names: bool = True, random_words: bool = True
) -> "Redactor":
    """Build a redactor for these exact values and configured names.

    If `generic_names` is False, `password=…` is not redacted; if `random_words` is False, neither are random words
    without a known format.
    """
    rules = NameRules(names=tuple(names), generic=generic_names)
    return Redactor(needles=build_needles(values), names=rules, random_words=random_words)


class Redactor:
    """Removes secrets from text and JSON values. Immutable, so it can be shared between tasks and threads."""

    def __init__(self, *, needles: tuple[str, ...], names: NameRules, random_words: bool = True) -> None:
        self._needles = needles
        self._random_words = random_words
        self._names = names
        self._formats = FormatFinder()
        hints = {_hint(needle) for needle in needles}
        self._long_hints = tuple(hint for hint in hints if len(hint) >= LONG_WORD)
        self._short_hints = tuple(hint.decode() for hint in hints if len(hint) < LONG_WORD)

        self._spread = tuple(needle for needle in needles if not needle.isascii() or needle.split() != [needle])
        """Values that are not a single word."""
        self.longest_value = len(needles[0]) if needles else 0
        """Length of the longest form; a stream holds back at least as much."""
        self.longest_lines = max((len(needle) for needle in needles if "\n" in needle), default=0)
        """Length of the longest form with several lines."""

    def redact(self, text: str) -> str:
        """Redact a text. Return the same object if it has no secrets."""
        spans = self.spans(text)
        return _replace(text, spans) if spans else text

    def redact_known(self, text: str) -> str:
        """Redact only the known values."""
        spans = _merge(list(self._find_known(text)))
        return _replace(text, spans) if spans else text

    def find(self, text: str) -> tuple[Finding, ...]:
        """Return the secrets that `redact` would replace, in order, without overlaps."""
        return tuple(Finding(span.kind, span.start, span.end) for span in self.spans(text))

    def redact_value(self, value: Json) -> Json:
        """Redact a JSON value at any depth. All strings under a secret key count as secrets."""
        match value:
            case str():
                return self.redact(value)
            case list():
                return [self.redact_value(item) for item in value]
            case dict():
                return {
                    self.redact(key): self.hide(item) if self.covers(key) else self.redact_value(item)
                    for key, item in value.items()
                }
            case _:
                return value

    def stream(self) -> "RedactionStream":
        """Open a stream for text in chunks, which finds secrets across chunk boundaries."""
        return RedactionStream(self)

    def spans(self, text: str) -> list[Span]:
        """Return the positions of secrets, in order, without overlaps."""
        if len(text) < MIN_LENGTH:
            return []
        words = get_long_words(text.encode("utf-8", "surrogatepass"))
        lowered = lower_ascii(text)
        found = [*self._formats.find(text, words=words)]
        if words and self._random_words:
            found += list_random_words(text, lowered, words)
        if self._needles and self._may_hold_known(text, words):
            found += self._find_known(text)
        named = self._names.find(text, lowered, list_name_places(lowered))
        found += [Span(secret.start, secret.end, secret.context, secret.kind) for secret in named]
        return _merge(found) if found else found

    def covers(self, name: str) -> bool:
        """Return True if values of this name are secrets."""
        return self._names.covers(name)

    def get_open(self, text: str) -> int:
        """Return the start of the first value that more text could turn into a secret, or the end of the text."""
        lowered = lower_ascii(text)
        named = self._names.get_open(text, lowered, list_name_places(lowered))
        return min(named, _get_partial(text, self._spread))

    def may_begin_value(self, text: str) -> bool:
        """Return True if the text ends with the start of a known value."""
        return _get_partial(text, self._needles) < len(text)

    def hide(self, value: Json) -> Json:
        """Redact the value of a secret name, unless it is a word such as `none`."""
        match value:
            case str():
                harmless = not value.strip() or is_ordinary_word(value) or is_code_or_placeholder(value, quoted=True)
                return self.redact(value) if harmless else MARK
            case bool():
                return value
            case int():
                return MARK if len(str(abs(value))) >= _MIN_SECRET_DIGITS else value
            case list():
                return [self.hide(item) for item in value]
            case _:
                return self.redact_value(value)

    def _may_hold_known(self, text: str, words: bytes) -> bool:
        # A cheap test for the longest plain part of each form; only long words can contain a long one.
        for hint in self._short_hints:
            if hint in text:
                return True
        if words:
            for hint in self._long_hints:
                if hint in words:
                    return True
        return False

    def _find_known(self, text: str) -> Iterator[Span]:
        for needle in self._needles:
            at = text.find(needle)
            while at >= 0:
                yield Span(at, at + len(needle), at, "value")
                at = text.find(needle, at + len(needle))


class RedactionStream:
    """Redacts text in chunks. The result equals `redact` of the whole text.

    It holds back the last line, an unfinished private key, and as much text as the longest multi-line value has, up to
    `LIMIT` characters. Beyond that, the rest of an unfinished secret is dropped up to the next space or quote.
    """

    LIMIT = 65_536

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        # `_force` holds back a quarter of it, into which the longest value must fit.
        self._limit = max(self.LIMIT, 4 * redactor.longest_value)
        self._held = ""
        self._dropping: re.Pattern[str] | None = None
        self._waits_for_key = False
        """True if the held text starts with an unfinished private key."""
        self._shown = 0
        self._found: list[Finding] = []

    def take_found(self) -> tuple[Finding, ...]:
        """Return the findings since the last call, with positions in the text returned so far."""
        found, self._found = tuple(self._found), []
        return found

    def feed(self, chunk: str) -> str:
        """Add a chunk and return the text that can be shown."""
        self._held += chunk
        self._drop()
        if self._dropping or (len(self._held) <= self._limit and self._is_waiting(chunk)):
            return ""
        self._waits_for_key = False
        spans = self._redactor.spans(self._held)
        cut = _settle(self._safe_cut(), spans)
        if cut == 0 and len(self._held) > self._limit:
            return self._force(spans)
        return self._emit(cut, spans)

    def close(self) -> str:
        """Return the rest and empty the stream."""
        self._drop()
        if self._dropping:
            self._held, self._dropping = "", None
        return self._emit(len(self._held), self._redactor.spans(self._held))

    def _is_waiting(self, chunk: str) -> bool:
        """Return True if the chunk completes neither a line nor the held private key."""
        if "\n" not in chunk:
            return True
        # The end marker may be split between this chunk and the text before it.
        known = len(self._held) - len(chunk) - len("-----END")
        return (
            self._waits_for_key
            and known > 0
            and PEM_BODY.fullmatch(chunk) is not None
            and "-----END" not in self._held[known:]
        )

    def _safe_cut(self) -> int:
        """Return the end of the last line whose redaction no longer depends on later text."""
        reach = self._redactor.longest_lines
        cut = self._held.rfind("\n", 0, max(0, len(self._held) - reach) if reach else None) + 1
        begin = self._held.rfind("-----BEGIN ", 0, cut)
        if begin >= 0 and PEM_BEGIN.match(self._held, begin) and is_open_key(self._held, begin):
            self._waits_for_key = True
            return begin
        return cut

    def _force(self, spans: list[Span]) -> str:
        """Split a line that exceeds the limit between words, or drop the rest of a secret that continues."""
        overlap = self._limit // 4
        last = spans[-1] if spans else None
        if last and last.end == len(self._held) and last.start < len(self._held) - overlap:
            text = self._emit(last.start, spans) + self._mark(last.kind)
            self._dropping = PEM_BODY if last.kind == "private-key" else _WORD_REST
            self._held = self._held[-len("-----END") :] if last.kind == "private-key" else ""
            return text
        target = len(self._held) - overlap
        blank = self._held.rfind(" ", target - overlap, target) + 1
        return self._emit(_settle(blank or target, spans) or target, spans)

    def _emit(self, cut: int, spans: list[Span]) -> str:
        parts: list[str] = []
        at = 0
        for span in spans:
            if span.end > cut:
                break
            self._shown += span.start - at
            parts += (self._held[at : span.start], self._mark(span.kind))
            at = span.end
        parts.append(self._held[at:cut])
        self._shown += cut - at
        self._held = self._held[cut:]
        return "".join(parts)

    def _mark(self, kind: str) -> str:
        self._found.append(Finding(kind, self._shown, self._shown + len(MARK)))
        self._shown += len(MARK)
        return MARK

    def _drop(self) -> None:
        if self._dropping is None or not self._held:
            return
        match = self._dropping.match(self._held)
        end = match.end() if match else 0
        closing = self._held.find("-----END") if self._dropping is PEM_BODY else -1
        if closing >= 0 or end < len(self._held):
            self._held, self._dropping = self._held[min(closing, end) if closing >= 0 else end :], None
        elif self._dropping is PEM_BODY:
            # The start of the end marker may be the last text that arrived.
            self._held = self._held[-len("-----END") :]
        else:
            self._held = ""


def _replace(text: str, spans: list[Span]) -> str:
    parts: list[str] = []
    at = 0
    for span in spans:
        parts += (text[at : span.start], MARK)
        at = span.end
    return "".join((*parts, text[at:]))


def _settle(cut: int, spans: list[Span]) -> int:
    """Move a split position back so that it doesn't separate a secret from its context."""
    for span in reversed(spans):
        if span.context < cut < span.end:
            cut = span.context
    return cut


def is_open_key(text: str, begin: int) -> bool:
    """Return True if the private key that starts here is incomplete."""
    header = text.index("-----", begin + 5) + 5
    body = PEM_BODY.match(text, header)
    end = body.end() if body else header
    return end == len(text) and text.find("-----END", header) < 0


def _get_partial(text: str, needles: tuple[str, ...]) -> int:
    """Return the position of an incomplete needle at the end of the text, or the end of the text."""
    found = len(text)
    for needle in needles:
        at = text.find(needle[0], max(0, len(text) - len(needle) + 1), found)
        while at >= 0:
            if needle.startswith(text[at:]):
                found = at
                break
            at = text.find(needle[0], at + 1, found)
    return found


def _merge(spans: list[Span]) -> list[Span]:
    """Sort and join overlapping and adjacent spans, keeping the kind of the first."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.start):
        last = merged[-1] if merged else None
        if last is None or span.start > last.end:
            merged.append(span)
        elif span.end > last.end:
            merged[-1] = Span(last.start, span.end, min(last.context, span.context), last.kind)
    return merged


def _hint(needle: str) -> bytes:
    """Return the longest part of a needle that is the same in UTF-8 and in JSON, or the prefix of its escapes."""
    if needle.startswith(ESCAPES):
        return needle[:2].encode()
    return max(_PLAIN.findall(needle.encode("utf-8", "surrogatepass")), key=len, default=b"")
