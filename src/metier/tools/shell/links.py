"""The words of a line that lead elsewhere, written as where they lead. Looks at the disk, runs nothing.

Tables and rules read words: `cat docs/key` is harmless by its words, unless `docs` is a link to another folder; so is
`git status`, unless it runs in a repository within the workspace, whose own configuration names programs.
"""

import os
from collections.abc import Sequence
from dataclasses import replace

from metier.tools.shell.allowlist import walk_commands
from metier.tools.shell.harmless import CommandFolders, is_beneath
from metier.tools.shell.line import Pipeline, ShellLine, SimpleCommand
from metier.tools.shell.words import fill_variables

_GIT = "git"
_FOLLOWS_ENTRIES = "diff"
"""Given two folders, it shows what the links in them lead to; others that do so are asked about."""


def follow_links(line: ShellLine, place: CommandFolders) -> ShellLine:
    """The same line where no word leads elsewhere. `place` has no links on its way."""
    followed = [_follow(command, where) for command, where in walk_commands(line, place)]
    pipelines: list[Pipeline] = []
    for pipeline in line.pipelines:
        commands, followed = followed[: len(pipeline.commands)], followed[len(pipeline.commands) :]
        pipelines.append(replace(pipeline, commands=tuple(commands)))
    return replace(line, pipelines=tuple(pipelines))


def _follow(command: SimpleCommand, place: CommandFolders) -> SimpleCommand:
    folders = place.folders
    program, *words = command.argv
    followed = [_follow_word(word, folders) for word in words]
    redirects = tuple(f"<{_follow_word(each[1:], folders)}" if each[0] == "<" else each for each in command.redirects)
    if program == _FOLLOWS_ENTRIES:
        followed = [each for word in followed for each in (word, *_follow_entries(word, folders))]
    if program.rpartition("/")[2] == _GIT and (nested := find_nested_repository(place)):
        followed = ["-C", nested, *followed]
    return replace(command, argv=(program, *followed), redirects=redirects)


def find_nested_repository(place: CommandFolders) -> str:
    """The repository below the root that git would work on in one of the folders; empty where there is none."""
    for folder in place.folders:
        path = folder
        while path != place.root and is_beneath(path, place.root):
            if os.path.lexists(os.path.join(path, ".git")):  # noqa: PTH118  as text, like the rest
                return path
            path = os.path.dirname(path)  # noqa: PTH120
    return ""


def _follow_entries(word: str, folders: Sequence[str]) -> list[str]:
    """A folder also stands for every entry of it that is a link: each may lead elsewhere."""
    leading: set[str] = set()
    for folder in folders:
        path = os.path.join(folder, word)  # noqa: PTH118  as above
        try:
            with os.scandir(path) as entries:
                leading |= {os.path.realpath(entry.path) for entry in entries if entry.is_symlink()}
        except OSError:
            continue
    return sorted(leading)


def _follow_word(word: str, folders: Sequence[str]) -> str:
    """Also the value of an option: `--file=link/x`."""
    option, equals, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
    for folder in folders:
        filled = fill_variables(value, {"PWD": folder})
        path = os.path.join(folder, filled)  # noqa: PTH118  as text: a `..` behind a link means what the system takes it for
        # What is not there yet may be when the line runs; where it would be can lead elsewhere too.
        if not value or not (os.path.lexists(path) or os.path.isdir(os.path.dirname(path))):  # noqa: PTH112, PTH120
            continue
        real = os.path.realpath(path)
        if real != os.path.normpath(path):
            return f"{option}{equals}{real}"
    return word
