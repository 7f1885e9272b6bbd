"""A shell line, parsed by a small grammar: words, pipes, `&&`, `||`, `;`, and files as input. Pure text.

An accepted line means the same to bash, word for word. File patterns and a few known variables become marks in a word.
Unlike in bash, a variable's value stays one word, and a pattern in an option is literal. A mark is a character that no
line contains, because lines are ASCII. So a word stays a string, and a quoted `*` differs from a pattern. Everything
else (other expansions, backslashes, here-documents, subshells, output files, assignments, keywords, non-ASCII
characters) is not understood, and the result says why.

`find … | xargs …` is treated as one command over workspace files. It runs with `! -type l -print0` and `-0`, because
names with blanks or newlines would be split, and links lead elsewhere.
"""

import os
import re
from collections.abc import Mapping, Sequence
from glob import escape, glob
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

ANY, ONE, OPEN, NOT, CLOSE = "\ue000", "\ue001", "\ue002", "\ue003", "\ue004"
"""Marks for `*`, `?`, `[`, `[!` and `]` in file patterns."""
VARIABLE, END = "\ue010", "\ue011"
"""Marks around the name of a variable."""
FOLDER = f"{VARIABLE}PWD{END}"

KNOWN_VARIABLES = ("PWD", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "TERM", "TMPDIR")
"""Variables whose values come from the agent's own environment and never from the model."""
MAX_NAMES = 5_000
"""A pattern that matches more files than this is not expanded."""

# The longer ones first, because they are replaced in this order.
_PATTERNS = {"*": ANY, "?": ONE, "[!": NOT, "[^": NOT, "[": OPEN, "]": CLOSE}
_SHOWN = {ANY: "*", ONE: "?", NOT: "[!", OPEN: "[", CLOSE: "]"}
_MARKS = re.compile(f"([{ANY}-{CLOSE}]|{VARIABLE}[A-Z]+{END})")
_PATTERN_MARKS = frozenset(_SHOWN)
_WRITTEN_VARIABLE = re.compile(r"\$\{?([A-Z]+)\}?")


def mark_patterns(text: str) -> str:
    """Replace `*`, `?` and brackets in a piece of an unquoted word with marks."""
    for letter, mark in _PATTERNS.items():
        text = text.replace(letter, mark)
    return text


def mark_variables(text: str) -> str:
    """Replace every `$NAME` in a piece of a word with marks. All of them must be known variables."""
    return _WRITTEN_VARIABLE.sub(lambda found: f"{VARIABLE}{found[1]}{END}", text)


def is_open(word: str) -> bool:
    """Return True if the word has a mark, so that its meaning depends on the time and place it runs."""
    return _MARKS.search(word) is not None


def has_pattern(word: str) -> bool:
    return not _PATTERN_MARKS.isdisjoint(word)


def has_variable(word: str) -> bool:
    return VARIABLE in word


def split_marks(word: str) -> list[str]:
    """Split a word into literal texts and marks; a variable's marks and name are one piece."""
    return [piece for piece in _MARKS.split(word) if piece]


def show_mark(piece: str, following: str = "") -> str:
    """Return a mark as it is written in a line."""
    if piece[0] != VARIABLE:
        return _SHOWN[piece]
    name = piece[1:-1]
    is_joined = bool(following) and (following[0].isalnum() or following[0] in f"_{OPEN}{NOT}")
    return f"${{{name}}}" if is_joined else f"${name}"


def show_word(word: str) -> str:
    """Return a word for users and rules, with `*` and `$NAME` instead of marks."""
    if not is_open(word):
        return word
    return "".join(show_mark(piece) if _MARKS.fullmatch(piece) else piece for piece in split_marks(word))


def fill_variables(word: str, values: Mapping[str, str]) -> str:
    """Replace the marks of these variables with their values."""
    for name, value in values.items():
        word = word.replace(f"{VARIABLE}{name}{END}", value)
    return word


def expand_pattern(word: str, folder: str) -> list[str]:
    """List the files that match a word, or the word itself if none does. Reads the disk.

    Names that start with a dash get the prefix `./`, so that no file is taken for an option.
    """
    pieces = split_marks(fill_variables(word, {"PWD": folder}))
    pattern = "".join(_SHOWN.get(piece) or escape(piece) for piece in pieces)
    # Sorted like a shell sorts, because the approved line and the executed line must be equal.
    found = sorted(glob(pattern, root_dir=folder))  # noqa: PTH207  names as they were written, `./` and all
    if not found or len(found) > MAX_NAMES:
        return [show_word(word)]
    return [f".{os.sep}{name}" if name.startswith("-") else name for name in found]


type Connector = Literal["", "&&", "||", ";"]

MAX_CHARACTERS = 16_384
MAX_COMMANDS = 50

_PLAIN = (
    r"(?:[A-Za-z0-9_./,:@%+=^-]|(?<=[A-Za-z0-9_./,:@%+=^-])\#|(?<=[A-Za-z0-9_^~])~|(?<=@)\{[A-Za-z0-9-]+\}|\{\}"
    # A single bracket is the command `[`, or its last argument.
    r"|(?<![^ \t;|&])[\[\]](?=[ \t;|&]|\Z))"
)
_PATTERN = r"(?:[*?]|\[[!^]?[A-Za-z0-9_.]+(?:-[A-Za-z0-9_.]+)?\])"
_NAMES = "|".join(KNOWN_VARIABLES)
_VARIABLE = rf"(?:\$(?:{_NAMES})(?![A-Za-z0-9_\[])|\$\{{(?:{_NAMES})\}})"
_SINGLE = r"'[\t\n\x20-\x26\x28-\x7e]*'"
# All characters but the quote, `$`, the backslash and the backtick, which bash interprets in double quotes.
_DOUBLE = rf'"(?:[\t\n\x20\x21\x23\x25-\x5b\x5d-\x5f\x61-\x7e]|{_VARIABLE})*"'
_END = r"(?=[ \t;|&]|\Z)"
_TOKEN = re.compile(
    rf"(?P<blank>[ \t]+)"
    rf"|(?P<join>&&|\|\||;|\|(?!&))"
    rf"|(?P<redirect>(?:[12]?>&[12]|[12&]?>[ \t]*/dev/null){_END})"
    rf"|(?P<input><(?![<>&(])[ \t]*)"
    rf"|(?P<word>(?:{_PLAIN}|{_SINGLE}|{_DOUBLE}|{_PATTERN}|{_VARIABLE})+){_END}"
)
_PIECE = re.compile(rf"{_SINGLE}|{_DOUBLE}|{_VARIABLE}|{_PATTERN}|{_PLAIN}+")
_PLAIN_WORD = re.compile(rf"{_PLAIN}+")
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+|\[")
_EDGE = " \t\n"

_KEYWORDS = frozenset({
    "if", "then", "else", "elif", "fi", "for", "while", "until", "do", "done", "case", "esac", "in", "select",
    "function", "time", "coproc",
})  # fmt: skip

_STRANGE = (
    ("$", "an expansion ('$')"),
    ("`", "a command substitution"),
    ("\\", "a backslash"),
    ("\n", "more than one line"),
    ("*", "a file pattern ('*')"),
    ("?", "a file pattern ('?')"),
    ("[", "a file pattern ('[')"),
    ("{", "a brace"),
    ("~", "a home folder ('~')"),
    ("<", "an input from elsewhere ('<')"),
    (">", "an output to a file ('>')"),
    ("&", "a background job ('&')"),
    ("(", "a subshell ('(')"),
    ("#", "a comment"),
    ("!", "a negation ('!')"),
    ("'", "a quote that is not closed, or what cannot stand in it"),
    ('"', "a quote that is not closed, or what cannot stand in it"),
)


class SimpleCommand(Struct, frozen=True):
    """A program and its arguments, as passed to the system."""

    argv: tuple[str, ...]
    redirects: tuple[str, ...] = ()
    """Only `2>&1` and similar, output to `/dev/null`, and `<` with an input file."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files of `<` redirects."""
        return tuple(redirect[1:] for redirect in self.redirects if redirect.startswith("<"))

    @property
    def is_open(self) -> bool:
        """Return True if some of its words have patterns or variables."""
        return any(is_open(word) for word in (*self.argv, *self.inputs))

    def render(self) -> str:
        """Return the canonical form; parsing it gives the same argv."""
        return " ".join([quote_word(word) for word in self.argv])


class Pipeline(Struct, frozen=True):
    commands: tuple[SimpleCommand, ...]
    connector: Connector = ""
    """The connector before the pipeline."""


class ShellLine(Struct, frozen=True):
    pipelines: tuple[Pipeline, ...]

    @property
    def commands(self) -> tuple[SimpleCommand, ...]:
        return tuple(command for pipeline in self.pipelines for command in pipeline.commands)

    def render(self) -> str:
        """Return the canonical form of the line, with its redirects."""
        return "".join(_join(pipeline) for pipeline in self.pipelines)


class NotUnderstood(Struct, frozen=True):
    """A line whose effect can't be determined from its words, although it may be valid in bash."""

    reason: str
    """Completes the sentence "The line contains …"."""


def parse_line(text: str) -> ShellLine | NotUnderstood:
    """Parse a line. Never raises, and takes linear time."""
    line = text.strip(_EDGE)
    if len(line) > MAX_CHARACTERS:
        return NotUnderstood(f"more than {MAX_CHARACTERS} characters")
    return _Reader(line).read()


def canonical_command(text: str) -> str:
    """Return the canonical form of an understood line; any other text unchanged."""
    line = parse_line(text)
    return line.render() if isinstance(line, ShellLine) else text


def quote_word(word: str) -> str:
    """Quote a word for bash and `parse_line`: in single quotes if needed, but not patterns and variables."""
    if is_open(word):
        return _quote_open(split_marks(word))
    if _PLAIN_WORD.fullmatch(word):
        return word
    # Nothing escapes a single quote inside single quotes, so it stands between double quotes.
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _quote_open(pieces: list[str]) -> str:
    following = [*pieces[1:], ""]
    return "".join(
        show_mark(piece, after) if is_open(piece) else quote_word(piece)
        for piece, after in zip(pieces, following, strict=True)
    )


class _Reader:
    def __init__(self, line: str) -> None:
        self._line = line
        self._pipelines: list[Pipeline] = []
        self._connector: Connector = ""
        self._commands: list[SimpleCommand] = []
        self._words: list[str] = []
        self._redirects: list[str] = []
        self._wants_input = False
        self._count = 0

    def read(self) -> ShellLine | NotUnderstood:
        line, place, is_apart = self._line, 0, True
        while place < len(line):
            token = _TOKEN.match(line, place)
            # In `a2>&1` bash gives the digit to the word, so a redirect must stand apart.
            if token is None or (token.lastgroup in ("redirect", "input") and not is_apart):
                return _name_strange(line, place)
            if wrong := self._take(token):
                return NotUnderstood(wrong)
            is_apart = token.lastgroup in ("blank", "join", "input")
            place = token.end()
        return self._finish()

    def _take(self, token: re.Match[str]) -> str:
        if self._wants_input and token.lastgroup != "word":
            return "an input from nowhere ('<')"
        match token.lastgroup:
            case "word":
                return self._take_word(_unquote(token[0]))
            case "input":
                self._wants_input = True
            case "redirect":
                self._redirects.append("".join(token[0].split()))
            case "join":
                return self._join(token[0])
            case _:
                pass
        return ""

    def _take_word(self, word: str) -> str:
        # A pattern is expanded before the line runs, when only the value of a leading `$PWD` is known.
        if has_pattern(word) and has_variable(word) and word.count(VARIABLE) != word.startswith(FOLDER):
            return "a file pattern with a variable"
        if not self._wants_input:
            self._words.append(word)
            return ""
        self._wants_input = False
        if has_pattern(word) or not word:
            return "an input by a file pattern"
        self._redirects.append(f"<{word}")
        return ""

    def _join(self, operator: str) -> str:
        if wrong := self._end_command():
            return wrong
        if operator == "|":
            return ""
        self._end_pipeline()
        self._connector = "&&" if operator == "&&" else "||" if operator == "||" else ";"
        return ""

    def _finish(self) -> ShellLine | NotUnderstood:
        is_open = bool(self._words or self._redirects or self._commands) or self._connector in ("&&", "||")
        if is_open or not self._pipelines:
            if wrong := self._end_command():
                return NotUnderstood(wrong)
            self._end_pipeline()
        return ShellLine(tuple(self._pipelines))

    def _end_command(self) -> str:
        if self._wants_input:
            return "an input from nowhere ('<')"
        if not self._words:
            return "no command where one must stand"
        program = self._words[0]
        if program in _KEYWORDS:
            return f"the keyword {program!r}"
        if not _PROGRAM.fullmatch(program):
            return f"{program[:80]!r} as the name of a program"
        self._count += 1
        if self._count > MAX_COMMANDS:
            return f"more than {MAX_COMMANDS} commands"
        self._commands.append(SimpleCommand(tuple(self._words), tuple(self._redirects)))
        self._words, self._redirects = [], []
        return ""

    def _end_pipeline(self) -> None:
        self._pipelines.append(Pipeline(tuple(self._commands), self._connector))
        self._commands = []


def _unquote(token: str) -> str:
    if _PLAIN_WORD.fullmatch(token):
        return token
    # bash would look for a file named like the whole option; the author of `--include=*.py` means the characters.
    is_option = token.startswith("-")
    return "".join(_read_piece(piece, is_option=is_option) for piece in _PIECE.findall(token))


def _read_piece(piece: str, *, is_option: bool) -> str:
    match piece[0]:
        case "'":
            return piece[1:-1]
        case '"':
            return mark_variables(piece[1:-1])
        case "$":
            return mark_variables(piece)
        case "*" | "?" | "[" if not is_option and piece != "[":
            return mark_patterns(piece)
        case _:
            return piece


def _join(pipeline: Pipeline) -> str:
    before = {"": "", ";": "; ", "&&": " && ", "||": " || "}[pipeline.connector]
    return before + " | ".join(
        " ".join([command.render(), *map(_render_redirect, command.redirects)]) for command in pipeline.commands
    )


def _render_redirect(redirect: str) -> str:
    return f"< {quote_word(redirect[1:])}" if redirect.startswith("<") else redirect


def _name_strange(line: str, place: int) -> NotUnderstood:
    """Name the first unsupported construct from this place on."""
    rest = line[place:]
    for index, character in enumerate(rest):
        if character in "'\"" and character in rest[index + 1 :]:
            # The quote is closed, so the unsupported character is inside it.
            continue
        if not character.isascii():
            return NotUnderstood(f"the character {character!r}, which is not ASCII")
        if character < " " and character not in "\t\n":
            return NotUnderstood("a control character")
        for strange, name in _STRANGE:
            if character == strange:
                return NotUnderstood(name)
    return NotUnderstood(f"{rest[:80]!r}, which is not known here")


XARGS, FIND = "xargs", "find"
_VALUED = frozenset({"-n", "-L", "-P", "--max-args", "--max-procs"})
"""Options with a number, attached or as the next word. Not `--max-lines`: the word after it is the program."""
_NUMBER = re.compile(r"=?\d+")
_XARGS_FLAGS = frozenset({"-r", "-t", "-x", "--no-run-if-empty", "--verbose", "--exit"})
_ZERO = frozenset({"-0", "--null"})
_PRINTS = ("-print", "-print0")
_NOT_A_LIST = frozenset({"-printf", "-ls", "-L", "-H", "-follow", "-quit"})
_OR = frozenset({"-o", "-or", ","})
_READS_ARGUMENTS = frozenset({"@", "+"})
"""To some programs, a name with this prefix is a file of arguments or a command."""
_FILES = ("./a", "./b")
"""Sample file names. There are two because a second argument may have another meaning."""


class XargsCall(Struct, frozen=True):
    options: tuple[str, ...]
    command: tuple[str, ...]
    is_zero: bool
    replaced: str = ""
    """The placeholder for a name (`-I`); without one, names are appended."""

    @property
    def over_files(self) -> tuple[str, ...]:
        """The command with sample file names."""
        if not self.replaced:
            return (*self.command, *_FILES)
        return tuple(_FILES[0] if word == self.replaced else word for word in self.command)


def read_xargs(argv: Sequence[str]) -> XargsCall | None:
    """Parse an `xargs` command; None for an unknown option, or if a name would become a part of a word."""
    if argv[0] != XARGS:
        return None
    rest, options, replaced = list(argv[1:]), list[str](), ""
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        name = word[:2] if not word.startswith("--") else word.partition("=")[0]
        if name == "-I":
            replaced = word[2:] or (rest.pop(0) if rest else "")
        elif name in _VALUED:
            value = word[len(name) :] or (rest.pop(0) if rest else "")
            if not _NUMBER.fullmatch(value):
                return None
            options += [word] if len(word) > len(name) else [word, value]
        elif word in _XARGS_FLAGS or word in _ZERO:
            options.append(word)
        else:
            return None
    if not rest or any(replaced and replaced in word and replaced != word for word in rest) or rest[0] == replaced:
        return None
    return XargsCall(tuple(options), tuple(rest), is_zero=not _ZERO.isdisjoint(options), replaced=replaced)


def is_name_list(argv: Sequence[str], *, is_zero: bool) -> bool:
    """Return True for a `find` command that prints only file names, each with the expected separator."""
    if argv[0] != FIND or not _NOT_A_LIST.isdisjoint(argv) or _READS_ARGUMENTS.intersection(word[:1] for word in argv):
        return False
    return "-print" not in argv if is_zero and "-print0" in argv else not is_zero and "-print0" not in argv


def pair_commands(commands: Sequence[SimpleCommand]) -> tuple[SimpleCommand, ...]:
    """Rewrite pairs of `find` and `xargs` so that names are separated by zero bytes."""
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
        # The tests that are added bind more strongly than `-o`.
        tests = ["(", *tests, ")"]
    return (*paths, *tests, "!", "-type", "l", "-print0")
