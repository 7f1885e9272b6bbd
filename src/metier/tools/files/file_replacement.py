"""Replace a file atomically, with a note that tells after a crash whether it happened.

The note has the hashes of the file before and after. It is on disk before the file changes, so the run's next owner can
compare the file with it.
"""

import hashlib
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from pydantic import JsonValue

from metier.definitions.files import whole_file
from metier.definitions.files.contained_path import READ_FILE
from metier.errors import ToolFailed
from metier.tools.base import STARTED, ToolContext
from metier.tools.files.scope import Scope, Target

NO_FILE = "no file"
"""The hash of a missing file."""
MAX_FILE_BYTES = 32 * 1024 * 1024
_NEW_FILE_MODE = 0o666
_OWNERS_ALONE = 0o600
_CHUNK_BYTES = 1024 * 1024

type Finding = Literal["before", "after", "neither", "no note"]


class Note(Struct, frozen=True, kw_only=True):
    path: str
    before: str
    after: str


def hash_bytes(data: bytes | None) -> str:
    return NO_FILE if data is None else hashlib.sha256(data).hexdigest()


def read_target(target: Target) -> bytes | None:
    """Return the current content; None if there is no file."""
    if target.status is None:
        return None
    # A link may have replaced the file since its status was taken.
    descriptor = os.open(target.name, READ_FILE | os.O_NOFOLLOW, dir_fd=target.folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ToolFailed(f"Path {target.path!r} is not a file", code="not_a_file")
        return read_all(descriptor, target.path)
    finally:
        os.close(descriptor)


def check_size(size: int, path: str) -> None:
    if size > MAX_FILE_BYTES:
        raise ToolFailed(
            f"File {path!r} has {size} bytes, more than {MAX_FILE_BYTES}",
            hint="Look at parts of it with a command, such as head, tail or grep",
            code="too_large",
        )


def read_all(descriptor: int, path: str) -> bytes:
    """Read a whole file. Raises `ToolFailed` if it is too large."""
    check_size(os.fstat(descriptor).st_size, path)
    pieces: list[bytes] = []
    # Bounded, because the file can grow while it is read.
    left = MAX_FILE_BYTES
    while left > 0 and (piece := os.read(descriptor, min(_CHUNK_BYTES, left))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def replace_file(target: Target, data: bytes, *, before: bytes | None, context: ToolContext) -> None:
    """Write a temporary file, write the note, rename; each is on disk before the next.

    Raises `ToolFailed` if the file changed since `before` was read.
    """
    check_base(target.path, before, context)
    temporary = _temporary_name(context)
    with suppress(FileNotFoundError):  # left over from a killed attempt
        os.unlink(temporary, dir_fd=target.folder)
    try:
        _write_temporary(target, temporary, data)
        # The note is on disk before the rename: after a crash, its two hashes tell whether the rename happened.
        _write_note(context.spool, Note(path=target.path, before=hash_bytes(before), after=hash_bytes(data)))
        # As late as possible. The rest of the race, between this check and the rename, can't be closed.
        _check_unchanged(target)
        os.rename(temporary, target.name, src_dir_fd=target.folder, dst_dir_fd=target.folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=target.folder)
        raise
    # The rename itself survives a power cut only when the folder is on disk.
    os.fsync(target.folder)


def describe_written(scope: Scope, text: str, context: ToolContext) -> dict[str, JsonValue]:
    """Describe the current state of a file that a call wrote; empty if it can't be read anymore."""
    try:
        with scope.open_target(text, create_folders=False, guard=context.paths) as target:
            data = read_target(target)
    except ToolFailed:
        return {}
    if data is None:
        return {}
    path = str(context.workspace / target.path)
    return {"artifacts": [{"path": path, "sha256": hash_bytes(data), "bytes": len(data)}]}


def check_base(path: str, before: bytes | None, context: ToolContext) -> None:
    """Raise `ToolFailed` if the file is no longer in the state for which the user approved the change."""
    if context.base_hash is not None and hash_bytes(before) != context.base_hash:
        raise ToolFailed(
            f"File {path!r} changed since the change to it was approved", hint="Read it and ask again", code="conflict"
        )


def judge_note(scope: Scope, text: str, context: ToolContext) -> Finding:
    """Compare the file with the note, and clean up after a killed attempt. The finding `before` removes the note."""
    note = _read_note(context.spool)
    if note is None:
        return "no note"
    try:
        with scope.open_target(text, create_folders=False) as target:
            with suppress(FileNotFoundError):
                os.unlink(_temporary_name(context), dir_fd=target.folder)
            # If a link on the way leads elsewhere now, the note is about another file.
            now = hash_bytes(read_target(target)) if target.path == note.path else None
    except ToolFailed as error:
        now = NO_FILE if error.code == "not_found" else None
    if now == note.after:
        return "after"
    if now != note.before:
        return "neither"
    _withdraw_note(context.spool)
    return "before"


def _write_temporary(target: Target, name: str, data: bytes) -> None:
    # O_EXCL and O_NOFOLLOW: another process could have put a link under this name, to have its target overwritten.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    mode = _NEW_FILE_MODE if target.status is None else _OWNERS_ALONE
    descriptor = os.open(name, flags, mode, dir_fd=target.folder)
    try:
        if target.status is not None:
            # Before the first byte is written: the content must never be readable for others, not even briefly.
            with suppress(PermissionError):  # only the superuser gives files away
                os.fchown(descriptor, target.status.st_uid, target.status.st_gid)
            # The user gave setuid and setgid rights to the old content, not to the model's.
            os.fchmod(descriptor, stat.S_IMODE(target.status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
        rest = memoryview(data)
        while rest:
            # `write` may take only a part, for example on a full disk.
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_unchanged(target: Target) -> None:
    try:
        now = os.stat(target.name, dir_fd=target.folder, follow_symlinks=False)
    except FileNotFoundError:
        now = None
    if _identity(now) != _identity(target.status):
        raise ToolFailed(
            f"File {target.path!r} was changed by another process meanwhile", hint="Read it", code="conflict"
        )


def _identity(status: os.stat_result | None) -> tuple[int, ...]:
    # The inode tells a replaced file; size and time tell one that was written in place.
    return () if status is None else (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _temporary_name(context: ToolContext) -> str:
    """Return the same name for every attempt of a step, so that the next attempt finds a killed one's file."""
    key = hashlib.sha256(context.idempotency_key.encode()).hexdigest() if context.idempotency_key else ""
    return f".metier-{key[:24] or secrets.token_hex(12)}.tmp"


def _write_note(spool: Path | None, note: Note) -> None:
    if spool is not None:
        whole_file.replace_file(spool.with_name(spool.name + STARTED), msgspec.json.encode(note), durable=True)


def _read_note(spool: Path | None) -> Note | None:
    if spool is None:
        return None
    try:
        return msgspec.json.decode(spool.with_name(spool.name + STARTED).read_bytes(), type=Note)
    except FileNotFoundError:
        return None


def _withdraw_note(spool: Path | None) -> None:
    """Remove the note because the change did not happen: without one, the step counts as not started and runs again."""
    if spool is not None:
        spool.with_name(spool.name + STARTED).unlink(missing_ok=True)
        whole_file.sync_folder(spool.parent)
