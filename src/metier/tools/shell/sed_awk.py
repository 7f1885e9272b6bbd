"""Programs written for `sed` and `awk` that only read what they are given: no file, no command. Pure.

A bracket expression may hold the sign that ends a pattern, to some versions of the programs: such a text could be read
in two ways, and is not known here.
"""

import re
from collections.abc import Iterator

from metier.lazy_regex import lazy_regex


def _write_pattern(end: str) -> str:
    """What stands before the sign that ends it."""
    bracket = rf"\[\^?(?:\[:[a-z]+:\]|[^\]\[\\\n^{end}])(?:\[:[a-z]+:\]|[^\]\[\\\n{end}])*\]"
    return rf"(?:[^\[\\\n{end}]|\\.|{bracket})*"


def _write_changes() -> Iterator[str]:
    for end in ("/", "|", ",", "#", "@", ":"):
        sign = re.escape(end)
        yield rf"s{sign}{_write_pattern(sign)}{sign}(?:[^\\\n{sign}]|\\.)*{sign}[gpiI0-9]*"


_SED_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|/{_write_pattern('/')}/I?)"
_SED_RANGE = rf"(?:{_SED_ADDRESS}(?:,(?:{_SED_ADDRESS}|[+~]\d+))?[ ]*!?[ ]*)?"
_SED_COMMAND = rf"[ ]*{_SED_RANGE}(?:[pdqQ=lnNgGhHxDPF]|{'|'.join(_write_changes())})[ ]*"
_SED = lazy_regex(rf"{_SED_COMMAND}(?:[;\n]{_SED_COMMAND})*;?[ ]*")
"""Commands that print, delete, change and move lines. Those that read or write files (`r`, `w`), run programs (`e`), go
elsewhere or stand in braces are not known."""

_AWK_TOKEN = lazy_regex(
    r"""(?P<text>"(?:[^"\\\n]|\\.)*")"""
    rf"|(?P<pattern>/{_write_pattern('/')}/)"
    r"|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<number>\d+(?:\.\d*)?|\.\d+)"
    r"|(?P<step>\+\+|--)"
    r"|(?P<sign>\|\||&&|[-+*%^!=<>]=|!~|[-+*%^!<>=~?:,;(){}\[\]$])"
    r"|(?P<blank>[ \t\n]+)"
)
_AWK_DIVISION = lazy_regex("(?P<sign>/)")
_AWK_REACHES_OUT = frozenset({
    "system", "getline", "close", "ARGV", "ARGC", "ARGIND", "PROCINFO", "SYMTAB", "FUNCTAB", "function", "func",
})  # fmt: skip


def is_harmless_sed(script: str) -> bool:
    """It prints and changes lines on their way to the output."""
    return _SED.fullmatch(script) is not None


def is_harmless_awk(program: str) -> bool:
    """It reads its input and prints. A `>` within braces may be an output to a file, and a single `|` a command."""
    depth, place, before = 0, 0, ""
    while place < len(program):
        token = _match_awk(program, place, before)
        if token is None or token[0] in _AWK_REACHES_OUT:
            return False
        depth += (token[0] == "{") - (token[0] == "}")
        if token[0] in (">", ">=") and depth:
            return False
        if token.lastgroup != "blank":
            before = "name" if token[0] in (")", "]") else token.lastgroup or ""
        place = token.end()
    return depth == 0


def _match_awk(program: str, place: int, before: str) -> re.Match[str] | None:
    """A slash behind a value divides, and begins a pattern elsewhere; behind `++` it may be either."""
    if program[place] != "/" or before not in ("text", "name", "number", "step"):
        return _AWK_TOKEN.match(program, place)
    return None if before == "step" else _AWK_DIVISION.match(program, place)
