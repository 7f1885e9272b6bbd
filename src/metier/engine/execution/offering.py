"""What a run changed in a worktree of its own, offered to the run that asked for it as a diff. Nothing is applied."""

import hashlib
from pathlib import Path

from msgspec.structs import replace

from metier.definitions.files.whole_file import replace_file
from metier.engine.services import Services
from metier.engine.state import RunState
from metier.tools.base import ToolResult
from metier.tools.files.snapshots import Unavailable
from metier.tools.process.sandbox.confinement import ARTIFACTS


async def offer_changes(result: ToolResult, child: RunState, services: Services) -> ToolResult:
    """The result with the diff behind it. The whole diff is an artifact of the run that gets it."""
    tree = child.started.worktree if child.started is not None else None
    if tree is None or services.worktrees is None:
        return result
    try:
        diff = await services.worktrees.read(child.run_id, tree)
    except Unavailable as why:
        return _add(result, f"[Its changes cannot be shown: {why}. They are in {tree.path}]")
    if not diff:
        return _add(result, "[It changed no files]")
    file = keep_changes(services.run_folder, child.run_id, diff)
    path = file.relative_to(services.workspace) if file.is_relative_to(services.workspace) else file
    note = (
        "[What it changed is not in the workspace. To have it there, make the same changes, or run"
        f" `git apply {path}`]\n{diff.decode('utf-8', 'replace')}"
    )
    kept = {"path": str(file), "sha256": hashlib.sha256(diff).hexdigest(), "bytes": len(diff)}
    return replace(_add(result, note), meta={**result.meta, "artifacts": [kept]})


def keep_changes(folder: Path, child_run_id: str, diff: bytes) -> Path:
    """Where the diff is, among the artifacts of the run that asked for the work."""
    file = folder / ARTIFACTS / f"{child_run_id}.diff"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, diff)
    return file


def _add(result: ToolResult, note: str) -> ToolResult:
    if result.ok:
        return replace(result, output=f"{result.output}\n\n{note}")
    return replace(result, error=f"{result.error}\n\n{note}")
