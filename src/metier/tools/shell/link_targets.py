"""Links in the words of a line, replaced by their targets. Reads the disk, runs nothing.

Tables and rules only see words. `cat docs/key` looks harmless, but `docs` may be a link to another folder. `git status`
looks harmless, but a repository inside the workspace may name programs in its configuration. `ruff --version` looks
harmless, but a confined program may have written the first `ruff` on PATH.
"""

import os
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from metier.tools.shell.allowlist import CD, SHELL_BUILTINS, walk_commands
from metier.tools.shell.harmless import CommandFolders, is_beneath, is_unclear, is_vouched
from metier.tools.shell.line import Pipeline, ShellLine, SimpleCommand, fill_variables, read_xargs

_GIT = "git"
_STARTS = {"zcat": ("gzip",), "egrep": ("grep",), "fgrep": ("grep",)}
"""Programs that are shell scripts on many systems, and the programs that they start by PATH."""
_QUIET_GIT = frozenset({
    "blame", "branch", "cat-file", "config", "for-each-ref", "log", "ls-files", "ls-tree", "merge-base", "name-rev",
    "reflog", "remote", "rev-list", "rev-parse", "shortlog", "show", "show-ref", "tag", "worktree",
})  # fmt: skip
"""Git commands that do not enter the working trees of submodules."""
_IGNORE = re.compile(rb"(?i)\bignore\b")
_HARMLESS_IGNORE = re.compile(rb"(?im)^[ \t]*ignore[ \t]*=[ \t]*(?:dirty|all)[ \t\r]*$")
# The mode of a submodule in Git's index.
_GITLINK_MODE = (0o160000).to_bytes(4, "big")
_ENV = re.compile(rb"#![ \t]*/(?:usr/)?bin/env[ \t]+(?:-S[ \t]+)?([A-Za-z0-9_.+-]+)")
"""The first line of a script whose interpreter is searched in PATH."""
_FOLLOWS_ENTRIES = "diff"
"""Given two folders, it reads the targets of links in them. Other programs that do so need approval."""


class ProgramSearch(Struct, frozen=True):
    """Looks up programs by name, and knows the folders in which a confined program could have placed one."""

    path: str
    writable: tuple[str, ...]
    """Folders, with links resolved."""

    def get_planted(self, argv: Sequence[str], place: CommandFolders) -> str:
        """The path of a program in a writable folder whose name a table vouches for; empty if there is none.

        Programs that rules have to name (`pytest`) may be in the workspace. They are reported only if they shadow
        another program and are known to run no code of the caller, such as `git`.
        """
        name = argv[0]
        if "/" in name or name == CD or name in SHELL_BUILTINS:
            return ""
        found = self._list_files(name)
        if not found:
            return ""
        if not self._is_writable(found[0]):
            started = self._get_started(name, found[0])
            return started if started and is_vouched(argv, place) else ""
        is_shadow = any(not self._is_writable(file) for file in found[1:])
        return found[0] if is_vouched(argv, place) or (is_shadow and not is_unclear(argv)) else ""

    def _get_started(self, name: str, file: str) -> str:
        """Return the path of a program in a writable folder that this script would start; empty if there is none."""
        names = [*_STARTS.get(name, ()), *_read_interpreter(file)]
        starts = (self._list_files(each)[:1] for each in names)
        return next((path for paths in starts for path in paths if self._is_writable(path)), "")

    def _list_files(self, name: str) -> list[str]:
        """List all programs of this name, in the order of PATH."""
        files = [os.path.join(folder, name) for folder in self.path.split(os.pathsep) if folder]  # noqa: PTH118
        return [file for file in files if os.path.isfile(file) and os.access(file, os.X_OK)]  # noqa: PTH113

    def _is_writable(self, file: str) -> bool:
        return any(is_beneath(path, root) for path in (file, os.path.realpath(file)) for root in self.writable)


def _read_interpreter(file: str) -> list[str]:
    try:
        with open(file, "rb") as stream:  # noqa: PTH123  a text, like the rest
            found = _ENV.match(stream.readline(200))
    except OSError:
        return []
    return [found[1].decode()] if found else []


def follow_links(line: ShellLine, place: CommandFolders, programs: ProgramSearch | None = None) -> ShellLine:
    """Replace links in the line with their targets. Without any, the line stays equal. `place` must not have links."""
    followed = [_follow(command, where, programs) for command, where in walk_commands(line, place)]
    pipelines: list[Pipeline] = []
    for pipeline in line.pipelines:
        commands, followed = followed[: len(pipeline.commands)], followed[len(pipeline.commands) :]
        pipelines.append(replace(pipeline, commands=tuple(commands)))
    return replace(line, pipelines=tuple(pipelines))


def _follow(command: SimpleCommand, place: CommandFolders, programs: ProgramSearch | None) -> SimpleCommand:
    folders = place.folders
    program, *words = command.argv
    followed = [_follow_word(word, folders) for word in words]
    redirects = tuple(f"<{_follow_word(each[1:], folders)}" if each[0] == "<" else each for each in command.redirects)
    if program == _FOLLOWS_ENTRIES:
        followed = [each for word in followed for each in (word, *_follow_entries(word, folders))]
    if program.rpartition("/")[2] == _GIT:
        followed = [*_list_git_options(words, place), *followed]
    if programs is None:
        return replace(command, argv=(program, *followed), redirects=redirects)
    call = read_xargs(command.argv)
    if call is not None and (planted := programs.get_planted(call.over_files, place)):
        followed[-len(call.command)] = planted
    return replace(command, argv=(programs.get_planted(command.argv, place) or program, *followed), redirects=redirects)


def _list_git_options(words: Sequence[str], place: CommandFolders) -> tuple[str, ...]:
    """Return git options that express what the disk adds to this command. No rule or table allows them."""
    if nested := get_nested_repository(place):
        return ("-C", nested)
    command = next((word for word in words if not word.startswith("-")), "")
    if command in _QUIET_GIT or not any(_enters_submodules(folder) for folder in place.folders):
        return ()
    return ("-c", "submodule.ignore=none")


def _enters_submodules(folder: str) -> bool:
    """Return True if `.gitmodules` overrides `diff.ignoreSubmodules`: git then runs programs that a submodule names."""
    top = folder
    while not os.path.lexists(os.path.join(top, ".git")):  # noqa: PTH118  as text, like the rest
        if top == (top := os.path.dirname(top)):  # noqa: PTH120
            return False
    modules = os.path.join(top, ".gitmodules")  # noqa: PTH118
    if not os.path.lexists(modules):
        # Git then reads `.gitmodules` from the index, so only a repository without submodules is known to be safe.
        return _has_submodules(os.path.join(top, ".git"))  # noqa: PTH118
    try:
        with open(modules, "rb") as stream:  # noqa: PTH123
            text = stream.read()
    except OSError:
        return True
    return _IGNORE.search(_HARMLESS_IGNORE.sub(b"", text)) is not None


def _has_submodules(git: str) -> bool:
    """Return True if an index entry has the mode of a submodule, or if the repository cannot be read."""
    try:
        if os.path.isfile(git):  # noqa: PTH113
            with open(git, encoding="utf-8") as stream:  # noqa: PTH123
                git = os.path.join(os.path.dirname(git), stream.read().removeprefix("gitdir:").strip())  # noqa: PTH118, PTH120
        # A split index keeps most of its entries in a second file.
        indexes = [
            entry.path for entry in os.scandir(git) if entry.name == "index" or entry.name.startswith("sharedindex.")
        ]
        for index in indexes:
            with open(index, "rb") as stream:  # noqa: PTH123
                if _GITLINK_MODE in stream.read():
                    return True
    except (OSError, ValueError):
        return True
    return False


def get_nested_repository(place: CommandFolders) -> str:
    """Return the nested repository that git would use in one of the folders; empty if there is none."""
    for folder in place.folders:
        path = folder
        while path != place.root and is_beneath(path, place.root):
            if os.path.lexists(os.path.join(path, ".git")):  # noqa: PTH118  as text, like the rest
                return path
            path = os.path.dirname(path)  # noqa: PTH120
    return ""


def _follow_entries(word: str, folders: Sequence[str]) -> list[str]:
    """List the targets of all links in a folder, because the program follows them."""
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
    """Resolve the links of a word, or of an option's value (`--file=link/x`)."""
    option, equals, value = word.rpartition("=") if word.startswith("-") else ("", "", word)
    for folder in folders:
        filled = fill_variables(value, {"PWD": folder})
        path = os.path.join(folder, filled)  # noqa: PTH118  as text: the system resolves `..` after a link
        # A missing file may exist when the line runs, and its folder may be a link too.
        if not value or not (os.path.lexists(path) or os.path.isdir(os.path.dirname(path))):  # noqa: PTH112, PTH120
            continue
        real = os.path.realpath(path)
        if real != os.path.normpath(path):
            return f"{option}{equals}{real}"
    return word
