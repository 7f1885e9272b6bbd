"""Write a file for the user atomically, and overwrite an existing one only on request."""

import errno
import os
import secrets
import stat
from pathlib import Path

from metier.errors import UsageError

_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of file systems without hard links."""


def write_new_file(path: Path, text: str, *, overwrite: bool) -> None:
    """Write `text` to `path` and create its folders. On failure an existing file is unchanged. Raises `UsageError`."""
    try:
        _check_free(path, overwrite=overwrite)
        # Follow links, so that the target is replaced and the link stays.
        target = Path(os.path.realpath(path))
        _make_folder(target.parent)
        _write_whole(target, text, overwrite=overwrite)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"'{path}' cannot be written: {reason}", hint="Choose another path") from error


def _check_free(path: Path, *, overwrite: bool) -> None:
    if path.is_dir():
        raise UsageError(f"'{path}' is a directory", hint=f"Pass a file in it, such as '{path / 'agent.yaml'}'")
    # Also a dangling link: writing would create its target, which may be anywhere.
    if not overwrite and os.path.lexists(path):
        raise _exists(path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise UsageError(f"'{folder}' is not a directory", hint="Choose another path") from error


def _write_whole(target: Path, text: str, *, overwrite: bool) -> None:
    # In the same folder: a rename is atomic only within one file system.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        # Exclusive: this never writes through a link that was planted under the name of the draft.
        with draft.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            # Before the rename: after a power failure the new name must not point to an empty file.
            os.fsync(stream.fileno())
        if overwrite:
            if target.exists():
                # The draft has default permissions; the replaced file may be private.
                draft.chmod(stat.S_IMODE(target.stat().st_mode))
            draft.replace(target)
        else:
            _link(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _link(draft: Path, target: Path) -> None:
    """Create the file by a hard link: unlike a rename, it fails if another process created the file first."""
    try:
        target.hardlink_to(draft)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Not exclusive: without hard links, a file that was created since `_check_free` is overwritten.
        draft.replace(target)


def _exists(path: Path) -> UsageError:
    return UsageError(f"'{path}' already exists", hint="Add --force to overwrite it, or choose another path")
