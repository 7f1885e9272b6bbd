"""A line for the shell, read by a grammar that knows little: words, pipes, `&&`, `||`, `;`, files as input. Pure text.

What it accepts means the same to bash, word for word. File patterns and a few known variables are kept as marks in a
word (`words`); unlike bash, what a variable holds stays one word, and a pattern in an option is literal.
Everything else (other expansions, backslashes, here-documents, subshells, files as output, assignments, keywords,
characters beyond ASCII) is not understood, and says so.
"""

import re
from typing import Literal

from metier.dataclass import dataclass
from metier.lazy_regex import lazy_regex
from metier.tools.shell.words import (
    FOLDER,
    KNOWN_VARIABLES,
    VARIABLE,
    has_pattern,
    has_variable,
    is_open,
    mark_patterns,
    mark_variables,
    show_mark,
    split_marks,
)

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
_TOKEN = lazy_regex(
    rf"(?P<blank>[ \t]+)"
    rf"|(?P<join>&&|\|\||;|\|(?!&))"
    rf"|(?P<redirect>(?:[12]?>&[12]|[12&]?>[ \t]*/dev/null){_END})"
    rf"|(?P<input><(?![<>&(])[ \t]*)"
    rf"|(?P<word>(?:{_PLAIN}|{_SINGLE}|{_DOUBLE}|{_PATTERN}|{_VARIABLE})+){_END}"
)
_PIECE = lazy_regex(rf"{_SINGLE}|{_DOUBLE}|{_VARIABLE}|{_PATTERN}|{_PLAIN}+")
_PLAIN_WORD = lazy_regex(rf"{_PLAIN}+")
_PROGRAM = lazy_regex(r"[A-Za-z0-9_./+-]+|\[")
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


@dataclass(frozen=True, slots=True)
class SimpleCommand:
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


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[SimpleCommand, ...]
    connector: Connector = ""
    """What stands before it."""


@dataclass(frozen=True, slots=True)
class ShellLine:
    pipelines: tuple[Pipeline, ...]

    @property
    def commands(self) -> tuple[SimpleCommand, ...]:
        return tuple(command for pipeline in self.pipelines for command in pipeline.commands)

    def render(self) -> str:
        """The one spelling of the whole line, with its redirections."""
        return "".join(_join(pipeline) for pipeline in self.pipelines)


@dataclass(frozen=True, slots=True)
class NotUnderstood:
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
    """What stands in the way, in words: the first strange character from here on."""
    rest = line[place:]
    for index, character in enumerate(rest):
        if character in "'\"" and character in rest[index + 1 :]:
            # It is closed: what cannot stand in it comes next.
            continue
        if not character.isascii():
            return NotUnderstood(f"the character {character!r}, which is not ASCII")
        if character < " " and character not in "\t\n":
            return NotUnderstood("a control character")
        for strange, name in _STRANGE:
            if character == strange:
                return NotUnderstood(name)
    return NotUnderstood(f"{rest[:80]!r}, which is not known here")
