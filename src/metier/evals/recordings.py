"""The recording of a case: the run as an archive, and a note about the files it was made with.

recordings/<case>.run.gz    an export of the run, for `agent runs import`
recordings/<case>.json      file hashes, and the judge's verdicts

Hashes are per file and skip `evals/`: the tree hash that a run pins includes the recordings, and it can't name the
file that changed.
"""

import gzip
import hashlib
import re
from pathlib import Path

from msgspec import Struct
from pydantic import Field, ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.errors import ArchiveRefused
from metier.evals.targets import SourcedCase
from metier.runtime.history.archive import Archive, load_archive, render_archive
from metier.values import Value

FORMAT = 1
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_LENGTH = 60


class Judged(Value):
    """The judge's verdict about a sentence."""

    passed: bool
    evidence: str = ""
    model: str = ""


class RecordingNote(Value):
    format: int = FORMAT
    case: str
    """Digest of the case."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of the target's files, by path."""
    judged: dict[str, Judged] = Field(default_factory=dict)
    """Verdicts about this run by sentence."""


class CaseRecording(Struct, frozen=True):
    archive: Archive
    note: RecordingNote


def name_recording(case_id: str) -> str:
    """Return a valid file name. IDs that differ only in special characters get a digest."""
    safe = _SAFE.sub("-", case_id).strip("-.")[:_MAX_NAME_LENGTH]
    return safe if safe == case_id else f"{safe or 'case'}-{hashlib.sha256(case_id.encode()).hexdigest()[:8]}"


def find_recording(sourced: SourcedCase) -> CaseRecording | None:
    """Read a recording; None without one. Raises `ArchiveRefused` for a modified or unreadable one."""
    base = sourced.recordings / name_recording(sourced.case.id)
    run, note = base.with_name(f"{base.name}.run.gz"), base.with_name(f"{base.name}.json")
    if not run.is_file():
        return None
    try:
        read = RecordingNote.model_validate_json(note.read_bytes())
    except (OSError, ValidationError) as error:
        raise ArchiveRefused(f"'{note}' cannot be read", hint="Record the case again with --record") from error
    return CaseRecording(load_archive(run), read)


def write_recording(sourced: SourcedCase, recording: CaseRecording) -> Path:
    """Write both files atomically."""
    base = sourced.recordings / name_recording(sourced.case.id)
    base.parent.mkdir(parents=True, exist_ok=True)
    run = base.with_name(f"{base.name}.run.gz")
    # No timestamp, so that the same run gives the same bytes.
    replace_file(run, gzip.compress(render_archive(recording.archive), mtime=0), is_private=False)
    write_note(sourced, recording.note)
    return run


def write_note(sourced: SourcedCase, note: RecordingNote) -> None:
    base = sourced.recordings / name_recording(sourced.case.id)
    replace_file(base.with_name(f"{base.name}.json"), note.model_dump_json(indent=2).encode() + b"\n", is_private=False)
