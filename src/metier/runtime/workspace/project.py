"""Project instructions of a place: which files there are, and whose text they are."""

from collections.abc import Callable, Mapping
from pathlib import Path

from metier.dataclass import dataclass
from metier.definitions.problems import Problem
from metier.definitions.project_files import (
    ProjectFile,
    load_nearby_files,
    load_personal_file,
    load_project_file,
)
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.host import Host

PROJECT = "project:"
"""Pin of a file of project instructions: its hash. The text that was used is among the instructions of the run."""


def load_project(place: Host) -> tuple[ProjectFile, ...]:
    """The person's own file, then that of the workspace, which may say otherwise. Redacted and sanitised."""
    return _load(place, build_place_cleaner(place).text)


def _load(place: Host, clean: Callable[[str], str]) -> tuple[ProjectFile, ...]:
    own = load_personal_file(place.home, clean=clean)
    shared = load_project_file(place.workspace, within=place.workspace, clean=clean, is_own=place.trust.is_trusted)
    return tuple(file for file in (own, shared) if file is not None)


def find_changed_project(place: Host, pins: Mapping[str, str]) -> tuple[str, ...]:
    """Pins of files that are no longer what the run began with."""
    pinned = {name: digest for name, digest in pins.items() if name.startswith(PROJECT)}
    if not pinned:
        return ()
    now = {f"{PROJECT}{file.path}": file.sha256 for file in load_project(place)}
    return tuple(name for name, digest in pinned.items() if now.get(name) != digest)


def find_project_problems(place: Host) -> dict[Path, tuple[Problem, ...]]:
    """What is wrong with the instructions of the workspace, by file."""
    files = [file for file in _load(place, lambda text: text) if not file.path.startswith("~")]
    return {place.workspace / file.path: file.problems for file in files}


@dataclass(frozen=True, slots=True, kw_only=True)
class NearbyFiles:
    """Finds the instructions of folders that a run comes to. An `engine.nearby.Nearby`."""

    workspace: Path
    clean: Callable[[str], str]
    is_own: bool

    def find(self, path: str) -> tuple[ProjectFile, ...]:
        return load_nearby_files(path, workspace=self.workspace, clean=self.clean, is_own=self.is_own)
