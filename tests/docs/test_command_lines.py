"""Check that every `agent …` on a page or in a message is an existing command with existing options."""

import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest
from click import Command

from metier.cli.root import COMMANDS, load_command

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "demos").rglob("*.md")})
SOURCES = [path for path in sorted((ROOT / "src").rglob("*.py")) if "bundled" not in path.parts]
AT_THE_ROOT = {"--version", "--verbose", "--help", "--check", "--debug", "--server"}
INLINE = re.compile(r"`(?:[A-Z_]+=\S+ )*(agent(?: [^`]+)?)`")
TYPED = re.compile(r"^\$ (.*(?:\\\n.*)*)", re.MULTILINE)
DEV = re.compile(r"\./dev ([a-z]+(?: --[a-z]+)?)")
OF_A_COMMAND = re.compile(r"[a-z][a-z-]*")


class Shown(NamedTuple):
    where: str
    words: tuple[str, ...]


def find_typed(path: Path) -> Iterator[Shown]:
    """Yield the words after each `agent` of lines that start with `$`, split like a shell does."""
    for match in TYPED.finditer(path.read_text("utf-8")):
        lexer = shlex.shlex(match[1].replace("\\\n", " "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            # The quotes close on a later line; the command comes before them.
            words = match[1].split()
        yield from _cut(words, path)


def find_inline(path: Path) -> Iterator[Shown]:
    for match in INLINE.finditer(path.read_text("utf-8")):
        yield from _cut(match[1].split(), path)


def _cut(words: list[str], path: Path) -> Iterator[Shown]:
    for index, word in enumerate(words):
        is_first = index == 0 or words[index - 1] in ("|", "&&", ";", "||") or re.match(r"[A-Z_]+=", words[index - 1])
        if word == "agent" and is_first:
            rest = words[index + 1 :]
            ends = [place for place, each in enumerate(rest) if set(each) <= set("|&;<>") and each]
            yield Shown(path.relative_to(ROOT).as_posix(), tuple(rest[: ends[0]] if ends else rest))


@cache
def get_command(name: str) -> Command:
    return load_command(name)


def find_fault(words: tuple[str, ...]) -> str:
    """Return the problem of a command line, or an empty string. Placeholders are not checked."""
    if words[:1] == ("-p",):
        words = ("run", *words[1:])
    if words[:1] == ("--server",) and len(words) > 2:
        words = words[2:]
    if not words or not OF_A_COMMAND.fullmatch(words[0]):
        return _find_strange_option(words, AT_THE_ROOT)
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]!r}"
    command, rest = get_command(words[0]), words[1:]
    children: dict[str, Command] = getattr(command, "commands", {})
    default = children.get(getattr(command, "default", ""))
    if children and rest and (rest[0] in children or (default is None and OF_A_COMMAND.fullmatch(rest[0]))):
        if rest[0] not in children:
            return f"{words[0]!r} has no command {rest[0]!r}"
        command, rest = children[rest[0]], rest[1:]
    else:
        command = default or command
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return _find_strange_option(rest, known | {"--help", "--debug"})


def _find_strange_option(words: tuple[str, ...], known: set[str]) -> str:
    ours = takewhile(lambda word: word != "--", words)
    options = [re.sub(r"\W+$", "", word.partition("=")[0]) for word in ours if re.match(r"--?[a-z]", word)]
    return next((f"there is no option {option!r}" for option in options if option not in known), "")


@pytest.mark.parametrize(
    ("find", "paths", "fewest"), [(find_typed, PAGES, 100), (find_inline, PAGES, 100), (find_inline, SOURCES, 50)]
)
def test_shown_command_lines_exist(find: Callable[[Path], Iterator[Shown]], paths: list[Path], fewest: int) -> None:
    shown = [each for path in paths for each in find(path)]

    faults = [f"{each.where}: agent {' '.join(each.words)}: {why}" for each in shown if (why := find_fault(each.words))]

    assert faults == []
    assert len(shown) >= fewest


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("skill destroy notes", "'skill' has no command 'destroy'"),
        ("launch", "there is no command 'launch'"),
        ("runs list --jsn", "there is no option '--jsn'"),
        ("--verison", "there is no option '--verison'"),
        ("runs show <run> --json", ""),
    ],
)
def test_an_invalid_command_line_is_detected(line: str, fault: str) -> None:
    assert find_fault(tuple(line.split())) == fault


def test_dev_commands_named_on_pages_exist() -> None:
    usage = (ROOT / "dev").read_text("utf-8").partition("usage: ./dev COMMAND")[2].partition("\nTEXT\n")[0]
    known = {line.split()[0] for line in usage.splitlines() if line.strip()} | set(re.findall(r"--[a-z]+", usage))

    named = {word for path in PAGES for line in DEV.findall(path.read_text("utf-8")) for word in line.split()}

    assert named - known == set()
    assert {"demo", "test", "check", "--serve"} <= named
