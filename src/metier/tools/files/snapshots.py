"""Snapshots and worktrees of a workspace by git plumbing, with an index and an object folder of their own.

If the workspace is a repository, its objects and its index are read and never written. Its settings, hooks, filters and
line-end conversions are ignored: a snapshot has the bytes on disk. Ignored files, `.git`, nested repositories and the
runs are left out.

A worktree isolates a run. It starts with the current state of the workspace, including uncommitted changes. The
repository only gets an entry in its list of worktrees, no branch and no commit.

Without git, a snapshot is a manifest: a list of the files with hashes, and a copy of each file.
"""

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout
from msgspec import Struct

from metier.definitions.files.quarantine import is_unsettled
from metier.definitions.files.whole_file import replace_file
from metier.programs import launcher
from metier.programs.launcher import Program, run_program
from metier.tools.files.file_state import MAX_BYTES, FileState, build_state

MAX_SECONDS = 10.0
MAX_FILES = 50_000
MAX_TOTAL_BYTES = 256 * 1024 * 1024
"""For a workspace that is not a repository, whose files must all be read for the first snapshot."""
MAX_CHANGES = 2_000
MAX_CHANGED_BYTES = 64 * 1024 * 1024
_PLAIN_MODES = (0o644, 0o755)
# Git reads `info/attributes` last, so these win over every `.gitattributes`. `!diff` removes a diff driver; `-diff`
# would treat every file as binary.
_ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding -export-subst -merge !diff\n"
# Written instead of `git init`, which would copy templates with hooks and probe the file system.
_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tsymlinks = true\n"
_CONVERTING_SETTINGS = re.compile(r"autocrlf|attributesfile|safecrlf|include", re.IGNORECASE)
_CONVERTING_ATTRIBUTES = re.compile(
    r"^[^#\n]*\s(?:text|crlf|eol|filter|ident|working-tree-encoding)(?:=|\s|$)", re.MULTILINE
)
_LINKED = re.compile(r"gitdir: ([^\n]{1,4000})\s*")
_LINK, _REPOSITORY = "120000", "160000"
_REPOSITORY_MODE = int(_REPOSITORY, 8).to_bytes(4, "big")
"""The mode of a nested repository in an index file."""
_NONE = "000000"
# Git ends an index with the SHA-1 of its content.
_MARK_BYTES = 20


class Unavailable(Exception):
    """A snapshot is not possible; the text says why."""


class Changed(NamedTuple):
    """A path that differs between two snapshots."""

    path: str
    before: FileState | None
    after: FileState | None
    contents: tuple[bytes, ...] = ()
    """Contents to store so that either state can be restored."""


class _Side(Struct, frozen=True, kw_only=True):
    mode: str
    object: str


class _Listing(NamedTuple):
    """Entries of the git index."""

    mark: bytes
    """The checksum at the end of the index file."""
    tree: str
    names: bytes
    """The paths, as git lists them."""


class Snapshots:
    """The snapshots of one run. Every method blocks, and raises `Unavailable`."""

    def __init__(self, workspace: Path, folder: Path, *, excluded: Sequence[str] = ()) -> None:
        self._workspace = workspace
        self._folder = folder
        self._git = folder / "git"
        self._excluded = tuple(excluded)
        self._program: Program | None = None
        self._searched = ""
        """The PATH in which the program was found."""
        self._listing: _Listing | None = None

    def take(self) -> str:
        """Take a snapshot and return its name. The same content and modes give the same name."""
        self._open()
        self._forget_repositories()
        # With exit code 1, some files could not be read, and all others are in the index.
        try:
            self._run("add", "--all", "--ignore-errors", "--", ".", allowed=(0, 1))
        except Unavailable:
            # The copied index may be of an unsupported kind. Without it, every file is read once.
            (self._git / "index").unlink(missing_ok=True)
            self._run("add", "--all", "--ignore-errors", "--", ".", allowed=(0, 1))
        listing = self._list()
        modes = json.dumps(self._get_odd_modes(listing.names), sort_keys=True)
        digest = hashlib.sha256(modes.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        file = self._folder / f"modes-{digest}.json"
        if not file.exists():
            file.write_text(modes, encoding="utf-8", errors="surrogatepass")
        return f"{listing.tree}-{digest}"

    def compare(self, before: str, after: str) -> list[Changed]:
        """List the paths that differ, with their contents on both sides if these are small enough to store."""
        trees, modes = zip(*(self._split(name) for name in (before, after)), strict=True)
        found = self._list_differences(*trees)
        for path in modes[0].keys() | modes[1].keys():
            # Trees only have the executable bit, so a change of another bit shows in the stored modes alone.
            if path not in found and modes[0].get(path) != modes[1].get(path) and (same := self._find(trees[1], path)):
                found[path] = (same, same)
        if len(found) > MAX_CHANGES:
            raise Unavailable(f"more than {MAX_CHANGES} files changed")
        contents = self._read(side.object for sides in found.values() for side in sides if side.mode != _NONE)
        return [
            self._build(path, sides, modes=(modes[0].get(path), modes[1].get(path)), contents=contents)
            for path, sides in sorted(found.items())
            if _REPOSITORY not in (sides[0].mode, sides[1].mode)
        ]

    def write_out(self, name: str, target: Path) -> None:
        """Write the files of a snapshot into a folder that has none of them."""
        tree, modes = self._split(name)
        self._run("read-tree", tree)
        # Git puts the prefix before each path as text: only with the slash is it a folder.
        self._run("checkout-index", "--all", f"--prefix={target}/")
        for path, mode in modes.items():
            (target / path).chmod(mode)

    def diff(self, before: str, after: str) -> bytes:
        """Return the difference as a patch for `git apply`; empty if there is none."""
        trees = [self._split(name)[0] for name in (before, after)]
        return self._run("diff-tree", "-r", "-p", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", *trees)

    def _split(self, name: str) -> tuple[str, dict[str, int]]:
        tree, _, digest = name.partition("-")
        try:
            text = (self._folder / f"modes-{digest}.json").read_text(encoding="utf-8", errors="surrogatepass")
        except OSError as error:
            raise Unavailable("the snapshot is gone") from error
        found: dict[str, int] = json.loads(text)
        return tree, found

    def _build(
        self,
        path: str,
        sides: tuple[_Side, _Side],
        *,
        modes: tuple[int | None, int | None],
        contents: Mapping[str, bytes],
    ) -> Changed:
        states: list[FileState | None] = []
        kept: list[bytes] = []
        for side, mode in zip(sides, modes, strict=True):
            if side.mode == _NONE:
                states.append(None)
                continue
            data = contents.get(side.object)
            bits = mode if mode is not None else int(side.mode[-3:], 8)
            if data is None:
                states.append(FileState(sha256=f"git {side.object}", mode=bits, is_kept=False))
                continue
            is_link = side.mode == _LINK
            states.append(build_state("link" if is_link else "file", data, mode=0o777 if is_link else bits))
            kept.append(data)
        return Changed(path, states[0], states[1], tuple(kept))

    def _find(self, tree: str, path: str) -> _Side | None:
        # Literal, because a path may contain the characters of a pattern.
        row = self._run("ls-tree", "-z", tree, "--", f":(literal){path}")
        head, _, _ = row.partition(b"\t")
        words = head.decode().split()
        return _Side(mode=words[0], object=words[2]) if words and words[0] != _REPOSITORY else None

    def _list_differences(self, before: str, after: str) -> dict[str, tuple[_Side, _Side]]:
        # A rename would be one row with two paths, but undo needs to know what happened to each path.
        rows = self._run("diff-tree", "-r", "-z", "--no-renames", "--raw", "--full-index", before, after).split(b"\0")
        found: dict[str, tuple[_Side, _Side]] = {}
        # Not strict: the last zero byte leaves an empty row.
        for head, path in zip(rows[0::2], rows[1::2], strict=False):
            old, new, old_object, new_object, _ = head.decode().lstrip(":").split()
            found[os.fsdecode(path)] = (_Side(mode=old, object=old_object), _Side(mode=new, object=new_object))
        return found

    def _read(self, objects: Iterable[str]) -> dict[str, bytes]:
        wanted = list(dict.fromkeys(objects))
        sizes = self._run("cat-file", "--batch-check=%(objectname) %(objectsize)", given="\n".join(wanted) + "\n")
        small: list[str] = []
        left = MAX_CHANGED_BYTES
        for name, _, size in (line.partition(" ") for line in sizes.decode().splitlines()):
            # `NAME missing` for objects that aren't there, such as the commit of a nested repository.
            if size.isdecimal() and int(size) <= min(MAX_BYTES, left):
                small.append(name)
                left -= int(size)
        output = memoryview(self._run("cat-file", "--batch", given="\n".join(small) + "\n")) if small else b""
        # For each object, in the order of the request: `NAME TYPE SIZE`, a line break, the content, a line break.
        contents: dict[str, bytes] = {}
        position = 0
        for name in small:
            # A header is shorter than 200 bytes: a hash, a type and a number.
            end = bytes(output[position : position + 200]).index(b"\n")
            size = int(bytes(output[position : position + end]).split()[2])
            position += end + 1
            contents[name] = bytes(output[position : position + size])
            position += size + 1
        return contents

    def _list(self) -> _Listing:
        """List the index. Git runs only if the index has changed, because most steps change no file."""
        index = self._git / "index"
        mark = _read_mark(index)
        if self._listing is None or not mark or self._listing.mark != mark:
            tree = self._run("write-tree").decode().strip()  # this may update the index, so its mark is read again
            self._listing = _Listing(_read_mark(index), tree, self._run("ls-files", "-z"))
        return self._listing

    def _get_odd_modes(self, names: bytes) -> dict[str, int]:
        """Return the unusual file modes, because git stores only the executable bit."""
        odd: dict[str, int] = {}
        root = os.open(self._workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names.split(b"\0")[:-1]:
                try:
                    status = os.stat(name, dir_fd=root, follow_symlinks=False)
                except OSError:
                    continue
                mode = status.st_mode & 0o777
                if mode not in _PLAIN_MODES and stat.S_ISREG(status.st_mode):
                    odd[os.fsdecode(name)] = mode
        finally:
            os.close(root)
        return odd

    def _open(self) -> None:
        (self._git / "index.lock").unlink(missing_ok=True)  # left over from a killed process
        if (self._git / "ready").exists():
            return
        repository = find_repository(self._workspace)
        if repository is None:
            _check_size(self._workspace, self._excluded)
        shutil.rmtree(self._git, ignore_errors=True)
        (self._git / "objects/info").mkdir(parents=True)
        (self._git / "refs").mkdir()
        (self._git / "info").mkdir()
        (self._git / "HEAD").write_text("ref: refs/heads/main\n")
        (self._git / "config").write_text(_CONFIG)
        (self._git / "info/attributes").write_text(_ATTRIBUTES)
        lines = [f"/{_escape(name)}" for name in self._excluded]
        if repository is not None:
            self._borrow(*repository)
            # First, because git lets the last matching pattern decide: the user's file must not include the runs again.
            lines.insert(0, _read_text(repository[1] / "info/exclude"))
        (self._git / "info/exclude").write_text("\n".join([*lines, ".metier-*.tmp", ""]), encoding="utf-8")
        # Last, so that a folder that was left incomplete by a kill is built again.
        (self._git / "ready").touch()

    def _forget_repositories(self) -> None:
        """Remove nested repositories from the index; `git add` adds them again with their current commit.

        If one is in the index, `git add` runs `git status` in it, which starts programs that its settings name.
        """
        try:
            if _REPOSITORY_MODE not in (self._git / "index").read_bytes():
                return
        except OSError:
            return
        rows = self._run("ls-files", "--stage", "-z").split(b"\0")
        paths = [row.partition(b"\t")[2] for row in rows if row.startswith(_REPOSITORY.encode())]
        if paths:
            given = "\0".join(os.fsdecode(path) for path in paths)
            self._run("update-index", "--force-remove", "-z", "--stdin", given=given)

    def _borrow(self, own: Path, shared: Path) -> None:
        """Use the repository's objects and a copy of its index, to avoid reading and storing unchanged files again."""
        # Objects with SHA-256 names can't be used by a repository with SHA-1.
        if "objectformat" in _read_text(shared / "config").lower():
            return
        (self._git / "objects/info/alternates").write_text(f"{shared / 'objects'}\n")
        if (own / "index").is_file():
            # A copy: git updates an index even when it only compares, and would take the lock of the user's.
            shutil.copy(own / "index", self._git / "index")
            if self._is_converting(shared):
                (self._git / "index").unlink()

    def _is_converting(self, shared: Path) -> bool:
        """Return True if git may convert files (line ends, filters): its index then has other bytes than the disk."""
        home = Path(os.environ.get("HOME") or os.devnull)
        config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "git/config"
        settings = (shared / "config", home / ".gitconfig", config, Path("/etc/gitconfig"))
        if any(_CONVERTING_SETTINGS.search(_read_text(file)) for file in settings):
            return True
        try:
            names = self._run("ls-files", "-z", "--", ".gitattributes", "**/.gitattributes").split(b"\0")[:-1]
        except Unavailable:
            return True
        files = [shared / "info/attributes", *(self._workspace / os.fsdecode(name) for name in names)]
        return any(_CONVERTING_ATTRIBUTES.search(_read_text(file)) for file in files)

    def _run(self, *args: str, given: str = "", allowed: tuple[int, ...] = (0,)) -> bytes:
        variables = {
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_DIR": str(self._git),
            "GIT_WORK_TREE": str(self._workspace),
            "GIT_INDEX_FILE": str(self._git / "index"),
        }
        # Fast compression: a snapshot is taken before and after each step that runs a program.
        settings = ("core.compression=1", "core.safecrlf=false", "core.quotePath=false", "advice.addEmbeddedRepo=false",
                    "core.splitIndex=false", "core.untrackedCache=false")  # fmt: skip
        words = (*(word for setting in settings for word in ("-c", setting)), *args)
        program = self.get_git()
        return run_git(self._workspace, words, program=program, variables=variables, given=given, allowed=allowed)

    def get_git(self) -> Program:
        """Locate git once per PATH: a snapshot runs it up to three times, and a step takes two snapshots."""
        known, path = self._program, os.environ.get("PATH", "")
        if known is None or self._searched != path or not os.access(known.path, os.X_OK):
            known = self._program = get_git(self._workspace)
            self._searched = path
        return known


def run_git(
    folder: Path,
    words: Sequence[str],
    *,
    program: Program | None = None,
    variables: Mapping[str, str] | None = None,
    given: str = "",
    allowed: tuple[int, ...] = (0,),
) -> bytes:
    """Run git without the user's settings, hooks and filters; return its output. Raises `Unavailable`."""
    own = {
        # Git also finds the user's ignore and attributes files by HOME, whatever the settings are.
        "HOME": os.devnull,
        "GIT_NO_REPLACE_OBJECTS": "1",  # replacement references would show other content than the files have
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",  # the error is found by its English prefix
        **(variables or {}),
    }
    # Hooks and the fsmonitor are programs that the repository names. Trees of snapshots have no reference, so garbage
    # collection would delete them. The workspace may belong to another user, as in containers.
    settings = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "gc.auto=0", f"safe.directory={folder}")
    git = (program or get_git(folder)).with_variables(own)
    options = (word for setting in settings for word in ("-c", setting))
    try:
        done = run_program(git, *options, *words, folder=folder, given=os.fsencode(given), timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"it took longer than {MAX_SECONDS:g} s") from error
    except OSError as error:
        raise Unavailable(f"git cannot be run: {error.strerror}") from error
    if done.returncode not in allowed:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        # Git prints progress and warnings before the error.
        wrong = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[0] if lines else "")
        raise Unavailable(f"git failed: {wrong or done.returncode}")
    return done.stdout


def get_git(folder: Path) -> Program:
    """Find the git for a folder. Raises `Unavailable`."""
    passed = ("TMPDIR", "SYSTEMROOT", "TEMP")
    found = launcher.find_program(launcher.GIT, "git", os.environ, writable=(folder,), passed=passed)
    if found is None:
        raise Unavailable("git is not installed")
    return found


def find_repository(workspace: Path) -> tuple[Path, Path] | None:
    """Return the `.git` folder and the one that it shares with other worktrees; None if there is no repository."""
    own = workspace / ".git"
    if own.is_file() and (linked := _LINKED.fullmatch(_read_text(own))):
        own = (workspace / linked[1].strip()).resolve()
    if not (own / "HEAD").is_file() or is_unsettled(str(workspace / ".git")):
        return None
    common = _read_text(own / "commondir").strip()
    return own, (own / common).resolve() if common else own


def _check_size(workspace: Path, excluded: Sequence[str]) -> None:
    """Raise `Unavailable` if the workspace is too large to read all of it."""
    files, size = 0, 0
    for folder, names, found in os.walk(workspace):
        relative = os.path.relpath(folder, workspace)
        names[:] = [name for name in names if name != ".git" and os.path.normpath(f"{relative}/{name}") not in excluded]
        for name in found:
            files += 1
            try:
                size += os.lstat(f"{folder}/{name}").st_size
            except OSError:
                continue
            if files > MAX_FILES or size > MAX_TOTAL_BYTES:
                raise Unavailable("the workspace is no git repository, and too large to be copied")


def _read_mark(index: Path) -> bytes:
    """Return the checksum of an index file; empty if there is none (`index.skipHash`)."""
    try:
        with index.open("rb") as stream:
            stream.seek(-_MARK_BYTES, os.SEEK_END)
            mark = stream.read()
    except OSError:
        return b""
    return mark if any(mark) else b""


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    except OSError:
        return ""


def _escape(pattern: str) -> str:
    return re.sub(r"([\\*?\[\]!# ])", r"\\\1", pattern)


TREE, SNAPSHOTS, SOURCE = "tree", "snapshots", "source"
LOCK = "worktrees.lock"
LOCK_SECONDS = 60.0
"""How long to wait for other processes that create or remove a worktree."""


class Worktree(Struct, frozen=True):
    """A worktree in its own folder, together with the snapshots for its diff. Every method blocks."""

    folder: Path

    @property
    def tree(self) -> Path:
        return self.folder / TREE

    def make(self, workspace: Path, *, excluded: tuple[str, ...] = ()) -> str:
        """Create the worktree and return the name of its first snapshot. Replaces one that a killed process left.

        Raises `Unavailable`.
        """
        if find_repository(workspace) is None:
            raise Unavailable("the workspace is no git repository")
        self.remove(workspace)
        self.folder.mkdir(parents=True)
        source = Snapshots(workspace, self.folder / SOURCE, excluded=excluded)
        held = source.take()
        # Detached, because git allows a branch in one worktree only. Without a checkout, because `write_out` writes the
        # current files.
        with self._change_list(workspace):
            run_git(workspace, ("worktree", "add", "--detach", "--no-checkout", str(self.tree), "HEAD"))
        source.write_out(held, self.tree)
        # The index of a new worktree is empty: fill it, so that `git status` there shows the same as in the workspace.
        run_git(self.tree, ("read-tree", "HEAD"))
        return self._open().take()

    def diff(self, base: str) -> bytes:
        """Return the changes since the snapshot as a patch for `git apply`. Raises `Unavailable`."""
        snapshots = self._open()
        return snapshots.diff(base, snapshots.take())

    def remove(self, workspace: Path) -> None:
        """Remove the worktree, if it exists."""
        if not self.folder.exists():
            return
        # Unavailable if it is not registered yet, or the repository is gone.
        with suppress(Unavailable), self._change_list(workspace):
            run_git(workspace, ("worktree", "remove", "--force", str(self.tree)))
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def _change_list(self, workspace: Path) -> Generator[None]:
        """Let one process at a time change the list of worktrees. Raises `Unavailable`."""
        # Git reads the whole list before it changes it, and fails if another git is writing an entry.
        # No soft lock: its file would outlive a killed process.
        lock = FileLock(self.folder.parent.parent / LOCK, timeout=LOCK_SECONDS, mode=0o600, fallback_to_soft=False)
        try:
            with lock:
                self._remove_half_written(workspace)
                yield
        except Timeout as error:
            raise Unavailable("another process is creating or removing a worktree") from error

    def _remove_half_written(self, workspace: Path) -> None:
        """Remove entries of our worktrees whose git was killed: with such an entry, git changes the list no more."""
        repository = find_repository(workspace)
        own = f"{self.folder.parent.resolve()}/"
        for entry in (repository[1] / "worktrees").glob("*/") if repository is not None else ():
            if _read_text(entry / "gitdir").startswith(own) and not _read_text(entry / "commondir"):
                shutil.rmtree(entry, ignore_errors=True)

    def _open(self) -> Snapshots:
        return Snapshots(self.tree, self.folder / SNAPSHOTS)


_MANIFEST_PREFIX = "files-"
"""Prefix of a manifest snapshot's name."""
_TEMPORARY_PREFIX = ".metier-"


class _Known(NamedTuple):
    """The state of a file when it was last read."""

    stamp: list[int]
    kind: str
    sha256: str
    mode: int


class ManifestSnapshots:
    """The same as `Snapshots`, without git."""

    def __init__(self, workspace: Path, folder: Path, *, excluded: Sequence[str] = ()) -> None:
        self._workspace = workspace
        self._folder = folder / "manifests"
        self._excluded = frozenset(excluded)

    def take(self) -> str:
        (self._folder / "contents").mkdir(parents=True, exist_ok=True)
        known = self._read_known()
        found = self._look(known)
        # Only a cache, so not synced to disk: if it is lost, every file is read again.
        replace_file(self._folder / "known.json", _dump({path: list(each) for path, each in found.items()}))
        manifest = _dump({path: [each.kind, each.sha256, each.mode] for path, each in found.items()})
        name = _MANIFEST_PREFIX + hashlib.sha256(manifest).hexdigest()[:40]
        if not (self._folder / f"{name}.json").exists():
            replace_file(self._folder / f"{name}.json", manifest)
        return name

    def compare(self, before: str, after: str) -> list[Changed]:
        old, new = self._load(before), self._load(after)
        paths = sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
        if len(paths) > MAX_CHANGES:
            raise Unavailable(f"more than {MAX_CHANGES} files changed")
        left = MAX_CHANGED_BYTES
        changes: list[Changed] = []
        for path in paths:
            states: list[FileState | None] = []
            kept: list[bytes] = []
            for side in (old.get(path), new.get(path)):
                data = self._read_content(side, left)
                states.append(_build_state(side, data))
                if data is not None:
                    kept.append(data)
                    left -= len(data)
            changes.append(Changed(path, states[0], states[1], tuple(kept)))
        return changes

    def _look(self, known: Mapping[str, _Known]) -> dict[str, _Known]:
        found: dict[str, _Known] = {}
        size, until = 0, time.monotonic() + MAX_SECONDS
        for path, status in self._walk():
            size += status.st_size
            if len(found) >= MAX_FILES or size > MAX_TOTAL_BYTES:
                raise Unavailable("git is not installed, and the workspace is too large to be copied")
            if time.monotonic() > until:
                raise Unavailable(f"it took longer than {MAX_SECONDS:g} s")
            # A program can restore the size and mtime of a changed file, but not its ctime.
            stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
            before = known.get(path)
            mode = stat.S_IMODE(status.st_mode) & 0o777
            if before is not None and before.stamp == stamp and before.mode == mode:
                found[path] = before
            elif (read := self._keep(path, status)) is not None:
                found[path] = _Known(stamp, read[0], read[1], mode)
        return found

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """List files and links in order. Links aren't followed, and nested repositories are skipped."""
        stack = [""]
        while stack:
            folder = stack.pop()
            try:
                entries = sorted(os.scandir(self._workspace / folder), key=lambda entry: entry.name)
            except OSError:
                continue
            if folder and any(entry.name == ".git" for entry in entries):
                continue
            for entry in entries:
                path = f"{folder}{entry.name}"
                if path in self._excluded or entry.name == ".git" or entry.name.startswith(_TEMPORARY_PREFIX):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    stack.append(f"{path}/")
                elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                    yield path, status

    def _keep(self, path: str, status: os.stat_result) -> tuple[str, str] | None:
        """Store the content of a file, unless it is large, and return its kind and hash; None if it is gone."""
        file = self._workspace / path
        try:
            if stat.S_ISLNK(status.st_mode):
                kind, data = "link", os.fsencode(file.readlink())
            elif status.st_size > MAX_BYTES:
                with file.open("rb") as stream:
                    return "large", hashlib.file_digest(stream, "sha256").hexdigest()
            else:
                kind, data = "file", _read_plain(file)
        except OSError:
            return None
        digest = hashlib.sha256(data).hexdigest()
        content = self._folder / "contents" / digest
        if not content.exists():
            replace_file(content, data)
        return kind, digest

    def _read_content(self, side: Sequence[object] | None, left: int) -> bytes | None:
        if side is None or side[0] == "large":
            return None
        try:
            content = self._folder / "contents" / str(side[1])
            return content.read_bytes() if content.stat().st_size <= left else None
        except OSError as error:
            raise Unavailable("the snapshot is gone") from error

    def _load(self, name: str) -> dict[str, list[object]]:
        if not name.startswith(_MANIFEST_PREFIX):
            raise Unavailable("the snapshot before was taken with git, which is not installed anymore")
        try:
            found: dict[str, list[object]] = json.loads((self._folder / f"{name}.json").read_bytes())
        except OSError as error:
            raise Unavailable("the snapshot is gone") from error
        return found

    def _read_known(self) -> dict[str, _Known]:
        try:
            rows: dict[str, tuple[list[int], str, str, int]] = json.loads((self._folder / "known.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return {path: _Known(*row) for path, row in rows.items()}


def _build_state(side: Sequence[object] | None, data: bytes | None) -> FileState | None:
    if side is None:
        return None
    mode = int(str(side[2]))
    if data is None:
        return FileState(sha256=str(side[1]), mode=mode, is_kept=False)
    return build_state("link", data, mode=0o777) if side[0] == "link" else build_state("file", data, mode=mode)


def _read_plain(file: Path) -> bytes:
    """Read a listed file, unless a link has replaced it, and without waiting for a pipe's writer."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _dump(value: Mapping[str, object]) -> bytes:
    return json.dumps(value, sort_keys=True).encode("utf-8", "surrogatepass")


class WorkspaceSnapshots:
    """Snapshots by git if it is installed, else by manifests. Every method raises `Unavailable`."""

    def __init__(self, workspace: Path, folder: Path, *, excluded: Sequence[str] = ()) -> None:
        self._by_git = Snapshots(workspace, folder, excluded=excluded)
        self._by_files = ManifestSnapshots(workspace, folder, excluded=excluded)

    def take(self) -> str:
        return self._by_git.take() if self._has_git() else self._by_files.take()

    def compare(self, before: str, after: str) -> list[Changed]:
        kinds = {name.startswith(_MANIFEST_PREFIX) for name in (before, after)}
        if len(kinds) > 1:
            raise Unavailable("git was installed or removed between the two snapshots")
        return self._by_files.compare(before, after) if kinds == {True} else self._by_git.compare(before, after)

    def _has_git(self) -> bool:
        try:
            self._by_git.get_git()
        except Unavailable:
            return False
        return True
