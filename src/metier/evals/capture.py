"""Creates an eval case from a past run: its request, its initial files, and the run itself as the recording."""

import json
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from pydantic import JsonValue

from metier.engine.entries.question import ApprovalDecided
from metier.engine.file_timeline import FileEffect, list_effects, plan_restorations
from metier.errors import UsageError
from metier.evals.bench import SHOWN_ROOT, WORKSPACE
from metier.evals.eval_files import WORKSPACE_FOLDER
from metier.evals.evidence import Evidence, build_evidence
from metier.evals.recordings import CaseRecording, RecordingNote, name_recording, write_recording
from metier.evals.targets import SourcedCase, Target, get_target
from metier.runtime.history.archive import Archive
from metier.runtime.history.transfer import export_run, relocate_run
from metier.runtime.runs import Runtime

_MAX_BYTES = 1_000_000
_SPARE_TURNS = 2


class Captured(Struct, frozen=True, kw_only=True):
    file: Path
    """The file of the cases, including this one."""
    files: tuple[str, ...]
    """Known initial files of the run."""
    unsure: tuple[str, ...]
    """Those of `files` with their current content, because the original is unknown."""
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
    """Return the files before the run: changed ones from the record, files it only read with their current content."""
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
