"""The recording of a case: the run, as an archive, and a note beside it of what it was made with. Reads and writes.

recordings/<case>.run.gz    an export of the run; `agent runs import` takes it
recordings/<case>.json      hashes of the files in force, and what a judge said

Hashes are per file and skip `evals/`: the tree hash that a run pins covers the recordings and can't name the change.
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
from metier.messages import Value
from metier.runtime.history.archive import Archive, load_archive, render_archive

FORMAT = 1
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MOST = 60


class Judged(Value):
    """What a judge said about a sentence."""

    passed: bool
    evidence: str = ""
    model: str = ""


class RecordingNote(Value):
    format: int = FORMAT
    case: str
    """Digest of what the run was given."""
    files: dict[str, str] = Field(default_factory=dict)
    """Path → SHA-256 of what the target was made of."""
    judged: dict[str, Judged] = Field(default_factory=dict)
    """Sentence → verdict about this run."""


class CaseRecording(Struct, frozen=True):
    archive: Archive
    note: RecordingNote


def name_recording(case_id: str) -> str:
    """A name for a file; ids that differ only in odd characters get a digest, so that they do not share one."""
    safe = _SAFE.sub("-", case_id).strip("-.")[:_MOST]
    return safe if safe == case_id else f"{safe or 'case'}-{hashlib.sha256(case_id.encode()).hexdigest()[:8]}"


def find_recording(sourced: SourcedCase) -> CaseRecording | None:
    """None where there is none. Raises `ArchiveRefused` for one that was changed or cannot be read."""
    base = sourced.recordings / name_recording(sourced.case.id)
    run, note = base.with_name(f"{base.name}.run.gz"), base.with_name(f"{base.name}.json")
    if not run.is_file():
        return None
    try:
        read = RecordingNote.model_validate_json(note.read_bytes())
    except (OSError, ValidationError) as error:
        raise ArchiveRefused(f"'{note}' cannot be used", hint="Record the case again with --record") from error
    return CaseRecording(load_archive(run), read)


def write_recording(sourced: SourcedCase, recording: CaseRecording) -> Path:
    """Both files, each whole or not at all; the note last: a kill in between leaves it stale."""
    base = sourced.recordings / name_recording(sourced.case.id)
    base.parent.mkdir(parents=True, exist_ok=True)
    run = base.with_name(f"{base.name}.run.gz")
    # Without a time in it the same run gives the same bytes.
    replace_file(run, gzip.compress(render_archive(recording.archive), mtime=0), is_private=False)
    write_note(sourced, recording.note)
    return run


def write_note(sourced: SourcedCase, note: RecordingNote) -> None:
    base = sourced.recordings / name_recording(sourced.case.id)
    replace_file(base.with_name(f"{base.name}.json"), note.model_dump_json(indent=2).encode() + b"\n", is_private=False)
