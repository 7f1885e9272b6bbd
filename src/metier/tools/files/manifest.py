"""Snapshots of a workspace without git: a list of its files with hashes, and a copy of each file.

`WorkspaceSnapshots` chooses between these and snapshots by git.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from metier.definitions.files.whole_file import replace_file
from metier.tools.files.file_state import MAX_BYTES, FileState, build_state
from metier.tools.files.snapshots import (
    MAX_CHANGED_BYTES,
    MAX_CHANGES,
    MAX_FILES,
    MAX_SECONDS,
    MAX_TOTAL_BYTES,
    Changed,
    Snapshots,
    Unavailable,
)

PREFIX = "files-"
"""Prefix of a manifest snapshot's name."""
_TEMPORARY = ".metier-"


class _Known(NamedTuple):
    """The state of a file when it was last read."""

    stamp: list[int]
    kind: str
    sha256: str
    mode: int


class ManifestSnapshots:
    """The snapshots of one run. Every method blocks, and raises `Unavailable`."""

    def __init__(self, workspace: Path, folder: Path, *, excluded: Sequence[str] = ()) -> None:
        self._workspace = workspace
        self._folder = folder / "manifests"
        self._excluded = frozenset(excluded)

    def take(self) -> str:
        """Take a snapshot and return its name. The same content and modes give the same name."""
        (self._folder / "contents").mkdir(parents=True, exist_ok=True)
        known = self._read_known()
        found = self._look(known)
        replace_file(self._folder / "known.json", _dump({path: list(each) for path, each in found.items()}))
        manifest = _dump({path: [each.kind, each.sha256, each.mode] for path, each in found.items()})
        name = PREFIX + hashlib.sha256(manifest).hexdigest()[:40]
        if not (self._folder / f"{name}.json").exists():
            replace_file(self._folder / f"{name}.json", manifest)
        return name

    def compare(self, before: str, after: str) -> list[Changed]:
        """List the paths that differ, with their contents on both sides if these are small enough to store."""
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
                if path in self._excluded or entry.name == ".git" or entry.name.startswith(_TEMPORARY):
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
        if not name.startswith(PREFIX):
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
        kinds = {name.startswith(PREFIX) for name in (before, after)}
        if len(kinds) > 1:
            raise Unavailable("git was installed or removed between the two snapshots")
        return self._by_files.compare(before, after) if kinds == {True} else self._by_git.compare(before, after)

    def _has_git(self) -> bool:
        try:
            self._by_git.get_git()
        except Unavailable:
            return False
        return True
