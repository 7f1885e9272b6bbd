"""Paths of addresses for servers that decode them once more than their reader did. Pure.

`/docs/..%2fadmin` lies below `/docs` as it is written, and is `/admin` to servers that decode before they look. An
allow therefore does not reach such an address, and a deny is tried on both readings.
"""

import posixpath
import re
import unicodedata
from urllib.parse import unquote

_ROUNDS = 8
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)([^?#]*)(.*)", re.DOTALL)
_OVERLONG = re.compile(r"%c0%(ae|af|2e|2f)|%e0%80%(ae|af)|%u00(2e|2f)", re.IGNORECASE)
"""Spellings of `.` and `/` that are not valid UTF-8, or not an escape of addresses, and that some servers accept."""
_PARAMETERS = re.compile(r";[^/]*")


def decode_url(text: str) -> str | None:
    """The address with its path decoded until nothing is left to decode, climbs resolved. None: it says the same."""
    found = _URL.fullmatch(text)
    host, path, rest = found.groups() if found else ("", text, "")
    decoded = _decode(path)
    if decoded == path:
        return None
    plain = "/" + posixpath.normpath(decoded).lstrip("/")
    return f"{host}{plain}/{rest}" if decoded.endswith("/") and plain != "/" else f"{host}{plain}{rest}"


def climbs(text: str) -> bool:
    """Decoded, the path has a `..`, or cannot be decoded to an end."""
    found = _URL.fullmatch(text)
    path = found[2] if found else text
    if "%" not in path and ";" not in path and path.isascii():
        return False
    decoded = _decode(path)
    return ".." in decoded.split("/") or "%25" in decoded


def _decode(path: str) -> str:
    for _ in range(_ROUNDS):
        step = unquote(_OVERLONG.sub(_spell_plainly, path), errors="replace")
        if step == path:
            break
        path = step
    letters = unicodedata.normalize("NFKC", path)
    plain = "".join(letter for letter in letters if unicodedata.category(letter) not in ("Cc", "Cf"))
    return _PARAMETERS.sub("", plain.replace("\\", "/"))


def _spell_plainly(match: re.Match[str]) -> str:
    return "." if match[0].lower().endswith("e") else "/"
