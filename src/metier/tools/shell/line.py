"""A line for the shell, parsed by a small grammar: words, pipes, `&&`, `||`, `;`, files as input. Pure text.

What it accepts means the same to bash, word for word. File patterns and a few known variables are kept as marks in a
word; unlike bash, what a variable holds stays one word, and a pattern in an option is literal. A mark is a character
that no line contains, since lines are ASCII. So a word stays one text, and `*` in quotes is told from `*` as a
pattern. Everything else (other expansions, backslashes, here-documents, subshells, files as output, assignments,
keywords, characters beyond ASCII) is not understood, and says so.

`find … | xargs …` is a command over files of the workspace. Names with blanks or newlines would be torn apart, and a
link leads elsewhere; so the pair is run with `! -type l -print0` and `-0`.
"""

import os
import re
from collections.abc import Mapping, Sequence
from glob import escape, glob
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

ANY, ONE, OPEN, NOT, CLOSE = "\ue000", "\ue001", "\ue002", "\ue003", "\ue004"
"""`*`, `?`, `[`, `[!` and `]` where they stand for names of files."""
VARIABLE, END = "\ue010", "\ue011"
"""Around the name of a variable."""
FOLDER = f"{VARIABLE}PWD{END}"

KNOWN_VARIABLES = ("PWD", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PATH", "TERM", "TMPDIR")
"""A command sees them as the agent was started with them: nothing that a model wrote is in them."""
MAX_NAMES = 5_000
"""A pattern that stands for more files than this stays as it is."""

_PATTERNS = {"*": ANY, "?": ONE, "[!": NOT, "[^": NOT, "[": OPEN, "]": CLOSE}
_SHOWN = {ANY: "*", ONE: "?", NOT: "[!", OPEN: "[", CLOSE: "]"}
_MARKS = re.compile(f"([{ANY}-{CLOSE}]|{VARIABLE}[A-Z]+{END})")
_PATTERN_MARKS = frozenset(_SHOWN)
_WRITTEN_VARIABLE = re.compile(r"\$\{?([A-Z]+)\}?")


def mark_patterns(text: str) -> str:
    """A piece of an unquoted word in which `*`, `?` and brackets are patterns."""
    for letter, mark in _PATTERNS.items():
        text = text.replace(letter, mark)
    return text


def mark_variables(text: str) -> str:
    """A piece of a word in which every `$NAME` is a known variable."""
    return _WRITTEN_VARIABLE.sub(lambda found: f"{VARIABLE}{found[1]}{END}", text)


def is_open(word: str) -> bool:
    """It has a mark: what it means is known when it is run."""
    return _MARKS.search(word) is not None


def has_pattern(word: str) -> bool:
    return not _PATTERN_MARKS.isdisjoint(word)


def has_variable(word: str) -> bool:
    return VARIABLE in word


def split_marks(word: str) -> list[str]:
    """Literal texts and marks, in order; a variable is one piece with its name."""
    return [piece for piece in _MARKS.split(word) if piece]


def show_mark(piece: str, following: str = "") -> str:
    """A mark as it is written in a line."""
    if piece[0] != VARIABLE:
        return _SHOWN[piece]
    name = piece[1:-1]
    is_joined = bool(following) and (following[0].isalnum() or following[0] in f"_{OPEN}{NOT}")
    return f"${{{name}}}" if is_joined else f"${name}"


def show_word(word: str) -> str:
    """For people and for rules that read words: with `*` and `$NAME`, whether they stood in quotes or not."""
    if not is_open(word):
        return word
    return "".join(show_mark(piece) if _MARKS.fullmatch(piece) else piece for piece in split_marks(word))


def fill_variables(word: str, values: Mapping[str, str]) -> str:
    """With the value of each variable that has one here; nothing else changes."""
    for name, value in values.items():
        word = word.replace(f"{VARIABLE}{name}{END}", value)
    return word


def expand_pattern(word: str, folder: str) -> list[str]:
    """The files that the word stands for, or the word as it is written where there are none. Looks at the disk.

    A name that begins with a dash comes with `./` in front, so that no file is taken for an option.
    """
    pieces = split_marks(fill_variables(word, {"PWD": folder}))
    pattern = "".join(_SHOWN.get(piece) or escape(piece) for piece in pieces)
    found = sorted(glob(pattern, root_dir=folder))  # noqa: PTH207  names as they were written, `./` and all
    if not found or len(found) > MAX_NAMES:
        return [show_word(word)]
    return [f".{os.sep}{name}" if name.startswith("-") else name for name in found]


type Connector = Literal["", "&&", "||", ";"]

MAX_CHARACTERS = 16_384
MAX_COMMANDS = 50

_PLAIN = (
    r"(?:[A-Za-z0-9_./,:@%+=^-]|(?<=[A-Za-z0-9_./,:@%+=^-])\#|(?<=[A-Za-z0-9_^~])~|(?<=@)\{[A-Za-z0-9-]+\}|\{\}"
    # A bracket that stands alone is the command `[`, or the end of it.
    r"|(?<![^ \t;|&])[\[\]](?=[ \t;|&]|\Z))"
)
_PATTERN = r"(?:[*?]|\[[!^]?[A-Za-z0-9_.]+(?:-[A-Za-z0-9_.]+)?\])"
_NAMES = "|".join(KNOWN_VARIABLES)
_VARIABLE = rf"(?:\$(?:{_NAMES})(?![A-Za-z0-9_\[])|\$\{{(?:{_NAMES})\}})"
_SINGLE = r"'[\t\n\x20-\x26\x28-\x7e]*'"
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
    """A program and its arguments, as they are handed to the system."""

    argv: tuple[str, ...]
    redirects: tuple[str, ...] = ()
    """Only `2>&1` and its like, outputs that are thrown away, and `<` with a file that is read."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Files that it reads as its input."""
        return tuple(redirect[1:] for redirect in self.redirects if redirect.startswith("<"))

    @property
    def is_open(self) -> bool:
        """Some of its words are patterns or variables."""
        return any(is_open(word) for word in (*self.argv, *self.inputs))

    def render(self) -> str:
        """The one spelling; reading it gives the same argv."""
        return " ".join([quote_word(word) for word in self.argv])


class Pipeline(Struct, frozen=True):
    commands: tuple[SimpleCommand, ...]
    connector: Connector = ""
    """Connector before the command."""


class ShellLine(Struct, frozen=True):
    pipelines: tuple[Pipeline, ...]

    @property
    def commands(self) -> tuple[SimpleCommand, ...]:
        return tuple(command for pipeline in self.pipelines for command in pipeline.commands)

    def render(self) -> str:
        """The one spelling of the whole line, with its redirections."""
        return "".join(_join(pipeline) for pipeline in self.pipelines)


class NotUnderstood(Struct, frozen=True):
    """The line may be good bash; it is not one whose effect can be told from its words."""

    reason: str
    """Completes "It contains …"."""


def parse_line(text: str) -> ShellLine | NotUnderstood:
    """Read one line. Never raises, and takes time linear in the text."""
    line = text.strip(_EDGE)
    if len(line) > MAX_CHARACTERS:
        return NotUnderstood(f"more than {MAX_CHARACTERS} characters")
    return _Reader(line).read()


def canonical_command(text: str) -> str:
    """The one spelling of what is understood; everything else as it is."""
    line = parse_line(text)
    return line.render() if isinstance(line, ShellLine) else text


def quote_word(word: str) -> str:
    """For bash and for `parse_line`: single quotes where the word needs any, none around patterns and variables."""
    if is_open(word):
        return _quote_open(split_marks(word))
    if _PLAIN_WORD.fullmatch(word):
        return word
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
    # bash would look for a file of that name, option and all: who writes `--include=*.py` means the letters.
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
    """Name the first unsupported character from here on."""
    rest = line[place:]
    for index, character in enumerate(rest):
        if character in "'\"" and character in rest[index + 1 :]:
            # It is closed: what cannot are in it comes next.
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
"""With a number, attached or as the next word. `--max-lines` is not among them: a word after it is the program."""
_NUMBER = re.compile(r"=?\d+")
_XARGS_FLAGS = frozenset({"-r", "-t", "-x", "--no-run-if-empty", "--verbose", "--exit"})
_ZERO = frozenset({"-0", "--null"})
_PRINTS = ("-print", "-print0")
_NOT_A_LIST = frozenset({"-printf", "-ls", "-L", "-H", "-follow", "-quit"})
_OR = frozenset({"-o", "-or", ","})
_READS_ARGUMENTS = frozenset({"@", "+"})
"""A name that begins like this is a file of arguments or a command to some programs."""
_FILES = ("./a", "./b")
"""Stand for whatever names come: two, because a second one may mean something else."""


class XargsCall(Struct, frozen=True):
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
    """It prints names of files and nothing else, each with the end that is expected."""
    if argv[0] != FIND or not _NOT_A_LIST.isdisjoint(argv) or _READS_ARGUMENTS.intersection(word[:1] for word in argv):
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
