"""The recording of a case: the run as an archive, and a note about the files it was made with.

recordings/<case>.run.gz    an export of the run, for `agent runs import`
recordings/<case>.json      file hashes, and the judge's verdicts

Hashes are per file and skip `evals/`: the tree hash that a run pins includes the recordings, and it can't name the
file that changed.

`capture_run` creates a case with its recording from a past run.
"""

import gzip
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from pydantic import Field, JsonValue, ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.engine.entries.question import ApprovalDecided
from metier.engine.file_timeline import FileEffect, list_effects, plan_restorations
from metier.errors import ArchiveRefused, UsageError
from metier.evals.bench import SHOWN_ROOT, WORKSPACE
from metier.evals.eval_files import WORKSPACE_FOLDER
from metier.evals.evidence import Evidence, build_evidence
from metier.evals.targets import SourcedCase, Target, get_target
from metier.runtime.history.archive import Archive, load_archive, render_archive
from metier.runtime.history.transfer import export_run, relocate_run
from metier.runtime.runs import Runtime
from metier.values import Value

FORMAT = 1
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MAX_NAME_LENGTH = 60
_MAX_BYTES = 1_000_000
"""Maximum size of a file whose current content becomes part of a captured case."""
_SPARE_TURNS = 2
"""Turns that a captured case allows in addition to those of its run."""


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
    """Return a valid file name. It contains a digest if the ID has special characters."""
    # A leading dot would hide the file, and programs take a leading dash for an option.
    safe = _SAFE.sub("-", case_id).strip("-.")[:_MAX_NAME_LENGTH]
    return safe if safe == case_id else f"{safe or 'case'}-{hashlib.sha256(case_id.encode()).hexdigest()[:8]}"


def find_recording(sourced: SourcedCase) -> CaseRecording | None:
    """Find the recording of a case. Raises `ArchiveRefused` if it was modified or is unreadable."""
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
    # Without a timestamp, so that the same run produces the same bytes.
    replace_file(run, gzip.compress(render_archive(recording.archive), mtime=0), is_private=False)
    # Last: if this process is killed before it, a missing note is an error, and an old one at most marks the recording
    # as stale.
    write_note(sourced, recording.note)
    return run


def write_note(sourced: SourcedCase, note: RecordingNote) -> None:
    base = sourced.recordings / name_recording(sourced.case.id)
    replace_file(base.with_name(f"{base.name}.json"), note.model_dump_json(indent=2).encode() + b"\n", is_private=False)


class Captured(Struct, frozen=True, kw_only=True):
    file: Path
    """The case file with the new case."""
    files: tuple[str, ...]
    """Paths of the run's known initial files."""
    unsure: tuple[str, ...]
    """Paths from `files` whose content is the current one, because the original is unknown."""
    sourced: SourcedCase
    target: Target


async def capture_run(runtime: Runtime, run_id: str, *, case_id: str, target_name: str = "") -> Captured:
    """Write `.agent/evals/<case>.yaml`, the files and the recording. Raises `UsageError`."""
    archive = await export_run(runtime, run_id)
    host = runtime.host
    target = get_target(host, target_name or _get_target(archive))
    file = host.workspace / WORKSPACE_FOLDER / f"{name_recording(case_id)}.yaml"
    if file.exists():
        raise UsageError(f"'{file}' exists", hint="Choose another ID with --id")
    given, unsure = _get_given(archive, host.workspace)
    evidence = build_evidence(archive, given={})
    file.parent.mkdir(parents=True, exist_ok=True)
    for path, data in given.items():
        copy = file.parent / "files" / file.stem / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
    file.write_text(_render(archive, evidence, target, case_id=case_id, has_files=bool(given)), "utf-8")
    # Read again, because the new file has made the case one of its cases.
    target = get_target(host, target.name)
    sourced = next(each for each in target.cases if each.file.endswith(f"/{file.name}"))
    moved = {
        str(host.workspace): f"{SHOWN_ROOT}/{WORKSPACE}",
        str(host.runs): f"{SHOWN_ROOT}/runs",
        archive.started.workspace: f"{SHOWN_ROOT}/{WORKSPACE}",
    }
    note = RecordingNote(case=sourced.case.digest, files=target.digest_files())
    write_recording(
        sourced,
        CaseRecording(await relocate_run(archive, runtime, moved=moved, base=str(host.workspace.parent)), note),
    )
    return Captured(file=file, files=tuple(given), unsure=tuple(unsure), sourced=sourced, target=target)


def _get_target(archive: Archive) -> str:
    started = archive.started
    if started.order is not None and started.order.task_id:
        return f"task:{started.order.task_id}"
    if started.agent:
        return f"agent:{started.agent}"
    if skills := archive.fold().used_skills:
        return f"skill:{skills[0]}"
    raise UsageError(
        "The run used no skill, no agent and no task of this workspace", hint="Name the target of the case with --for"
    )


def _get_given(archive: Archive, workspace: Path) -> tuple[dict[str, bytes], list[str]]:
    """Return the files before the run, and the paths of those whose content may have changed since.

    Files that the run changed are restored from the record. Files that it only read have their current content.
    """
    runs = (archive, *archive.children)
    effects = [each for run in runs for each in list_effects(run.run_id, run.entries) if isinstance(each, FileEffect)]
    known: dict[str, bytes] = {}
    changed: set[str] = set()
    for restoration in plan_restorations(effects):
        changed.add(restoration.path)
        before = restoration.target
        if before is not None and (data := archive.blobs.get(before.sha256)) is not None:
            known[restoration.path] = data
    unsure: list[str] = []
    for path in _list_read(archive, workspace):
        file = workspace / path
        if path not in changed and path not in known and file.is_file() and file.stat().st_size <= _MAX_BYTES:
            known[path] = file.read_bytes()
            unsure.append(path)
    return known, unsure


def _list_read(archive: Archive, workspace: Path) -> list[str]:
    """Return workspace paths in the arguments of calls."""
    found: list[str] = []
    for call in build_evidence(archive, given={}).calls:
        path = call.arguments.get("path") or call.arguments.get("file_path")
        if isinstance(path, str) and path:
            full = (workspace / path).resolve()
            if full.is_relative_to(workspace.resolve()):
                found.append(full.relative_to(workspace.resolve()).as_posix())
    return list(dict.fromkeys(found))


def _render(archive: Archive, evidence: Evidence, target: Target, *, case_id: str, has_files: bool) -> str:
    """Render readable YAML: one field per line, with JSON values."""
    started = archive.started
    fields: dict[str, JsonValue] = {"id": case_id, "prompt": started.task}
    if started.order is not None and started.order.inputs:
        fields["inputs"] = dict(started.order.inputs)
    if has_files:
        fields["files"] = [f"files/{name_recording(case_id)}"]
    if any(isinstance(entry, ApprovalDecided) and entry.decision == "denied" for entry in archive.entries):
        fields["approvals"] = "deny"
    lines = [f"{target.kind}: {json.dumps(target.id)}", "cases:"]
    start = "  - "
    for name, value in fields.items():
        lines.append(f"{start}{name}: {json.dumps(value, ensure_ascii=False)}")
        start = "    "
    lines.append("    checks:  # what the run did; keep what matters")
    lines += [f"      - {json.dumps(check, ensure_ascii=False)}" for check in _propose(evidence)]
    return "\n".join(lines) + "\n"


def _propose(evidence: Evidence) -> list[Mapping[str, JsonValue]]:
    checks: list[Mapping[str, JsonValue]] = [{"check": "exit_code", "equals": evidence.exit_code}]
    tools = dict.fromkeys(call.tool for call in evidence.calls if call.status == "succeeded" and call.tool)
    checks += [{"check": "tool_called", "tool": tool} for tool in tools]
    checks += [{"check": "skill_used", "skill": skill} for skill in evidence.skills]
    checks += [{"check": "file_exists", "path": path} for path in sorted(evidence.files)]
    if not evidence.denials:
        checks.append({"check": "no_policy_denial"})
    return [*checks, {"check": "max_turns", "value": evidence.turns + _SPARE_TURNS}]
