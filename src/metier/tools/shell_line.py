"""A line for the shell, read by a grammar that knows little: literal words, pipes, `&&`, `||` and `;`. Pure text.

What it accepts means the same to bash, word for word. Everything else (expansion, globs, backslashes, here-documents,
subshells, files as input or output, assignments, keywords, characters beyond ASCII) is not understood, and says so.
"""

import re
from dataclasses import dataclass
from typing import Literal

type Connector = Literal["", "&&", "||", ";"]

MAX_CHARACTERS = 16_384
MAX_COMMANDS = 50

_PLAIN = r"(?:[A-Za-z0-9_./,:@%+=^-]|(?<=[A-Za-z0-9_./,:@%+=^-])\#|(?<=[A-Za-z0-9_^~])~|(?<=@)\{[A-Za-z0-9-]+\})"
_SINGLE = r"'[\t\n\x20-\x26\x28-\x7e]*'"
_DOUBLE = r'"[\t\n\x20\x21\x23\x25-\x5b\x5d-\x5f\x61-\x7e]*"'
_END = r"(?=[ \t;|&]|\Z)"
_TOKEN = re.compile(
    rf"(?P<blank>[ \t]+)"
    rf"|(?P<join>&&|\|\||;|\|(?!&))"
    rf"|(?P<redirect>(?:[12]?>&[12]|[12&]?>[ \t]*/dev/null){_END})"
    rf"|(?P<word>(?:{_PLAIN}|{_SINGLE}|{_DOUBLE})+){_END}"
)
_PIECE = re.compile(rf"{_SINGLE}|{_DOUBLE}|{_PLAIN}+")
_PLAIN_WORD = re.compile(rf"{_PLAIN}+")
_PROGRAM = re.compile(r"[A-Za-z0-9_./+-]+")
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
    """Only `2>&1` and its like, and outputs that are thrown away."""

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
    """For bash and for `parse_line`: single quotes where the word needs any."""
    if _PLAIN_WORD.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


class _Reader:
    def __init__(self, line: str) -> None:
        self._line = line
        self._pipelines: list[Pipeline] = []
        self._connector: Connector = ""
        self._commands: list[SimpleCommand] = []
        self._words: list[str] = []
        self._redirects: list[str] = []
        self._count = 0

    def read(self) -> ShellLine | NotUnderstood:
        line, place, is_apart = self._line, 0, True
        while place < len(line):
            token = _TOKEN.match(line, place)
            if token is None or (token.lastgroup == "redirect" and not is_apart):
                return _name_strange(line, place)
            if wrong := self._take(token):
                return NotUnderstood(wrong)
            is_apart = token.lastgroup in ("blank", "join")
            place = token.end()
        return self._finish()

    def _take(self, token: re.Match[str]) -> str:
        match token.lastgroup:
            case "word":
                self._words.append(_unquote(token[0]))
            case "redirect":
                self._redirects.append("".join(token[0].split()))
            case "join":
                return self._join(token[0])
            case _:
                pass
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
    if "'" not in token and '"' not in token:
        return token
    return "".join(piece[1:-1] if piece[0] in "'\"" else piece for piece in _PIECE.findall(token))


def _join(pipeline: Pipeline) -> str:
    before = {"": "", ";": "; ", "&&": " && ", "||": " || "}[pipeline.connector]
    return before + " | ".join(" ".join([command.render(), *command.redirects]) for command in pipeline.commands)


def _name_strange(line: str, place: int) -> NotUnderstood:
    """What stands in the way, in words: the first strange character from here on."""
    rest = line[place:]
    for character in rest:
        if not character.isascii():
            return NotUnderstood(f"the character {character!r}, which is not ASCII")
        if character < " " and character not in "\t\n":
            return NotUnderstood("a control character")
        for strange, name in _STRANGE:
            if character == strange:
                return NotUnderstood(name)
    return NotUnderstood(f"{rest[:80]!r}, which is not known here")
