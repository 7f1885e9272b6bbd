"""What an editor holds of a file against what is on disk. The disk stays the one truth of what a step changes."""

from metier.errors import ToolFailed
from metier.tools.buffers import Buffers
from metier.tools.files.scope import Scope
from metier.tools.files.text import decode


async def find_held(path: str, scope: Scope, buffers: Buffers) -> str | None:
    """The text that an editor holds of the file that a path of a call means. Raises `ToolFailed` for one outside."""
    spot = scope.locate(path)
    return await buffers.read(spot.root / spot.path)


def is_unsaved(held: str | None, disk: bytes | None) -> bool:
    """The editor shows another text than the disk has. Line ends do not count: editors have their own."""
    if held is None:
        return False
    found = decode(disk) if disk is not None else None
    if disk is not None and found is None:
        return False  # not text, so not what a buffer holds
    return _plain(held) != _plain(found.text if found is not None else "")


def overlay(held: str | None, disk: bytes | None) -> bytes | None:
    """What the user sees."""
    return held.encode("utf-8", "replace") if held is not None and is_unsaved(held, disk) else disk


def check_saved(held: str | None, disk: bytes | None, *, path: str) -> None:
    """Raises `ToolFailed`: a change on disk would be lost, or take back what the user wrote."""
    if is_unsaved(held, disk):
        raise ToolFailed(
            f"File {path!r} has changes in the editor that are not saved", hint="Have the user save it", code="conflict"
        )


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")
