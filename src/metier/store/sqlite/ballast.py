"""Reserved space beside the database: on a full disk SQLite cannot even delete, and this is what is given up then."""

import os
import shutil
import sys
from pathlib import Path

SIZE = 4 * 1024 * 1024
"""Twice the length of the write-ahead log: the log must be copied into the database before its space can be used again.
With 1 MiB that copying takes all of it, and nothing can be deleted."""
ROOM_TO_RESTORE = 4 * SIZE
"""The reserve is made again only when this much is free, so that it never takes the last space of others."""


class Ballast:
    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".ballast")

    def is_there(self) -> bool:
        return self._path.exists()

    def release(self) -> None:
        """Free the reserve, so that runs can note that they pause, and old ones can be deleted."""
        self._remove(self._path)

    def restore(self) -> None:
        """Reserve the space again where it is missing and there is room. Never fails: it is a precaution."""
        if self.is_there():
            return
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            if shutil.disk_usage(self._path.parent).free >= ROOM_TO_RESTORE:
                self._write(part)
                part.replace(self._path)
        except OSError:
            self._remove(part)

    def _write(self, path: Path) -> None:
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            if sys.platform == "linux":
                os.posix_fallocate(descriptor, 0, SIZE)
            else:
                stream.write(os.urandom(SIZE))  # random: file systems that compress would reserve nothing for zeros

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return
