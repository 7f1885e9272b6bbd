"""`find … | xargs …`: a command over files of the workspace, if the names come whole and are no links. Pure.

Names with blanks or newlines would be torn apart into other names, and a link leads elsewhere; so the pair is run with
`! -type l -print0` and `-0`, and is then what it seems to be.
"""

from collections.abc import Sequence
from dataclasses import replace

from metier.dataclass import dataclass
from metier.tools.shell.line import SimpleCommand

XARGS, FIND = "xargs", "find"
_VALUED = frozenset({"-n", "-L", "-P", "--max-args", "--max-lines", "--max-procs"})
_PLAIN = frozenset({"-r", "-t", "-x", "--no-run-if-empty", "--verbose", "--exit"})
_ZERO = frozenset({"-0", "--null"})
_PRINTS = ("-print", "-print0")
_NOT_A_LIST = frozenset({"-printf", "-ls", "-L", "-H", "-follow", "-quit"})
_OR = frozenset({"-o", "-or", ","})
_FILES = ("./a", "./b")
"""Stand for whatever names come: two, because a second one may mean something else."""


@dataclass(frozen=True, slots=True)
class XargsCall:
    options: tuple[str, ...]
    command: tuple[str, ...]
    is_zero: bool
    replaced: str = ""
    """The word that stands for a name in the command; without one names come at the end."""

    @property
    def over_files(self) -> tuple[str, ...]:
        """The command with files of the workspace in the place of names."""
        if not self.replaced:
            return (*self.command, *_FILES)
        return tuple(_FILES[0] if word == self.replaced else word for word in self.command)


def read_xargs(argv: Sequence[str]) -> XargsCall | None:
    """Nothing where an option is not known, or a name would be only a part of a word."""
    if argv[0] != XARGS:
        return None
    rest, options, replaced = list(argv[1:]), list[str](), ""
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name = word[:2] if not word.startswith("--") else word.partition("=")[0]
        if name == "-I":
            replaced = word[2:] or (rest.pop(0) if rest else "")
        elif name in _VALUED:
            is_attached = len(word) > len(name)
            options += [word] if is_attached else [word, rest.pop(0) if rest else ""]
        elif word in _PLAIN or word in _ZERO:
            options.append(word)
        else:
            return None
    if not rest or any(replaced and replaced in word and replaced != word for word in rest) or rest[0] == replaced:
        return None
    return XargsCall(tuple(options), tuple(rest), is_zero=not _ZERO.isdisjoint(options), replaced=replaced)


def is_name_list(argv: Sequence[str], *, is_zero: bool) -> bool:
    """It prints names of files and nothing else, each with the end that is expected."""
    if argv[0] != FIND or not _NOT_A_LIST.isdisjoint(argv):
        return False
    return "-print" not in argv if is_zero and "-print0" in argv else not is_zero and "-print0" not in argv


def pair_commands(commands: Sequence[SimpleCommand]) -> tuple[SimpleCommand, ...]:
    """The commands of a pipe, where `find` hands names to `xargs` in the form that keeps them whole."""
    paired = list(commands)
    for number, command in enumerate(commands[1:], start=1):
        call, names = read_xargs(command.argv), commands[number - 1]
        if call is None or not is_name_list(names.argv, is_zero=call.is_zero):
            continue
        paired[number - 1] = replace(names, argv=_end_in_zero(names.argv))
        replaced = ("-I", call.replaced) if call.replaced else ()
        zero = () if call.is_zero else ("-0",)
        paired[number] = replace(command, argv=(XARGS, *zero, *call.options, *replaced, *call.command))
    return tuple(paired)


def _end_in_zero(argv: Sequence[str]) -> tuple[str, ...]:
    words: list[str] = []
    for word in argv:
        words += ["!", "-type", "l", "-print0"] if word in _PRINTS and words[-3:] != ["!", "-type", "l"] else [word]
    if any(word in _PRINTS for word in argv):
        return tuple(words)
    count = next((index for index, word in enumerate(words[1:], start=1) if word[0] in "-(!"), len(words))
    paths, tests = words[:count], words[count:]
    if not _OR.isdisjoint(tests):
        tests = ["(", *tests, ")"]
    return (*paths, *tests, "!", "-type", "l", "-print0")
