"""Commands that give a file the rights of its owner for every user who runs it: setuid and setgid modes. Pure.

Such a file outlives the run and every sandbox: where the agent runs as root, or as a user that others trust, it is a
door. No work on a project needs one.
"""

import posixpath
from collections.abc import Iterable, Sequence

from metier.lazy_regex import lazy_regex
from metier.tools.shell.harmless import is_runner
from metier.tools.shell.line import NotUnderstood, ShellLine

_NUMBER = lazy_regex(r"[-+=]?0*([0-7]{4,})")
_LETTERS = lazy_regex(r"(?:[ugoa]*[-+=][rwxXstugo]*)+(?:,(?:[ugoa]*[-+=][rwxXstugo]*)+)*")
_SETTING = lazy_regex(r"[+=][rwxX]*s")
_DISGUISE = str.maketrans("", "", "\\'\"")
_SPECIAL = 0o6000
_MODE_OPTIONS = ("-m", "--mode")
_BY_OPTION = frozenset({"install", "mkdir", "mkfifo", "mknod", "ginstall", "gmkdir"})
_BY_WORD = frozenset({"chmod", "gchmod"})
_ACCESS_LIST = frozenset({"setcap"})
_IN_TEXT = lazy_regex(
    r"\b(?:g?chmod|g?install|mkdir|mkfifo|mknod)\b[^\n;|&]*?[\s=\"']"
    r"(?:[-+=]?0*[2-7][0-7]{3}\b|[ugoa,rwxXst+=-]*[+=][rwxX]*s)|\bsetcap\b"
)
_CALLS = lazy_regex(r"\b(?:os\.)?f?chmod(?:at)?\s*\([^)]*\b0o?[2-7][0-7]{3}\b|\bS_IS[UG]ID\b")
"""The same in code that a line hands to an interpreter."""


def find_special_mode(line: ShellLine | NotUnderstood, text: str) -> str:
    """The command that would set such a mode, as it is written; empty where none does.

    Words are read where the line is understood, also those of programs that run programs. A line that only a shell can
    read is searched: what looks like it is taken for it.
    """
    if isinstance(line, ShellLine):
        commands = line.commands
        return next((each.render() for each in commands if _sets_special_mode(each.argv) or _runs_one(each.argv)), "")
    plain = text.translate(_DISGUISE)
    found = _IN_TEXT.search(text) or _CALLS.search(text) or _IN_TEXT.search(plain)
    return found[0] if found else ""


def _runs_one(argv: Sequence[str]) -> bool:
    """`sh -c "chmod …"`: of a program that runs programs a word may be a line, or code, of its own."""
    if not is_runner(argv[0]) or argv[0] == "git":
        return False
    return any(_IN_TEXT.search(word) or _CALLS.search(word) for word in argv[1:] if " " in word)


def _sets_special_mode(argv: Sequence[str]) -> bool:
    """`argv`, or a command that stands behind others in it: `find … -exec chmod u+s`, `sudo`, `env`, `xargs`."""
    for index, word in enumerate(argv):
        name, rest = posixpath.basename(word), argv[index + 1 :]
        if name in _ACCESS_LIST and (index == 0 or rest):
            return True
        if name in _BY_WORD and any(_is_special(each) for each in rest):
            return True
        if name in _BY_OPTION and any(_is_special(mode) for mode in _list_modes(rest)):
            return True
    return False


def _list_modes(words: Sequence[str]) -> Iterable[str]:
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word in _MODE_OPTIONS and index + 1 < len(words):
            yield words[index + 1]
        elif equals and len(name) > len("--") and "--mode".startswith(name):
            yield value
        elif word.startswith("-") and not word.startswith("--") and "m" in word:
            yield word.partition("m")[2]


def _is_special(word: str) -> bool:
    if found := _NUMBER.fullmatch(word):
        # `-4755` takes the bits away.
        return not word.startswith("-") and bool(int(found[1], 8) & _SPECIAL)
    return bool(_LETTERS.fullmatch(word)) and bool(_SETTING.search(word))
