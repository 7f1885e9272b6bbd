"""The seam for snapshots of a workspace around programs."""

from typing import Protocol

from metier.tools.files.snapshots import Changed


class Snapshotting(Protocol):
    """Takes snapshots of the workspace; `tools.files.snapshots.Snapshots` is one."""

    def take(self) -> str: ...

    def compare(self, before: str, after: str) -> list[Changed]: ...
