"""The files of the workspace that a command line runs, and their hash. Starts nothing.

A program that runs outside of the sandbox must not be made of files that programs inside write. Everything that its
command line names in the workspace is found here: the program, scripts among its arguments, the folder that a runner
such as `uv run` takes code from. An acceptance covers these files, and the sandbox closes them to other programs.
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
"""They take code, or the names of programs, from the folder that they are started in."""
PACKAGE_RUNNERS = frozenset({"npx", "bunx"})
"""They prefer a package of the folder that they are started in."""
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
"""Their arguments are data, but for a file after one of these options: its lines are commands."""
_FILE_OPTION = re.compile(r"(-f|-a|-x|-S|-s|-F|-K|--file|--arg-file|--command|--source|--script|--config)=?(.*)")
_LINE_OPTION = re.compile(r"-[a-z]*c")
_VARIABLE = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*)\}?")
_LISTS = re.compile(r"[:,]+")
_ATTACHED = re.compile(r"(?:-[A-Za-z]|@|\+)(.+)", re.DOTALL)
_INCLUDED = re.compile(r"""(?:^|[\s"'])-I[\s"']*([^\s"';&|()<>`]+)""")
"""A folder that code is loaded from, with most interpreters."""
_SETTINGS = frozenset({".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env"})


class CommandLine(Struct, frozen=True, kw_only=True):
    """A program with its arguments, the folder that it starts in, and its environment."""

    words: tuple[str, ...]
    folder: Path
    """With its links resolved."""
    environment: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """The part of the environment that the command's author wrote: paths in it count as named."""


class ProgramCode(Struct, frozen=True, kw_only=True):
    """The code of a command line that lies in places that confined programs write to."""

    roots: tuple[Path, ...] = ()
    """Files and folders. Every file beneath them counts."""
    is_open: bool = False
    """It may take code from anywhere in the workspace, so that no list of files covers it."""

    def digest(self) -> str:
        """Changes with every file, also with one that appears or goes; empty where nothing lies in such a place."""
        if not self.roots:
            return ""
        digest = hashlib.sha256()
        for root in self.roots:
            for name, described in _describe_tree(root):
                digest.update(os.fsencode(f"{root}\0{name}\0{described}\n"))
        return digest.hexdigest()


def get_program_code(line: CommandLine, *, writable: Sequence[Path]) -> ProgramCode:
    """Return the code of a command line in `writable`, whose paths are resolved.

    Every file or folder that it names counts, because no list of interpreters is complete. Only a whole place of
    `writable`, such as the workspace, can be data: it counts where a known program or option takes code from it.
    """
    below = (path for path in _list_existing(line) if not {path, path.resolve()} & set(writable))
    found = list(dict.fromkeys((*_list_program(line), *_get_named(line), *below)))
    inside = [path for path in found if _lies_in(path, writable)]
    roots = tuple(path for path in inside if path not in writable and path.resolve() not in writable)
    return ProgramCode(roots=roots, is_open=len(roots) < len(inside))


def locate_program(line: CommandLine) -> Path | None:
    """Return the absolute path of the program, as the command line names it or by its PATH; None if there is none."""
    command = line.words[0]
    found = command if "/" in command else shutil.which(command, path=line.environment.get("PATH", os.defpath))
    return Path(os.path.normpath(line.folder / found)) if found else None


def _list_program(line: CommandLine) -> Iterator[Path]:
    program = locate_program(line)
    if program is None:
        return
    arguments = line.words[1:]
    prefix = program.parent.parent
    # The packages of a virtual environment are as much its code as the program.
    yield prefix if (prefix / "pyvenv.cfg").is_file() else program.parent
    yield program.resolve().parent
    is_tool = (program.name, arguments[:1]) == ("uv", ("tool",))
    if (program.name in RUNNERS and not is_tool) or (
        program.name.startswith("python") and {"-m", "-c"} & set(arguments[:4])
    ):
        yield line.folder
    if program.name in PACKAGE_RUNNERS:
        yield from (line.folder / name for name in _PACKAGE_FILES)


def list_scripts(words: Sequence[str], folder: Path) -> Iterator[Path]:
    """List the files that interpreters and runners among the words execute, also those that do not exist yet.

    That is the first argument that is a file, and every code file in a line after `-c`.
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
    """Return the path that an argument, or the value of an option, can be."""
    text = word.rpartition("=")[2]
    return Path(os.path.normpath(folder / text)) if text and "\0" not in text else None


def is_code(file: Path) -> bool:
    """Return True for a regular file that is named like code, or can be executed."""
    try:
        mode = file.stat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) and (file.suffix.lower() in _CODE or bool(mode & stat.S_IXUSR))


def _get_named(line: CommandLine) -> Iterator[Path]:
    command, *arguments = line.words
    told = [_expand(word, line.environment) for word in line.words]
    for script in list_scripts(told, line.folder):
        if script.is_file():
            yield script.parent
            yield script.resolve().parent
    name = Path(command).name
    # A line after `sh -c` can change the folder first.
    has_line = _INTERPRETER.fullmatch(name) is not None and any(_LINE_OPTION.fullmatch(word) for word in arguments)
    runs_folders = name in RUNNERS or name.startswith(("python", "node")) or has_line
    for word in arguments:
        for text in _list_paths(word, line.environment):
            yield from _get_code(Path(os.path.normpath(line.folder / text)), runs_folders=runs_folders)
    for folder in _INCLUDED.findall(" ".join(told)):
        yield Path(os.path.normpath(line.folder / folder))
    for name, value in line.variables.items():
        is_loader = name in LOADER_VARIABLES
        for text in _list_paths(value, line.environment):
            for entry in filter(None, text.removeprefix("-r").removeprefix("-I").split(os.pathsep)):
                path = Path(os.path.normpath(line.folder / entry))
                if (is_loader and path.exists()) or is_code(path):
                    yield path


def _list_existing(line: CommandLine) -> Iterator[Path]:
    """Return every file and folder that an argument or a variable names, also within an option or a line of a shell."""
    for word in (*line.words[1:], *line.variables.values()):
        for text in _list_paths(word, line.environment):
            for name in dict.fromkeys((text, *_LISTS.split(text))):
                for each in (name, *_list_attached(name)):
                    path = Path(os.path.normpath(line.folder / each))
                    if each and _exists(path):
                        yield path


def _list_attached(word: str) -> tuple[str, ...]:
    """Return the value that is attached to a short option (`-Ilib`) or to a sign for a file (`@lib/arguments`)."""
    found = _ATTACHED.fullmatch(word)
    return (found[1],) if found else ()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _list_paths(word: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Return everything in an argument that can be a path: the argument, the value of an option, words of a line."""
    told = _expand(word, environment)
    texts = dict.fromkeys((word, told, word.partition("=")[2], *SEPARATORS.split(told)))
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
    for file in sorted(_walk(root)):
        found = os.lstat(file)
        name = os.path.relpath(file, root)
        if stat.S_ISLNK(found.st_mode):
            yield name, f"link {os.readlink(file)}"  # noqa: PTH115
        elif stat.S_ISREG(found.st_mode):
            with open(file, "rb", opener=_open_plain) as stream:
                yield name, f"{hashlib.file_digest(stream, 'sha256').hexdigest()} {found.st_mode & stat.S_IXUSR}"
        else:
            yield name, f"kind {stat.S_IFMT(found.st_mode)}"


def _walk(root: Path) -> Iterator[str]:
    """The files of a folder, or the file itself; links are not followed, and a repository's own files do not count."""
    if root.is_symlink() or not root.is_dir():
        if os.path.lexists(root):
            yield str(root)
        return
    for parent, folders, names in os.walk(root):
        yield from (os.path.join(parent, name) for name in names)  # noqa: PTH118
        yield from (path for name in folders if os.path.islink(path := os.path.join(parent, name)))  # noqa: PTH114, PTH118
        folders[:] = sorted(name for name in folders if name != ".git")


def _open_plain(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
