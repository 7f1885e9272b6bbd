"""The files that a run wrote, by the hash that its journal has of each: what can still be had, and its bytes."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from anyio.to_thread import run_sync

from metier.dataclass import dataclass
from metier.definitions.files.contained_file import read_contained
from metier.engine import entries as e
from metier.engine.journal import read_entries_of
from metier.errors import FilesChanged, UsageError
from metier.runtime.runs import Runtime

MOST_BYTES = 100_000_000
_MOST_LISTED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    name: str
    """Its path from the workspace, or its name where it is a file of the run."""
    sha256: str
    """Of the bytes that were written last."""
    bytes: int
    step_id: str
    file: Path


async def list_artifacts(
    runtime: Runtime, run_id: str, *, entries: Sequence[e.Entry] | None = None
) -> tuple[Artifact, ...]:
    """The last state of each file, in the order in which they were first written."""
    entries = await read_entries_of(runtime.store, run_id, e.StepFinished) if entries is None else entries
    roots = (runtime.folder(run_id), runtime.place.workspace)
    found = {artifact.file: artifact for artifact in _find(entries, roots)}
    return tuple(found.values())[:_MOST_LISTED]


async def read_artifact(runtime: Runtime, run_id: str, sha256: str) -> tuple[Artifact, bytes]:
    """The bytes that the run wrote. Raises `UsageError` for a hash of none, `FilesChanged` where they are gone."""
    found = next((each for each in await list_artifacts(runtime, run_id) if each.sha256 == sha256), None)
    if found is None:
        raise UsageError(f"Run {run_id!r} wrote no file of this hash", hint="Its page lists those that it wrote")
    roots = (runtime.folder(run_id), runtime.place.workspace)
    within = next(root for root in roots if found.file.is_relative_to(root))
    try:
        data = await run_sync(lambda: read_contained(found.file, within=within, limit=MOST_BYTES))
    except OSError as error:
        raise FilesChanged(f"{found.name!r} cannot be read: {error.strerror}", hint="It may be gone") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise FilesChanged(
            f"{found.name!r} is no longer what the run wrote",
            hint="Load the page again, or look at the diff of its step",
        )
    return found, data


def _find(entries: Sequence[e.Entry], roots: Sequence[Path]) -> Iterator[Artifact]:
    """Only what lies in the run's folder or in the workspace: a journal from elsewhere may name any path."""
    finished = [entry for entry in entries if isinstance(entry, e.StepFinished)]
    for step_id, noted in ((step.step_id, noted) for step in finished for noted in step.artifacts):
        given, size = Path(str(noted.get("path", ""))), noted.get("bytes")
        file = given if given.is_absolute() else roots[-1] / given
        root = next((each for each in roots if file.is_relative_to(each)), None)
        if root is not None and ".." not in file.parts:
            yield Artifact(
                name=file.relative_to(root).as_posix(),
                sha256=str(noted.get("sha256", "")),
                bytes=size if isinstance(size, int) else 0,
                step_id=step_id,
                file=file,
            )
