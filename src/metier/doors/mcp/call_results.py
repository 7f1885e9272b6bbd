"""How a run stands, as an MCP client reads it: a result, an error, or a sentence on what it waits for."""

import base64
import json
import mimetypes
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError
from msgspec import Struct

from metier.doors.mcp.door import McpDoor
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.providers.failures import list_reasons
from metier.runtime.child_runs import find_failed
from metier.skills.package import list_files, read_file

MOST_FILES = 20
"""Artifacts that a result names."""
LARGEST_SHOWN_BYTES = 1_000_000
"""Of an image or a sound that is part of the result itself."""
LONGEST_SHOWN_TEXT = 8_000
"""Bytes of a text that is."""
_TYPES = {".md": "text/markdown", ".wav": "audio/wav"}


class Standing(Struct, frozen=True, kw_only=True):
    """A run, and the run below it that is waited for: the same one, or one that it handed work to."""

    state: RunState
    waiting: RunState
    failed: RunState | None = None
    """The run that failed where this one stopped because of it: the same one, or one below."""

    @property
    def is_over(self) -> bool:
        """It ended, or stopped at a step that failed: a user may fix that later, but the call has its answer."""
        return self.state.phase in FINAL or self.is_stopped

    @property
    def is_stopped(self) -> bool:
        return self.waiting.pause is not None and self.waiting.pause.pause == "step_failed"

    @property
    def is_asking(self) -> bool:
        """A question may travel to the client."""
        pause = self.waiting.pause
        return not self.is_over and pause is not None and pause.pause == "input" and self.waiting.question is not None

    @property
    def approvals(self) -> tuple[str, ...]:
        if self.is_over or self.waiting.pause is None or self.waiting.pause.pause != "approval":
            return ()
        return tuple(step.approval_id for step in self.waiting.steps if step.phase == "asking")

    @property
    def is_fault_of_host(self) -> bool:
        """No model answered, or none is set up: nothing that the caller could do differently."""
        failure = self.failed.failure if self.failed is not None else self.state.failure
        return failure is not None and failure.reason in list_reasons()

    @property
    def fault(self) -> str:
        """Why it did not come to a result, in a sentence."""
        if self.is_stopped and self.waiting.pause is not None:
            why = self.failed.failure.message if self.failed is not None and self.failed.failure is not None else ""
            return f"{self.waiting.pause.reason}{f': {why}' if why else ''}. agent resume {self.state.run_id} goes on"
        failure = self.state.failure
        return f"{failure.message} ({failure.reason})" if failure is not None else self.state.status


async def find_standing(door: McpDoor, run_id: str) -> Standing:
    state = await door.runtime.read(run_id)
    waiting = await door.runtime.find_waiting(state)
    return Standing(state=state, waiting=waiting, failed=await find_failed(door.runtime.store, waiting))


def build_result(door: McpDoor, standing: Standing) -> types.CallToolResult:
    """What the call came to. Raises `MCPError` where the host could not do it at all."""
    state = standing.state
    if standing.is_fault_of_host:
        raise build_fault(door, standing)
    if not standing.is_over:
        return build_error(f"{describe_waiting(door, standing)} It is run {state.run_id}.")
    if state.status != "completed":
        return build_error(door.clean.text(f"The run is {state.status}: {standing.fault}. It is run {state.run_id}."))
    text = door.clean.text(state.result)
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)] if text else []
    content += _show_files(door, state)
    content = content or [types.TextContent(type="text", text="Done.")]
    return types.CallToolResult(content=content, structured_content=_read_structured(door, state))


def build_fault(door: McpDoor, standing: Standing) -> MCPError:
    message = door.clean.text(standing.fault)
    return MCPError(code=types.INTERNAL_ERROR, message=message, data={"run": standing.state.run_id})


def build_error(text: str) -> types.CallToolResult:
    """For the model of the client, which may do better next time."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def describe_waiting(door: McpDoor, standing: Standing) -> str:
    """What a user does next; nothing that the client itself could decide. Empty where it continues by itself."""
    waiting, run_id = standing.waiting, standing.state.run_id
    if standing.is_over or waiting.pause is None:
        return ""
    said = door.clean.text(waiting.pause.reason)
    if standing.approvals:
        ways = [door.link(each) if door.link else f"agent approvals approve {each}" for each in standing.approvals]
        return f"Waits for a person: {said}. Only a person approves it, not this client: {'; '.join(ways)}."
    if waiting.pause.pause == "input":
        return f"Asks: {said}. Answer it with: agent resume {run_id} --input NAME=VALUE."
    if waiting.pause.pause in ("signal", "delegation"):
        return ""
    return f"Waits for a person: {said}. Look at it with: agent runs show {run_id}."


def list_artifacts(door: McpDoor, run_id: str) -> tuple[str, ...]:
    """The files that the run made for its caller, by their path below its artifacts."""
    folder = door.runtime.folder(run_id) / "artifacts"
    return tuple(file.path for file in list_files(folder)) if folder.is_dir() and not folder.is_symlink() else ()


def get_artifact_uri(run_id: str, name: str) -> str:
    return f"metier://runs/{run_id}/artifacts/{name}"


def guess_type(name: str) -> str:
    """By its ending, the same on every machine."""
    if (known := _TYPES.get(Path(name).suffix)) is not None:
        return known
    return mimetypes.MimeTypes().guess_type(name)[0] or "application/octet-stream"


def read_artifact(door: McpDoor, run_id: str, name: str) -> bytes:
    """Raises `SkillError` for a path that leaves the artifacts, passes a link or names no file."""
    return read_file(door.runtime.folder(run_id) / "artifacts", name)


def _show_files(door: McpDoor, state: RunState) -> list[types.ContentBlock]:
    """Pictures, sounds and short texts themselves, of other files where they can be read."""
    makers = [state.run_id, *(child.run_id for child in state.children)]
    files = [(run_id, name) for run_id in makers for name in list_artifacts(door, run_id)]
    return [_show_file(door, run_id, name) for run_id, name in files[:MOST_FILES]]


def _show_file(door: McpDoor, run_id: str, name: str) -> types.ContentBlock:
    media, uri = guess_type(name), get_artifact_uri(run_id, name)
    kind = media.partition("/")[0]
    size = (door.runtime.folder(run_id) / "artifacts" / name).lstat().st_size
    if kind in ("image", "audio") and size <= LARGEST_SHOWN_BYTES:
        data = base64.b64encode(read_artifact(door, run_id, name)).decode()
        block = types.ImageContent if kind == "image" else types.AudioContent
        return block.model_validate({"type": kind, "data": data, "mimeType": media})
    if kind == "text" and size <= LONGEST_SHOWN_TEXT:
        text = door.redactor.redact(read_artifact(door, run_id, name).decode("utf-8", "replace"))
        contents = types.TextResourceContents(uri=uri, mime_type=media, text=text)
        return types.EmbeddedResource(type="resource", resource=contents)
    return types.ResourceLink(type="resource_link", uri=uri, name=Path(name).name, mime_type=media)


def _read_structured(door: McpDoor, state: RunState) -> dict[str, Any] | None:
    """An object where the run was held to a schema; its result is then JSON of that schema."""
    try:
        value = door.clean.value(json.loads(state.result))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
