"""The workspace files that a command line executes, and their hash. Starts nothing.

A program that runs outside the sandbox must not consist of files that programs inside it can write. This module finds
every workspace path that its command line names: the program, scripts among its arguments, and the folder that a runner
such as `uv run` loads code from. The user accepts the hash of these files, and the sandbox makes them read-only.
"""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from metier.programs.search import LOADER_VARIABLES

RUNNERS = frozenset({
    "uv", "npm", "pnpm", "yarn", "bun", "deno", "make", "just", "task", "cargo", "go", "poetry", "pipenv", "hatch",
    "pdm", "rye", "pixi", "tox", "nox", "invoke", "gradle", "mvn", "bundle", "rake", "composer", "nix", "mise",
    "direnv", "sbt", "dotnet", "mix", "lein", "stack", "cabal", "swift", "zig", "rails", "tsx", "ts-node", "nodemon",
})  # fmt: skip
"""Programs that load code, or names of programs to run, from their working folder."""
PACKAGE_RUNNERS = frozenset({"npx", "bunx"})
"""Programs that prefer a package in their working folder."""
_PACKAGE_FILES = (".npmrc", "package.json", "bunfig.toml", "node_modules")
_CODE = frozenset({
    ".py", ".pyz", ".pyc", ".js", ".mjs", ".cjs", ".ts", ".mts", ".rb", ".pl", ".php", ".sh", ".bash", ".lua", ".jar",
    ".wasm", ".exe", ".so", ".r", ".ps1",
})  # fmt: skip
SEPARATORS = re.compile(r"""[\s;&|()<>"'`=]+""")
_INTERPRETER = re.compile(
    r"(?:a|ba|da|rba|z|k|mk|ya|fi|c|tc)?sh|source|\.|Rscript|pwsh|osascript|xonsh|nu"
    r"|(?:python|pypy|node|nodejs|ruby|perl|php|lua|luajit|tclsh|wish|expect|julia|elixir|guile|raku|groovy|runghc|gmake)"
    r"[0-9.]*"
)
_SCRIPT_FILE = re.compile(r"(?:g|m|n)?awk|g?sed|xargs|psql|gdb|lldb|n?vim?|ex|emacs|ssh|curl|at")
"""Programs whose arguments are data, except for a file of commands after one of the options below."""
_FILE_OPTION = re.compile(r"(-f|-a|-x|-S|-s|-F|-K|--file|--arg-file|--command|--source|--script|--config)=?(.*)")
_LINE_OPTION = re.compile(r"-[a-z]*c")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_LISTS = re.compile(r"[:,]+")
_ATTACHED = re.compile(r"(?:-[A-Za-z]|@|\+)(.+)", re.DOTALL)
_INCLUDED = re.compile(r"""(?:^|[\s"'])-I[\s"']*([^\s"';&|()<>`]+)""")
"""The option of most interpreters for a folder to load code from."""
_SETTINGS = frozenset({".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env"})


class CommandLine(Struct, frozen=True, kw_only=True):
    """A program with its arguments, working folder and environment."""

    words: tuple[str, ...]
    folder: Path
    """With links resolved."""
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that the command's author set: the command line names the paths in them too."""


class ProgramCode(Struct, frozen=True, kw_only=True):
    """The code of a command line in folders that confined programs can write."""

    roots: tuple[Path, ...] = ()
    """Files and folders; a folder stands for every file in it."""
    is_open: bool = False
    """The command may load code from anywhere in the workspace, so no list of files covers it."""

    def digest(self) -> str:
        """Hash the files; empty if there are none. An added or removed file changes the hash."""
        if not self.roots:
            return ""
        digest = hashlib.sha256()
        for root in self.roots:
            for name, described in _describe_tree(root):
                # Paths can't contain zero bytes, so the fields can't run into each other.
                digest.update(os.fsencode(f"{root}\0{name}\0{described}\n"))
        return digest.hexdigest()


def get_program_code(line: CommandLine, *, writable: Sequence[Path]) -> ProgramCode:
    """Return the part of a command line's code that lies in `writable`, whose paths are resolved.

    Every file or folder that the line names counts, because no list of interpreters is complete. The exception is a
    whole writable folder, such as the workspace: it counts only if a known program or option loads code from it.
    """
    below = (path for path in _list_existing(line) if not {path, path.resolve()} & set(writable))
    found = list(dict.fromkeys((*_list_program(line), *_get_named(line), *below)))
    inside = [path for path in found if _lies_in(path, writable)]
    roots = tuple(path for path in inside if path not in writable and path.resolve() not in writable)
    return ProgramCode(roots=roots, is_open=len(roots) < len(inside))


def locate_program(line: CommandLine) -> Path | None:
    """Return the program's absolute path, searched in PATH unless it has a slash; None if PATH has no such program."""
    command = line.words[0]
    found = command if "/" in command else shutil.which(command, path=line.environment.get("PATH", os.defpath))
    return Path(os.path.normpath(line.folder / found)) if found else None


def _list_program(line: CommandLine) -> Iterator[Path]:
    program = locate_program(line)
    if program is None:
        return
    arguments = line.words[1:]
    prefix = program.parent.parent
    # The packages of a virtual environment are code of the program too.
    yield prefix if (prefix / "pyvenv.cfg").is_file() else program.parent
    # A linked program loads its libraries from the folder of its target.
    yield program.resolve().parent
    # `uv tool run` runs a package from the index, not the project in the working folder.
    is_tool = (program.name, arguments[:1]) == ("uv", ("tool",))
    if (program.name in RUNNERS and not is_tool) or (
        program.name.startswith("python") and {"-m", "-c"} & set(arguments[:4])
    ):
        yield line.folder
    if program.name in PACKAGE_RUNNERS:
        yield from (line.folder / name for name in _PACKAGE_FILES)


def list_scripts(words: Sequence[str], folder: Path) -> Iterator[Path]:
    """List the files that interpreters and runners among the words execute, including files that don't exist yet.

    These are the first argument that is a file, and every code file in a line after `-c`.
    """
    for number, word in enumerate(words):
        name = Path(word).name
        if _SCRIPT_FILE.fullmatch(name):
            yield from _list_option_files(words[number + 1 :], folder)
        if not _INTERPRETER.fullmatch(name) and name not in RUNNERS:
            continue
        pieces = [piece for rest in words[number + 1 :] for piece in SEPARATORS.split(rest)]
        located = (locate_word(piece, folder) for piece in pieces if not piece.startswith("-"))
        files = [file for file in located if file is not None]
        if first := next((file for file in files if file.is_file()), files[0] if files else None):
            yield first
        yield from (file for file in files if is_code(file))


def _list_option_files(words: Sequence[str], folder: Path) -> Iterator[Path]:
    for number, word in enumerate(words):
        if found := _FILE_OPTION.fullmatch(word):
            file = locate_word(found[2] or "".join(words[number + 1 : number + 2]), folder)
            if file is not None and file.is_file():
                yield file


def locate_word(word: str, folder: Path) -> Path | None:
    """Return the path that an argument, or an option's value, may name."""
    text = word.rpartition("=")[2]
    return Path(os.path.normpath(folder / text)) if text and "\0" not in text else None


def is_code(file: Path) -> bool:
    """Return True for a regular file with a code suffix or an executable bit."""
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and (file.suffix.lower() in _CODE or bool(mode & stat.S_IXUSR))


def _get_named(line: CommandLine) -> Iterator[Path]:
    command, *arguments = line.words
    expanded = [_expand(word, line.environment) for word in line.words]
    for script in list_scripts(expanded, line.folder):
        if script.is_file():
            yield script.parent
            yield script.resolve().parent
    name = Path(command).name
    # A line after `sh -c` can change to any folder that it names before it runs something.
    has_line = _INTERPRETER.fullmatch(name) is not None and any(_LINE_OPTION.fullmatch(word) for word in arguments)
    runs_folders = name in RUNNERS or name.startswith(("python", "node")) or has_line
    for word in arguments:
        for text in _list_paths(word, line.environment):
            yield from _get_code(Path(os.path.normpath(line.folder / text)), runs_folders=runs_folders)
    for folder in _INCLUDED.findall(" ".join(expanded)):
        yield Path(os.path.normpath(line.folder / folder))
    for name, value in line.variables.items():
        is_loader = name in LOADER_VARIABLES
        for text in _list_paths(value, line.environment):
            for entry in filter(None, text.removeprefix("-r").removeprefix("-I").split(os.pathsep)):
                path = Path(os.path.normpath(line.folder / entry))
                if (is_loader and path.exists()) or is_code(path):
                    yield path


def _list_existing(line: CommandLine) -> Iterator[Path]:
    """List every existing path that an argument or a variable names, including inside an option or a shell line."""
    for word in (*line.words[1:], *line.variables.values()):
        for text in _list_paths(word, line.environment):
            for name in dict.fromkeys((text, *_LISTS.split(text))):
                for each in (name, *_list_attached(name)):
                    path = Path(os.path.normpath(line.folder / each))
                    if each and _exists(path):
                        yield path


def _list_attached(word: str) -> tuple[str, ...]:
    """Return the value attached to a short option (`-Ilib`) or to a file prefix (`@lib/arguments`)."""
    found = _ATTACHED.fullmatch(word)
    return (found[1],) if found else ()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _list_paths(word: str, environment: Mapping[str, str]) -> Iterator[str]:
    """List every text in an argument that may be a path: the argument, an option's value, the words of a line."""
    expanded = _expand(word, environment)
    texts = dict.fromkeys((word, expanded, word.partition("=")[2], *SEPARATORS.split(expanded)))
    return (text for text in texts if text and "\0" not in text)


def _expand(word: str, environment: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: environment.get(found[1], ""), word)


def _get_code(path: Path, *, runs_folders: bool) -> Iterator[Path]:
    """Return a script's folder, because scripts load modules from it, or just the file for a settings file."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISDIR(mode):
        if runs_folders:
            yield path
    elif is_code(path):
        yield path.parent
        yield path.resolve().parent
    elif path.suffix.lower() in _SETTINGS:
        yield path


def _lies_in(path: Path, places: Sequence[Path]) -> bool:
    return any(each.is_relative_to(place) for place in places for each in (path, path.resolve()))


def _describe_tree(root: Path) -> Iterator[tuple[str, str]]:
    # The hash must not depend on the order in which the file system lists names.
    for file in sorted(_walk(root)):
        found = os.lstat(file)
        name = os.path.relpath(file, root)
        if stat.S_ISLNK(found.st_mode):
            yield name, f"link {os.readlink(file)}"  # noqa: PTH115
        # Without the executable bit, the same bytes may be read instead of run.
        elif stat.S_ISREG(found.st_mode):
            with open(file, "rb", opener=_open_plain) as stream:
                yield name, f"{hashlib.file_digest(stream, 'sha256').hexdigest()} {found.st_mode & stat.S_IXUSR}"
        else:
            yield name, f"kind {stat.S_IFMT(found.st_mode)}"


def _walk(root: Path) -> Iterator[str]:
    """List the files below a folder, or the path itself. Links aren't followed, and `.git` folders are skipped."""
    if root.is_symlink() or not root.is_dir():
        if os.path.lexists(root):
            yield str(root)
        return
    for parent, folders, names in os.walk(root):
        yield from (os.path.join(parent, name) for name in names)  # noqa: PTH118
        yield from (path for name in folders if os.path.islink(path := os.path.join(parent, name)))  # noqa: PTH114, PTH118
        folders[:] = sorted(name for name in folders if name != ".git")


def _open_plain(path: str, flags: int) -> int:
    # The file may have been replaced since it was listed: a link must not be followed, and a pipe must not block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
