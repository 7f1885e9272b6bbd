"""Files as the user's editor holds them."""

from pathlib import Path
from typing import Protocol


class Buffers(Protocol):
    """Files as an editor holds them, which may be newer than the disk."""

    async def read(self, path: Path) -> str | None:
        """The text that the editor shows; None where it does not say."""
        ...

    async def save(self, path: Path, text: str) -> None:
        """Have the editor write what it holds to the disk, as far as it does that."""
        ...


class NoBuffers:
    """There is no editor: files are what they are on disk."""

    async def read(self, path: Path) -> str | None:
        del path

    async def save(self, path: Path, text: str) -> None:
        del path, text
