"""Replace a file as a whole: a reader meanwhile, or after a crash, finds its old content or its new one."""

import os
import secrets
from pathlib import Path


def replace_file(path: Path, content: bytes, *, durable: bool = False, is_private: bool = True) -> None:
    """`durable` where losing it in a power cut would matter. Without `is_private` the file has the mode of any other.

    Raises `OSError`, and leaves nothing of the new content behind then.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(fresh, flags, 0o600 if is_private else 0o666), "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut. Windows has no such call, and needs none."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
