"""Which files of the workspace an external server is started from, and their hash. Starts nothing.

A server that runs outside of the sandbox must not be made of files that programs inside write. What its definition
names in the workspace is found here: the program, scripts among its arguments, the folder that a runner such as
`uv run` takes code from. An acceptance covers these files, and the sandbox closes them to other programs.
"""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from metier.dataclass import dataclass
from metier.tools.mcp.config import ServerDefinition

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
_SETTINGS = frozenset({".json", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".env"})
_LOADER_VARIABLES = (
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "NODE_PATH", "NODE_OPTIONS", "LD_LIBRARY_PATH", "LD_PRELOAD", "PATH",
    "RUBYLIB", "PERL5LIB", "CLASSPATH", "UV_PROJECT", "VIRTUAL_ENV",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCode:
    """What of the places that confined programs write to a server is started from."""

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


def find_server_code(server: ServerDefinition, environ: Mapping[str, str], *, writable: Sequence[Path]) -> ServerCode:
    """`server` with its variables put in; the first of `writable` is the workspace, all of them resolved."""
    if not server.command:
        return ServerCode()
    folder = (writable[0] / server.cwd).resolve()
    found = list(dict.fromkeys((*_find_program(server, folder, environ), *_find_named(server, folder))))
    inside = [path for path in found if _lies_in(path, writable)]
    roots = tuple(path for path in inside if path not in writable and path.resolve() not in writable)
    return ServerCode(roots=roots, is_open=len(roots) < len(inside))


def _find_program(server: ServerDefinition, folder: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    if "/" in server.command:
        program = Path(os.path.normpath(folder / server.command))
    else:
        path = server.env.get("PATH", environ.get("PATH", os.defpath))
        found = shutil.which(server.command, path=path)
        if found is None:
            return
        program = Path(os.path.normpath(folder / found))
    prefix = program.parent.parent
    # The packages of a virtual environment are as much its code as the program.
    yield prefix if (prefix / "pyvenv.cfg").is_file() else program.parent
    yield program.resolve().parent
    is_tool = (program.name, server.args[:1]) == ("uv", ("tool",))
    if (program.name in RUNNERS and not is_tool) or (
        program.name.startswith("python") and {"-m", "-c"} & set(server.args[:4])
    ):
        yield folder
    if program.name in PACKAGE_RUNNERS:
        yield from (folder / name for name in _PACKAGE_FILES)


def _find_named(server: ServerDefinition, folder: Path) -> Iterator[Path]:
    runs_folders = Path(server.command).name in RUNNERS or Path(server.command).name.startswith(("python", "node"))
    for word in server.args:
        for text in (word, word.partition("=")[2]):
            path = Path(os.path.normpath(folder / text)) if text else folder / "\0"
            yield from _find_code(path, runs_folders=runs_folders)
    for name in _LOADER_VARIABLES:
        for text in filter(None, server.env.get(name, "").split(os.pathsep)):
            path = Path(os.path.normpath(folder / text))
            if path.is_dir():
                yield path


def _find_code(path: Path, *, runs_folders: bool) -> Iterator[Path]:
    """A script with the folder around it, because it loads what lies beside it; a settings file by itself."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if stat.S_ISDIR(mode):
        if runs_folders:
            yield path
    elif path.suffix.lower() in _CODE or mode & stat.S_IXUSR:
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
