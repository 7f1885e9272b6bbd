"""Harmless commands, by the program and all of its arguments. Reads the tables of `programs`. Pure.

The tables are a convenience for allow rules: an unlisted command needs approval. They are not the security boundary;
the sandbox is.

`sed` and `awk` programs are recognized in restricted forms that only print their input. The forms are not grammars of
the languages: any other program is unknown and needs approval. Some implementations allow the delimiter in a bracket
expression, so a text that could be read in two ways never matches.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from typing import Literal, get_args

from msgspec import Struct

from metier.tools.shell.line import fill_variables, has_variable, is_open
from metier.tools.shell.programs import PLAIN, RUNNERS, SAME_TABLE, TABLES

MAX_CHARACTERS = 500


def _write_pattern(end: str) -> str:
    """Return the pattern of a regular expression up to its delimiter."""
    bracket = rf"\[\^?(?:\[:[a-z]+:\]|[^\]\[\\\n^{end}])(?:\[:[a-z]+:\]|[^\]\[\\\n{end}])*\]"
    return rf"(?:[^\[\\\n{end}]|\\.|{bracket})*"


def _write_changes() -> Iterator[str]:
    for end in ("/", "|", ",", "#", "@", ":"):
        sign = re.escape(end)
        yield rf"s{sign}{_write_pattern(sign)}{sign}(?:[^\\\n{sign}]|\\.)*{sign}[gpiI0-9]*"


_SED_ADDRESS = rf"(?:\d+(?:~\d+)?|\$|/{_write_pattern('/')}/I?)"
_SED_RANGE = rf"(?:{_SED_ADDRESS}(?:,(?:{_SED_ADDRESS}|[+~]\d+))?[ ]*!?[ ]*)?"
_SED_COMMAND = rf"[ ]*{_SED_RANGE}(?:[pdqQ=]|{'|'.join(_write_changes())})[ ]*"
# Compiled at the first use: the two take 20 ms, and most runs never need them.
_SED = rf"{_SED_COMMAND}(?:;{_SED_COMMAND})*;?[ ]*"
"""Commands that print, delete and substitute. Commands that read or write files (`r`, `w`), run programs (`e`), branch
or group are not accepted."""

_NAME = "(?:sum|count|total|seen|[a-z])"
"""A fixed set of names, so that no keyword or function (`getline`, `in`, `system`) is taken for a variable."""
_FIELD = r"\$(?:\d++|NF|\(NF-\d++\))"
_TEXT = r'"(?:[^"\\\n]|\\[nt])*+"'
_NUMBER = r"\d++(?:\.\d++)?"
_VALUE = (
    rf"(?>{_FIELD}|{_TEXT}|{_NUMBER}|length\(\$\d++\)|FILENAME|FNR|NR|NF"
    rf"|{_NAME}(?:\[(?:{_NAME}|{_FIELD})\]|/(?:NR|\d++))?)(?![A-Za-z0-9_(\[/])"
)
# A regular expression is accepted only where awk can't read `/` as a division: in a rule's condition, never in braces.
_REGEX = rf"/(?!=){_write_pattern('/')}/"
_TEST = (
    rf"(?>!?{_REGEX}|{_FIELD} ?!?~ ?{_REGEX}|!?{_NAME}\[{_FIELD}\]\+\+"
    rf"|(?:NR|FNR|NF)(?: ?% ?\d++)?(?: ?[=!<>]= ?\d++| ?[<>] ?\d++)?|{_VALUE} ?(?:[=!<>]=|[<>]) ?{_VALUE})"
)
_CONDITION = rf"{_TEST}(?: ?(?:&&|\|\||,) ?{_TEST})*+"
_PRINT = rf"(?:printf[ ]+{_TEXT}(?: ?, ?{_VALUE})*+|print(?:[ ]+{_VALUE}(?: ?, ?{_VALUE}| ?{_VALUE})*+)?)"
_STATEMENT = (
    rf"(?>{_PRINT}|for ?\({_NAME} in {_NAME}\) ?{_PRINT}|(?:FS|OFS) ?= ?{_TEXT}"
    rf"|{_NAME}(?:\[{_FIELD}\])? ?(?:\+\+|\+= ?{_VALUE}))"
)
_ACTION = rf"\{{ ?{_STATEMENT}(?: ?; ?{_STATEMENT})*+ ?;? ?\}}"
_RULE = rf"(?>(?:(?:BEGIN|END|{_CONDITION}) ?)?{_ACTION} ?;?|{_CONDITION} ?(?:;|\Z))"
_AWK = rf" ?(?:{_RULE} ?)++"
"""Conditions, and actions that print, count and add. `>` occurs only as a comparison outside braces, and `|` only in
`||`, a text or a regular expression, so nothing is written to a file or a program."""


def is_harmless_sed(script: str) -> bool:
    """Return True for a script that only prints and changes lines on their way to the output."""
    return len(script) <= MAX_CHARACTERS and re.fullmatch(_SED, script) is not None


def is_harmless_awk(program: str) -> bool:
    """Return True for a program that only reads its input and prints."""
    return len(program) <= MAX_CHARACTERS and re.fullmatch(_AWK, program) is not None


type Operands = Literal["none", "words", "paths", "pattern", "plain", "plus", "remote", "sed", "awk"]
type Takes = Literal["nothing", "value", "attached", "word"]
"""The value of an option: none; attached or next; only attached; exactly one word."""

_MAX_NAME_LENGTH = 3
_GIT = ("--no-pager", "-P")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
_VERSIONED = re.compile(r"(?:python|pypy|perl|ruby|lua|php|node|pip)[0-9.]+")
_IMPORT = re.compile(r"\b(?:import|include|modulemeta)\b")
_SIGNATURE = re.compile(r"%[-+ ]?G|%\(\*?signature|^(?:--sort=)?(?:[-*]|version:|v:)*signature")
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9.-]*\.[A-Za-z0-9.-]+")
_PATTERN_OPTIONS = frozenset({"-e", "--regexp", "--files"})
_ELSEWHERE = "//"
_SCRIPT_OPTIONS = frozenset({"-e", "--expression"})
_REMOTES = frozenset({"origin", "upstream"})
_OWN_CODE_ONLY = frozenset({"git", "mkdir", "ruff"})
"""Commands that act on files, or run at most the hooks that a user set up, and never code that the caller wrote."""
_SYSTEM_FOLDERS = frozenset({"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"})
_RUNNERS, _PLAIN_PROGRAMS = frozenset(RUNNERS.split()), frozenset(PLAIN.split())
_GROUPING = frozenset({"(", ")", "!"})
_REFUSED = (":keys", ":nofiles", ":nobrackets", ":noimports", ":noplus", ":nosignatures")
_OPERANDS: tuple[Operands, ...] = get_args(Operands.__value__)


class Table(Struct, frozen=True, kw_only=True):
    """Harmless arguments of one command."""

    options: dict[str, Takes]
    operands: Operands = "none"
    most: int | None = None
    needs: frozenset[str] = frozenset()
    acts: bool = False
    is_open: bool = False
    """Any arguments are harmless."""
    is_single: bool = False
    """Long options have one dash, and short options can't be combined."""
    extra: frozenset[str] = frozenset()
    """Words that are neither options nor operands."""
    among: frozenset[str] = frozenset()
    """The allowed operands; empty for any."""
    refused: tuple[str, ...] = ()
    """Marks of the operands that are not allowed."""


class CommandTables(Struct, frozen=True):
    """The tables of a command, and the words that name it."""

    name: str
    tables: tuple[Table, ...]
    arguments: tuple[str, ...]


class CommandFolders(Struct, frozen=True):
    """The folders in which a command may run."""

    root: str
    folders: tuple[str, ...]
    """All possible folders, absolute."""

    def holds(self, path: str) -> bool:
        """Return True if the path is below the root from every possible folder. Links are not followed."""
        return all(is_beneath(_join(folder, path), self.root) for folder in self.folders)

    def enter(self, folder: str) -> "CommandFolders":
        """Return the possible folders after a `cd`, which may have failed."""
        entered = [_join(before, folder) for before in self.folders]
        return CommandFolders(self.root, tuple(dict.fromkeys((*self.folders, *entered))))


def _join(folder: str, path: str) -> str:
    """Join as text. A path with a variable whose value is unknown is never below a root."""
    filled = fill_variables(path, {"PWD": folder})
    return _ELSEWHERE if has_variable(filled) else posixpath.normpath(posixpath.join(folder, filled))


def is_beneath(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def is_runner(program: str) -> bool:
    """Return True for a program that runs other programs or code, or writes where an argument says."""
    name = posixpath.basename(program)
    return name in _RUNNERS or _VERSIONED.fullmatch(name) is not None


def is_tabled(program: str) -> bool:
    """Return True if some commands of this program have a table."""
    return program in _programs()


def find_tables(argv: Sequence[str], *, program: str = "") -> CommandTables | None:
    """Find the tables of a command by its longest name. `program` replaces the first word if it is given."""
    words = [program or argv[0], *argv[1:]]
    if words[0] == "[":
        # `[` is `test` with a closing bracket as its last argument.
        words = ["test", *words[1:-1]] if words[-1] == "]" else words
    elif words[0] == "git":
        words = ["git", *_skip(words[1:], _GIT)]
    for size in range(min(_MAX_NAME_LENGTH, len(words)), 0, -1):
        name = " ".join(words[:size])
        tables = load_tables().get(SAME_TABLE.get(name, name))
        if tables is not None:
            return CommandTables(name, tables, tuple(words[size:]))
    return None


def is_vouched(argv: Sequence[str], place: CommandFolders) -> bool:
    """Return True if a table says that this command only reads, wherever it runs."""
    found = find_tables(argv)
    if found is None:
        return False
    return any(not table.acts and not _try(table, found.arguments, place, named=True) for table in found.tables)


def is_unclear(argv: Sequence[str]) -> bool:
    """Return True if the command may start a program that its words don't name, according to the tables."""
    written = argv[0]
    folder, _, name = written.rpartition("/")
    # In another folder, a program of a known name may be any program.
    if folder and folder not in _SYSTEM_FOLDERS:
        return True
    if name in _PLAIN_PROGRAMS:
        return False
    found = find_tables(argv, program=name)
    if found is None:
        return True
    anywhere = CommandFolders("/", ("/",))
    fitting = [table for table in found.tables if not _try(table, found.arguments, anywhere, named=True)]
    return not any(not table.acts or name in _OWN_CODE_ONLY for table in fitting)


def get_harm(found: CommandTables, place: CommandFolders, *, named: bool) -> str:
    """Return why the arguments aren't known to be harmless; empty if they are. `named`: a rule names the command."""
    reasons = [_try(table, found.arguments, place, named=named) for table in found.tables]
    return "" if "" in reasons else reasons[0]


class Naming(Struct, frozen=True, kw_only=True):
    """The commands that an allow rule names."""

    prefixes: Collection[str] = ()
    """Canonical prefixes of commands, in whole words."""
    expressions: Collection[str] = ()
    """The literal starts of the rule's expressions."""
    trusts_unknown: bool = False
    """An unknown program may have any arguments."""

    def names(self, command: str) -> bool:
        return _names(self.prefixes, command) or _names(self.expressions, command)

    def expresses(self, program: str) -> bool:
        return _names(self.expressions, program)


def get_objection(argv: Sequence[str], text: str, *, naming: Naming, place: CommandFolders) -> str:
    """Return why an allow rule that matches does not apply; empty if it does. `text` is the canonical command."""
    written = argv[0]
    if text in naming.prefixes and _is_named_whole(argv):
        return ""
    program = posixpath.basename(written) if "/" in written and naming.names(written) else written
    # The tables describe programs of the system; a file of the same name elsewhere may be anything.
    if "/" in program:
        return f"{written!r} is a path, and the rule does not name it"
    found = find_tables(argv, program=program)
    if found is not None:
        command = found.name if program == written else written + found.name.removeprefix(program)
        return get_harm(found, place, named=naming.names(command))
    if is_runner(program) or is_tabled(program):
        return f"{program!r} can run other programs or write anywhere; name the whole command by 'equals' or 'in'"
    if naming.trusts_unknown or naming.expresses(written):
        return ""
    return f"nothing is known of {program!r}; name whole commands by 'equals' or 'in', or its arguments by 'matches'"


def _is_named_whole(argv: Sequence[str]) -> bool:
    """Return True if the words of the command determine what it does."""
    # A runner without arguments gets its program from its input or from a file.
    if len(argv) == 1:
        return not is_runner(argv[0])
    found = find_tables(argv)
    return found is None or any(not table.needs for table in found.tables)


def _names(beginnings: Collection[str], command: str) -> bool:
    return any(beginning == command or beginning.startswith(command + " ") for beginning in beginnings)


@cache
def load_tables() -> dict[str, tuple[Table, ...]]:
    """Parse all tables, by command."""
    found: dict[str, tuple[Table, ...]] = {}
    for entry in TABLES.replace("\n    ", " ").strip().splitlines():
        name, _, text = entry.partition(" = ")
        found[name] = (*found.get(name, ()), _read(text.split()))
    return found


@cache
def _programs() -> frozenset[str]:
    return frozenset(name.partition(" ")[0] for name in (*load_tables(), *SAME_TABLE))


def _read(words: Iterable[str]) -> Table:
    options: dict[str, Takes] = {}
    marks: dict[str, str] = {}
    listed = list(words)
    is_single = ":single" in listed
    for word in listed:
        if word.startswith(":"):
            mark, _, value = word.partition("=")
            marks[mark] = value
        else:
            options |= _read_option(word, is_single=is_single)
    kinds: list[Operands] = [kind for kind in _OPERANDS if f":{kind}" in marks]
    operands: Operands = kinds[-1] if kinds else "words" if ":among" in marks else "none"
    return Table(
        options=options,
        operands=operands,
        most=int(marks[":most"]) if ":most" in marks else None,
        needs=frozenset(marks[":needs"].split(",")) if ":needs" in marks else frozenset(),
        acts=":acts" in marks,
        among=frozenset(marks[":among"].split(",")) if ":among" in marks else frozenset(),
        is_open=":any" in marks,
        is_single=is_single,
        extra=_GROUPING if ":grouping" in marks else frozenset(),
        refused=tuple(mark for mark in _REFUSED if mark in marks),
    )


def _read_option(word: str, *, is_single: bool) -> dict[str, Takes]:
    takes: Takes = "nothing"
    match word[-1]:
        case ":" | "=":
            takes = "value"
        case "?":
            takes = "attached"
        case "!":
            takes = "word"
        case _:
            pass
    name = word.rstrip(":=?!")
    if is_single or name.startswith("--") or takes != "nothing":
        return {name: takes}
    return {f"-{letter}": "nothing" for letter in name[1:]}


def _skip(words: list[str], known: Iterable[str]) -> list[str]:
    count = 0
    while count < len(words) and words[count] in known:
        count += 1
    return words[count:]


def _try(table: Table, arguments: Sequence[str], place: CommandFolders, *, named: bool) -> str:
    if table.acts and not named:
        return "it runs code of the workspace or changes it, so a rule must name it"
    if table.is_open:
        return ""
    reading = _Arguments(table)
    if wrong := reading.read(arguments):
        return wrong
    if table.needs and table.needs.isdisjoint(reading.used):
        return f"it needs one of {', '.join(sorted(table.needs))} to be harmless"
    if ":nosignatures" in table.refused and any(_SIGNATURE.search(word) for word in arguments):
        return "an argument asks for a signature, which another program checks"
    return _check_operands(table, reading, place)


class _Arguments:
    """The options and operands of a command, parsed as the program itself would."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.used: set[str] = set()
        self.scripts: list[str] = []
        """Programs that are given as values of options (`-e`)."""
        self.operands: list[str] = []

    def read(self, arguments: Sequence[str]) -> str:
        """Return the first argument that is not known to be harmless, or an empty string."""
        rest = list(reversed(arguments))
        while rest:
            word = rest.pop()
            if word == "--" and not self._table.is_single:
                self.operands.extend(reversed(rest))
                return ""
            if word in self._table.extra:
                continue
            if not word.startswith("-") or word == "-":
                self.operands.append(word)
            elif wrong := self._read_option(word, rest):
                return wrong
        return ""

    def _read_option(self, word: str, rest: list[str]) -> str:
        if word.startswith("--") or self._table.is_single:
            return self._read_long(word, rest)
        if word[1:].isdecimal() and "-#" in self._table.options:
            return ""
        return self._read_short(word, rest)

    def _read_long(self, word: str, rest: list[str]) -> str:
        name, equals, _ = word.partition("=")
        # Abbreviations of long options, which GNU programs accept, are in no table and so need approval.
        takes = self._table.options.get(name)
        if takes is None or (equals and takes in ("nothing", "word")):
            return f"option {word[:80]!r} is not known to be harmless"
        self.used.add(name)
        if equals:
            self._keep(name, word.partition("=")[2])
            return ""
        return self._take_value(name, rest) if takes in ("value", "word") else ""

    def _read_short(self, word: str, rest: list[str]) -> str:
        for place, letter in enumerate(word[1:], start=2):
            name = f"-{letter}"
            takes = self._table.options.get(name)
            if takes is None:
                return f"option {name!r} in {word[:80]!r} is not known to be harmless"
            self.used.add(name)
            if takes in ("value", "word") and place == len(word):
                return self._take_value(name, rest)
            if takes == "word":
                # The program reads more options in this word, and the value in the next: `tree -Po PATTERN FILE`.
                return f"option {name!r} in {word[:80]!r} is not known to be harmless"
            if takes != "nothing":
                self._keep(name, word[place:])
                return ""
        return ""

    def _keep(self, name: str, value: str) -> None:
        if name in _SCRIPT_OPTIONS:
            self.scripts.append(value)

    def _take_value(self, name: str, rest: list[str]) -> str:
        # If the program took no value here, it would read the next word as an option.
        if not rest or rest[-1].startswith("-"):
            return f"option {name!r} has no value, or one that looks like an option"
        self._keep(name, rest.pop())
        return ""


def _check_operands(table: Table, reading: _Arguments, place: CommandFolders) -> str:
    operands = reading.operands
    if wrong := _get_refused(table, operands):
        return wrong
    match table.operands:
        case "words":
            return ""
        case "none":
            return f"argument {operands[0][:80]!r} is not known to be harmless" if operands else ""
        case "plain":
            return _first_wrong(word for word in operands if not _PLAIN.fullmatch(word))
        case "remote":
            return _check_remote(operands)
        case "sed" | "awk":
            return _check_script(table.operands, reading, place)
        case "plus":
            return _first_wrong(word for word in operands if not word.startswith("+"))
        case "pattern":
            paths = operands if not _PATTERN_OPTIONS.isdisjoint(reading.used) else operands[1:]
            return _check_paths(paths, place)
        case "paths":
            return _check_paths(operands, place)


def _get_refused(table: Table, operands: Sequence[str]) -> str:
    """Return the reason to reject the operands, by the table's marks; empty if there is none."""
    if table.most is not None and len(operands) > table.most:
        return f"it takes {table.most} such argument"
    if table.among:
        return _first_wrong(word for word in operands if word not in table.among)
    if ":keys" in table.refused and any(not _KEY.fullmatch(word) for word in operands):
        return "an argument is not the name of a setting"
    if ":nofiles" in table.refused and any(word.startswith("@") for word in operands):
        return "an argument stands for a file of arguments"
    # The builtin `test` of bash evaluates array subscripts, which can run commands.
    if ":nobrackets" in table.refused and any("[" in word for word in operands):
        return "an argument has a bracket"
    if ":noplus" in table.refused and any(word.startswith("+") for word in operands):
        return "an argument is a command for the pager"
    # A jq filter can import a file from any folder.
    if ":noimports" in table.refused and any(_IMPORT.search(word) for word in operands):
        return "an argument may bring in another file"
    return ""


def _check_paths(paths: Sequence[str], place: CommandFolders) -> str:
    outside = next((path for path in paths if not place.holds(path)), None)
    return "" if outside is None else f"path {outside[:80]!r} is outside of the workspace"


def _check_script(kind: Literal["sed", "awk"], reading: _Arguments, place: CommandFolders) -> str:
    scripts = reading.scripts or reading.operands[:1]
    if not scripts:
        return "it is given no program"
    is_harmless = is_harmless_sed if kind == "sed" else is_harmless_awk
    if any(is_open(script) or not is_harmless(script) for script in scripts):
        return f"its program is not one that only reads, as far as {kind!r} is known here"
    return _check_paths(reading.operands if reading.scripts else reading.operands[1:], place)


def _check_remote(operands: Sequence[str]) -> str:
    """Check a remote. An unusual name may be the path of a repository, whose hooks would run."""
    if operands and operands[0] not in _REMOTES:
        return f"{operands[0][:80]!r} may be a path to a repository; a rule that names it whole can allow it"
    return _first_wrong(word for word in operands if not _PLAIN.fullmatch(word))


def _first_wrong(words: Iterable[str]) -> str:
    wrong = next(iter(words), None)
    return "" if wrong is None else f"argument {wrong[:80]!r} is not known to be harmless"
