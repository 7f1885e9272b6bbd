"""One pass over a text that tells what kinds of secrets it may hold, so that ordinary text pays for nothing else. Pure.

Each sign is a necessary condition of what is looked for behind it: text without signs has no secret behind a name and
none that an address gives away.
"""

import re
from typing import Literal, NamedTuple

from metier.lazy_regex import lazy_regex

type Gate = Literal["auth", "key", "hook", "sig=", "x-amz-", "curl", "mysql", "sshpass", "address", "prefix"]
"""What must be in a text before the formats behind it are tried."""


class Signs(NamedTuple):
    """What one pass found."""

    names: list["NamePlace"]
    """Words that may be secret names and have behind them what may lead to a value, in order."""
    gates: frozenset[Gate]


class NamePlace(NamedTuple):
    """Somewhere inside a name, where the name ends, and whether a blank alone leads to its value."""

    inside: int
    end: int
    spaced: bool = False


_REST = r"[\w-]{0,40}+"
_VALUE_MAY_FOLLOW = r"""(?=\\*["'`]?\]?[ \t]{0,8}(?:[=:,]|%3)|[ \t](?:is|was)[: \t]|[ \t]{1,4}["'\\rbuf]|>)"""
_SIGNS = lazy_regex(
    "k(?:"
    rf"(?:ey(?:(?<=[\w.-]key)|(?<=\w key))|en(?<=token)(?!s)|ie(?<=cookie)){_REST}{_VALUE_MAY_FOLLOW}"
    r"|(?<=hook)|en\$production\$)"
    rf"|p(?:(?:ass(?![aeit])|wd|sk){_REST}{_VALUE_MAY_FOLLOW}"
    r"|ass -p(?<=sshpass -p)|s_ey(?<=ops_ey))"
    rf"|c(?:re(?:dential|t(?<=secret)){_REST}{_VALUE_MAY_FOLLOW}"
    r"|url |_(?<=glc_)|_(?<=whsec_))"
    rf"|uth(?<=auth)(?:orization{_REST}{_VALUE_MAY_FOLLOW}"
    r"""|(?=token|\\*["]|[ ]?=))"""
    r"|bearer[ \t]"
    r"|gin(?<=login)\s{1,8}\S{1,64}\s{1,8}passw(?:or)?d(?=[ \t])"
    r"|v1 (?<=flyv1 )|v (?<=env )[\w.-]{1,64}+(?=[ \t])"
    r"|-(?<![\w.-]-)[\w.-]{4,64}+(?=[ \t])"
    r"|g=(?<=sig=)|z-(?<=x-amz-)|ql(?<=mysql)",
    re.ASCII,
)
"""Every alternative begins with a letter that is rare in words, not with the first letter of its word: the engine looks
closer only at one character in ten."""

_GATES: dict[str, Gate] = {
    "uth": "auth",
    "key": "key",
    "k": "hook",
    "g=": "sig=",
    "z-": "x-amz-",
    "ql": "mysql",
    "curl ": "curl",
    "pass -p": "sshpass",
    "ken$production$": "prefix",
    "ps_ey": "prefix",
    "c_": "prefix",
    "v1 ": "prefix",
}
_INSIDE_OPTIONS: dict[str, Gate] = {
    "curl": "curl",
    "mysql": "mysql",
    "sshpass": "sshpass",
    "hook": "hook",
    "auth": "auth",
    "key": "key",
    "x-amz-": "x-amz-",
    "glc_": "prefix",
    "whsec_": "prefix",
    "ops_ey": "prefix",
    "flyv1": "prefix",
}
"""Signs that the name of an option, such as `-pcurl`, or the word behind `env`, would take in."""
_WITH_NAMES = frozenset({None, "auth", "key"})


def lower_ascii(text: str) -> str:
    """Lower case of A to Z alone, so that every character keeps its place."""
    return text.lower() if text.isascii() else _lower_bytes(text)


def find_signs(text: str, lowered: str) -> Signs:
    """What the text may hold. `lowered` is `lower_ascii(text)`."""
    names: list[NamePlace] = []
    gates: set[Gate] = set()
    for match in _SIGNS.finditer(lowered):
        start, end = match.span()
        gate = _GATES.get(match[0]) or _GATES.get(match[0][:3])
        if gate:
            gates.add(gate)
        elif lowered[start] in "-v":
            gates.update(other for word, other in _INSIDE_OPTIONS.items() if word in match[0])
        if end - start > 2 and gate in _WITH_NAMES:
            names.append(NamePlace(start, end, lowered[start] in "-vg"))
    if "@" in text and "://" in text:
        gates.add("address")
    return Signs(names, frozenset(gates))


def _lower_bytes(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
