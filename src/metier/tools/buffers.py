"""The user's unsaved files. Imports nothing, because a host is opened by commands that run no tools."""

from pathlib import Path
from typing import Protocol


class Buffers(Protocol):
    """Files that are open in the user's editor, whose text may be newer than the disk."""

    async def read(self, path: Path) -> str | None:
        """Return the editor's text; None if the file isn't open there."""
        ...

    async def save(self, path: Path, text: str) -> None:
        """Ask the editor to save the file with this text, if it supports that."""
        ...


class NoBuffers:
    """No editor: files are as they are on disk."""

    async def read(self, path: Path) -> str | None:
        del path

    async def save(self, path: Path, text: str) -> None:
        del path, text
