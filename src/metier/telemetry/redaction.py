"""Takes secrets out of text: known values in every encoding, vendor key formats, values behind secret names.

What is found is replaced by `***REDACTED***`; names in front of values stay. Text without a secret comes back as the
same object. Nothing here remembers or shows a value.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from pydantic import JsonValue

from metier.telemetry.exact import MIN_LENGTH, build_needles
from metier.telemetry.names import NameRules, is_secret_name
from metier.telemetry.patterns import INSIDE_WORD, KeyFormat, build_key_formats
from metier.telemetry.values import MARK, is_code_or_placeholder, is_ordinary_word


class Finding(NamedTuple):
    """Where a secret is and how it was recognised; never the secret."""

    kind: str
    start: int
    end: int


class Span(NamedTuple):
    """A finding with the place where what gives it away begins."""

    start: int
    end: int
    context: int
    kind: str


_LONG = 12
_RUN = b"a" * _LONG
_WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~"
_SHAPE = bytes(0x61 if byte in _WORD_BYTES else 0x20 for byte in range(256))
_WORDS = bytes(byte if byte in _WORD_BYTES else 0x20 for byte in range(256))
_SEGMENT = re.compile(rb"(?<![A-Za-z0-9])[A-Za-z0-9][A-Za-z0-9_.-]{2}")
_PLAIN = re.compile(rb"[A-Za-z0-9_.~-]+")
_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_BODY = re.compile(r"[A-Za-z0-9+/=:,. \t\r\n\\-]*")
_WORD_REST = re.compile(r"""[^\s"'`<>]*""")
_MIN_PEM = 16
_MIN_SECRET_NUMBER = 6


def build_redactor(*, values: Iterable[str] = (), names: Iterable[str] = (), generic_names: bool = True) -> "Redactor":
    """A redactor for these exact values and configured names. Without `generic_names`, `password=…` stays."""
    return Redactor(needles=build_needles(values), names=NameRules(names=tuple(names), generic=generic_names))


def find_secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables whose names say that they are secret: `*_API_KEY`, `*_TOKEN`, `*_PASSWORD`, ….

    A value that is a path is the place of a secret, not a secret.
    """
    return tuple(
        value for name, value in environment.items() if is_secret_name(name) and not value.startswith(("/", "~/", "./"))
    )


class Redactor:
    """Immutable once built; may be shared between tasks and threads."""

    def __init__(self, *, needles: tuple[str, ...], names: NameRules) -> None:
        self._needles = needles
        self._names = names
        self._formats = build_key_formats()
        self._cores = tuple(core.encode() for core in names.cores)
        self._hints = tuple({_hint(needle) for needle in needles})

        self.longest_value = len(needles[0]) if needles else 0
        """Characters of the longest exact form; a stream holds back at least as many."""
        self.longest_lines = max((len(needle) for needle in needles if "\n" in needle), default=0)
        """The same for forms of more than one line."""

    def may_hold_secret(self, text: bytes) -> bool:
        """A quick look at UTF-8 or JSON text. False is certain; True asks for `redact` on each string."""
        return self._may_hold_known(text) or self._may_hold_named(text) or bool(self._find_formats(text))

    def redact(self, text: str) -> str:
        """The text without its secrets; the same object if it had none."""
        spans = self.spans(text)
        return _replace(text, spans) if spans else text

    def find(self, text: str) -> tuple[Finding, ...]:
        """What `redact` would take out, in order, without overlaps."""
        return tuple(Finding(span.kind, span.start, span.end) for span in self.spans(text))

    def redact_value(self, value: JsonValue) -> JsonValue:
        """A JSON value without its secrets, at any depth; a secret key name makes its strings secret."""
        match value:
            case str():
                return self.redact(value)
            case list():
                return [self.redact_value(item) for item in value]
            case dict():
                return {self.redact(key): self._redact_entry(key, item) for key, item in value.items()}
            case _:
                return value

    def stream(self) -> "RedactionStream":
        """For text that comes in chunks: a secret across their ends is still found."""
        return RedactionStream(self)

    def spans(self, text: str) -> list[Span]:
        """Where secrets are, in order, without overlaps."""
        if len(text) < MIN_LENGTH:
            return []
        encoded = text.encode("utf-8", "surrogatepass")
        found: list[Span] = []
        if self._may_hold_known(encoded):
            found += self._find_known(text)
        if self._may_hold_named(encoded):
            found += [Span(named.start, named.end, named.context, named.kind) for named in self._names.find(text)]
        for key_format in self._find_formats(encoded):
            found += _find_keys(key_format, text)
        if b"PRIVATE KEY" in encoded:
            found += _find_private_keys(text)
        return _merge(found) if found else found

    def _redact_entry(self, key: str, value: JsonValue) -> JsonValue:
        return self._hide(value) if self._names.covers(key) else self.redact_value(value)

    def _hide(self, value: JsonValue) -> JsonValue:
        match value:
            case str():
                harmless = not value.strip() or is_ordinary_word(value) or is_code_or_placeholder(value, quoted=True)
                return self.redact(value) if harmless else MARK
            case bool():
                return value
            case int():
                return MARK if len(str(abs(value))) >= _MIN_SECRET_NUMBER else value
            case list():
                return [self._hide(item) for item in value]
            case _:
                return self.redact_value(value)

    def _may_hold_known(self, text: bytes) -> bool:
        for hint in self._hints:  # noqa: SIM110 - twice as fast as any(), and run on every event
            if hint in text:
                return True
        return False

    def _may_hold_named(self, text: bytes) -> bool:
        lowered = text.lower()
        for core in self._cores:  # noqa: SIM110 - as above
            if core in lowered:
                return True
        return False

    def _find_formats(self, text: bytes) -> list[KeyFormat]:
        """The formats that the text may contain. Few texts have a word that is long and starts like a key."""
        formats = [key_format for word, key_format in self._formats.in_address if word in text]
        if _RUN not in text.translate(_SHAPE):
            return formats
        # In JSON the `n` of an escaped line feed would look like the first letter of the next word.
        text = text.replace(b"\\n", b"  ").replace(b"\\r", b"  ").replace(b"\\t", b"  ")
        words = b" ".join([word for word in text.translate(_WORDS).split() if len(word) >= _LONG])
        openings = self._formats.by_opening.keys() & set(_SEGMENT.findall(words))
        formats += dict.fromkeys(
            key_format
            for opening in openings
            for key_format in self._formats.by_opening[opening]
            if any(literal.encode() in text for literal in key_format.literals)
        )
        return [*formats, *self._formats.inside] if INSIDE_WORD.search(words) else formats

    def _find_known(self, text: str) -> Iterator[Span]:
        for needle in self._needles:
            at = text.find(needle)
            while at >= 0:
                yield Span(at, at + len(needle), at, "value")
                at = text.find(needle, at + len(needle))


class RedactionStream:
    """Redacts text that comes in chunks. What it gives back is what `redact` makes of the whole text.

    It holds back the last line, an unfinished private key, and as much as the longest value of several lines. Of a
    line or key without end it holds back `LIMIT` characters; what follows an unfinished secret there is dropped
    until the next blank or quote.
    """

    LIMIT = 65_536

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._limit = max(self.LIMIT, 4 * redactor.longest_value)
        self._held = ""
        self._dropping: re.Pattern[str] | None = None
        self._waits_for_key = False
        """What is held begins with a private key whose end has not come."""
        self._shown = 0
        self._found: list[Finding] = []

    def take_found(self) -> tuple[Finding, ...]:
        """What was found since the last call, placed in the text that was given back so far."""
        found, self._found = tuple(self._found), []
        return found

    def feed(self, chunk: str) -> str:
        """What can be shown by now."""
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
        """The rest. The stream is empty afterwards."""
        self._drop()
        if self._dropping:
            self._held, self._dropping = "", None
        return self._emit(len(self._held), self._redactor.spans(self._held))

    def _is_waiting(self, chunk: str) -> bool:
        """True where the chunk completes nothing: no line, and not the private key that is held."""
        if "\n" not in chunk:
            return True
        known = len(self._held) - len(chunk) - len("-----END")
        return (
            self._waits_for_key
            and known > 0
            and _PEM_BODY.fullmatch(chunk) is not None
            and "-----END" not in self._held[known:]
        )

    def _safe_cut(self) -> int:
        """The end of the last line that nothing later can change."""
        reach = self._redactor.longest_lines
        cut = self._held.rfind("\n", 0, max(0, len(self._held) - reach) if reach else None) + 1
        begin = self._held.rfind("-----BEGIN ", 0, cut)
        if begin >= 0 and _PEM_BEGIN.match(self._held, begin) and _is_open_key(self._held, begin):
            self._waits_for_key = True
            return begin
        return cut

    def _force(self, spans: list[Span]) -> str:
        """A line without end: cut where no word is split, or drop the rest of a secret that goes on."""
        overlap = self._limit // 4
        last = spans[-1] if spans else None
        if last and last.end == len(self._held) and last.start < len(self._held) - overlap:
            text = self._emit(last.start, spans) + self._mark(last.kind)
            self._dropping = _PEM_BODY if last.kind == "private-key" else _WORD_REST
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
        closing = self._held.find("-----END") if self._dropping is _PEM_BODY else -1
        if closing >= 0 or end < len(self._held):
            self._held, self._dropping = self._held[min(closing, end) if closing >= 0 else end :], None
        elif self._dropping is _PEM_BODY:
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
    """Moved back so that no finding, with what gives it away, is on both sides."""
    for span in reversed(spans):
        if span.context < cut < span.end:
            cut = span.context
    return cut


def _is_open_key(text: str, begin: int) -> bool:
    """True where a private key begins and its end has not come yet."""
    header = text.index("-----", begin + 5) + 5
    body = _PEM_BODY.match(text, header)
    end = body.end() if body else header
    return end == len(text) and text.find("-----END", header) < 0


def _find_keys(key_format: KeyFormat, text: str) -> Iterator[Span]:
    for match in _matches(key_format, text):
        group = "v" if match.re.groups else 0
        start, end = match.span(group)
        if not is_code_or_placeholder(match[group], quoted=True):
            yield Span(start, end, match.start(), key_format.kind)


def _matches(key_format: KeyFormat, text: str) -> Iterator[re.Match[str]]:
    if not key_format.anchored:
        if any(literal in text for literal in key_format.literals):
            yield from key_format.regex.finditer(text)
        return
    for literal in key_format.literals:
        at = text.find(literal)
        regex = key_format.regex if at >= 0 else None
        while regex and at >= 0:
            match = regex.match(text, at)
            if match:
                yield match
            at = text.find(literal, match.end() if match else at + 1)


def _find_private_keys(text: str) -> Iterator[Span]:
    at = 0
    while begin := _PEM_BEGIN.search(text, at):
        body = _PEM_BODY.match(text, begin.end())
        end = body.end() if body else begin.end()
        closing = text.find("-----END", begin.end(), end + len("-----END"))
        at = closing if closing >= 0 else end
        if len(text[begin.end() : at].strip()) >= _MIN_PEM:
            yield Span(begin.end(), at, begin.start(), "private-key")
        at = max(at, begin.end())


def _merge(spans: list[Span]) -> list[Span]:
    """In order, overlapping and touching ones joined; the kind of the earliest stays."""
    merged: list[Span] = []
    for span in sorted(span for span in spans if span.end > span.start):
        last = merged[-1] if merged else None
        if last is None or span.start > last.end:
            merged.append(span)
        elif span.end > last.end:
            merged[-1] = Span(last.start, span.end, min(last.context, span.context), last.kind)
    return merged


def _hint(needle: str) -> bytes:
    """The longest part of a needle that stays as it is in UTF-8 and in JSON."""
    return max(_PLAIN.findall(needle.encode("utf-8", "surrogatepass")), key=len, default=b"")
