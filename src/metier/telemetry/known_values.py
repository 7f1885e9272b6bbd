"""Known secret values in all common encodings. Pure."""

import base64
import html
import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

from metier.telemetry.values import word_set

MIN_LENGTH = 6
"""Minimum length: shorter values occur in ordinary text, and redacting them would destroy more than it protects."""

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
        json.dumps(escaped)[1:-1],
    }
    for encoded in (quote(raw, safe=""), quote(raw, safe="/"), quote_plus(raw), quote(quote(raw, safe=""), safe="")):
        forms |= {encoded, re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)}
    encoded = {*_base64_forms(raw), *_base32_forms(raw)}
    forms |= {form for form in encoded if len(form) >= _MIN_ENCODED}
    return forms | _character_forms(text, raw)


def _character_forms(text: str, raw: bytes) -> set[str]:
    """Numeric escapes of source code and HTML."""
    # Base85 and hex dumps with spaces are not covered: each form costs one more search per value in every text.
    units = [int.from_bytes(pair) for pair in _pairs(text.encode("utf-16-be", "surrogatepass"))]
    forms = {
        "".join(f"\\u{unit:04x}" for unit in units),
        "".join(f"\\x{byte:02x}" for byte in raw),
        "".join(f"&#x{ord(letter):x};" for letter in text),
    }
    forms |= {_HEX_NUMBER.sub(lambda match: match[0].upper(), form) for form in forms}
    return forms | {"".join(f"&#{ord(letter)};" for letter in text)}


def _pairs(data: bytes) -> list[bytes]:
    return [data[at : at + 2] for at in range(0, len(data), 2)]


def _base32_forms(raw: bytes) -> set[str]:
    """Like `_base64_forms`, for the five positions in a group."""
    forms: set[str] = set()
    for shift in range(5):
        bits = 8 * (shift + len(raw))
        forms.add(base64.b32encode(b"\0" * shift + raw).decode()[(8 * shift + 4) // 5 : bits // 5])
    return forms


def _base64_forms(raw: bytes) -> set[str]:
    """The characters that depend on the value alone, for each of its three possible positions in a group."""
    forms: set[str] = set()
    for shift in range(3):
        bits = 8 * (shift + len(raw))
        encoded = base64.b64encode(b"\0" * shift + raw).decode()[(8 * shift + 5) // 6 : bits // 6]
        forms |= {encoded, encoded.replace("+", "-").replace("/", "_")}
    return forms
