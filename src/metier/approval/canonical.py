"""The canonical form of arguments, which rules match: paths resolved, URLs parsed. Pure text, no disk.

Links aren't followed here. The tool that opens a path checks where it leads.
"""

import posixpath
import re
import unicodedata
from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import JsonValue

from metier.tools.web.url import find_address

type Kind = Literal["path", "url", "text"]

UNPARSED = "unparsed:"
"""Prefix of a URL with a user name, a blank, a backslash or no valid host: no rule about real URLs matches it."""
MAX_DEPTH = 50
"""Deeper values are not converted, so that a hostile call can't exhaust the stack."""

_PATHS = frozenset(
    {"path", "paths", "file", "files", "filename", "filepath", "cwd", "dir", "directory", "folder", "root"}
)
_PATH_ENDINGS = ("_path", "_paths", "_file", "_files", "_dir", "_directory", "_folder")
_URLS = frozenset({"url", "urls", "uri", "href", "endpoint"})
_URL_ENDINGS = ("_url", "_urls", "_uri")
_LOOKS_LIKE_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_FORBIDDEN_IN_URL = re.compile(r"[\x00-\x20\x7f\\]")
"""Characters that URL parsers treat differently: browsers read a backslash as a slash."""
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443, "ftp": 21}


def kind_of(key: str) -> Kind:
    """Return the kind of an argument's value, by the last word of its name."""
    name = key.rpartition(".")[2].lower()
    if name in _PATHS or name.endswith(_PATH_ENDINGS):
        return "path"
    return "url" if name in _URLS or name.endswith(_URL_ENDINGS) else "text"


def canonical_arguments(arguments: Mapping[str, JsonValue], root: str) -> dict[str, JsonValue]:
    """Return the arguments with absolute paths without `..`, and with canonical URLs."""
    return {key: _canonical(value, key=key, root=root, depth=0) for key, value in arguments.items()}


def canonical_text(text: str, *, key: str, root: str) -> str:
    """Return the canonical form of an argument's value, or of a rule's operand for it, by the argument's name."""
    kind = kind_of(key)
    if kind == "path" and not _LOOKS_LIKE_URL.fullmatch(text):
        return canonical_path(text, root)
    if kind == "url" or _LOOKS_LIKE_URL.fullmatch(text):
        return canonical_url(text)
    return text


def canonical_path(path: str, root: str) -> str:
    """Return an absolute path without `.`, `..` and double slashes. A relative path starts at `root`."""
    joined = posixpath.normpath(posixpath.join(root or "/", path))
    # POSIX allows two leading slashes to have a special meaning, so `normpath` keeps them.
    return "/" + joined.lstrip("/")


def relative_path(path: str, root: str) -> str:
    """Return a path below the root relative to it; any other path unchanged."""
    if path == root:
        return "."
    start = root.rstrip("/") + "/"
    return path.removeprefix(start)


def fold_path(path: str) -> str:
    """Fold case and Unicode forms, because some file systems take the variants for the same path."""
    return path.casefold() if path.isascii() else unicodedata.normalize("NFKC", path).casefold()


def canonical_url(url: str) -> str:
    """Return a URL with scheme and host in lower case and without default port, fragment or `..`.

    An ambiguous URL becomes `unparsed:` and its text.
    """
    parts = split_url(url)
    if parts is None:
        return UNPARSED + url
    return parts.geturl()


def split_url(url: str) -> SplitResult | None:
    """Return the canonical parts; None for a URL that could be read in two ways."""
    if _FORBIDDEN_IN_URL.search(url):
        return None
    try:
        parts = urlsplit(url)
        host, port = _canonical_host(parts.hostname or ""), parts.port
    except ValueError:
        return None
    # `https://good.example@evil.example/` connects to evil.example.
    if not parts.scheme or not host or "@" in parts.netloc:
        return None
    scheme = parts.scheme.lower()
    shown_port = "" if port is None or port == _DEFAULT_PORTS.get(scheme) else f":{port}"
    query = _ESCAPE.sub(_decode_harmless, parts.query)
    # Without the fragment, which clients never send.
    return SplitResult(scheme, host + shown_port, _canonical_url_path(parts.path), query, "")


def find_value(arguments: Mapping[str, JsonValue], key: str) -> JsonValue | None:
    """Return the argument under a dotted key, or None. Keys such as `url.host` name a part of a URL."""
    if key in arguments:
        return arguments[key]
    found: JsonValue = dict(arguments)
    for word in key.split("."):
        match found:
            case dict():
                if word not in found:
                    return None
                found = found[word]
            case list():
                if not word.isdecimal() or int(word) >= len(found):
                    return None
                found = found[int(word)]
            case str():
                return _find_url_part(found, word)
            case _:
                return None
    return found


def _find_url_part(url: str, word: str) -> JsonValue | None:
    # Any argument can be a URL, whatever its name, so rules may name the parts of each.
    parts = split_url(url) if _LOOKS_LIKE_URL.fullmatch(url) else None
    if parts is None:
        return None
    known: dict[str, JsonValue] = {
        "scheme": parts.scheme,
        "host": (parts.hostname or "").strip("[]"),
        "port": parts.port or _DEFAULT_PORTS.get(parts.scheme),
        "path": parts.path,
        "query": parts.query,
    }
    return known.get(word)


def _canonical(value: JsonValue, *, key: str, root: str, depth: int) -> JsonValue:
    if depth > MAX_DEPTH:
        return value
    match value:
        case str():
            return canonical_text(value, key=key, root=root)
        case list():
            return [_canonical(item, key=key, root=root, depth=depth + 1) for item in value]
        case dict():
            return {name: _canonical(item, key=name, root=root, depth=depth + 1) for name, item in value.items()}
        case _:
            return value


def _canonical_host(host: str) -> str:
    """Return the host as clients look it up. Raises `ValueError` for a host that is neither a name nor an address."""
    if ":" in host:
        # Without the zone of `fe80::1%eth0`, which names an interface of this machine.
        address = find_address(f"[{host.partition('%')[0]}]")
        return f"[{address}]" if isinstance(address, IPv6Address) else str(address)
    plain = host.rstrip(".").lower()
    if not plain.isascii():
        # Clients look up the IDNA form, so a rule with either spelling must match.
        plain = plain.encode("idna").decode("ascii")
    # Clients take `127.1` and `2130706433` for addresses, so rules must see the address too.
    return str(find_address(plain) or plain)


def _canonical_url_path(path: str) -> str:
    decoded = _ESCAPE.sub(_decode_harmless, path) or "/"
    plain = "/" + posixpath.normpath(decoded).lstrip("/")
    # `normpath` drops a final slash, but servers distinguish `/docs` and `/docs/`.
    ends_in_folder = decoded.endswith(("/", "/.", "/..")) and plain != "/"
    return plain + "/" if ends_in_folder else plain


def _decode_harmless(match: re.Match[str]) -> str:
    """Decode unreserved characters, which never changes the meaning of a URL (RFC 3986, section 6.2.2.2)."""
    character = chr(int(match[1], 16))
    return character if character in _UNRESERVED else match[0].upper()


_ROUNDS = 8
"""Rounds of decoding: an escaped escape (`%252e`) needs one more round for each level."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/?#]*)([^?#]*)(.*)", re.DOTALL)
_OVERLONG = re.compile(r"%c0%(ae|af|2e|2f)|%e0%80%(ae|af)|%u00(2e|2f)", re.IGNORECASE)
"""Escapes of `.` and `/` that are not valid UTF-8 or not valid in URLs, but that some servers accept."""
_PARAMETERS = re.compile(r";[^/]*")
"""Path parameters (`/..;x=1/`), which some servers remove before they resolve `..`."""


def decode_url(text: str) -> str | None:
    """Return the URL with its path fully decoded and `..` resolved; None if decoding changes nothing."""
    found = _URL.fullmatch(text)
    host, path, rest = found.groups() if found else ("", text, "")
    decoded = _decode(path)
    if decoded == path:
        return None
    plain = "/" + posixpath.normpath(decoded).lstrip("/")
    return f"{host}{plain}/{rest}" if decoded.endswith("/") and plain != "/" else f"{host}{plain}{rest}"


def climbs(text: str) -> bool:
    """Return True if the decoded path has a `..`, or is still escaped after all rounds of decoding."""
    found = _URL.fullmatch(text)
    path = found[2] if found else text
    if "%" not in path and ";" not in path and path.isascii():
        return False
    decoded = _decode(path)
    return ".." in decoded.split("/") or "%25" in decoded


def _decode(path: str) -> str:
    # Servers, proxies and frameworks may each decode once.
    for _ in range(_ROUNDS):
        step = unquote(_OVERLONG.sub(_spell_plainly, path), errors="replace")
        if step == path:
            break
        path = step
    # A server may normalize what it decoded: a full-width dot then becomes a dot.
    letters = unicodedata.normalize("NFKC", path)
    plain = "".join(letter for letter in letters if unicodedata.category(letter) not in ("Cc", "Cf"))
    return _PARAMETERS.sub("", plain.replace("\\", "/"))


def _spell_plainly(match: re.Match[str]) -> str:
    return "." if match[0].lower().endswith("e") else "/"
