"""A run's status for an MCP client: a result, an error, or a sentence that says why it waits."""

import base64
import json
import mimetypes
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from metier.engine.state.run_state import RunState
from metier.protocols.mcp.endpoint import McpEndpoint
from metier.providers.failures import list_reasons
from metier.runtime.status import RunStatus
from metier.skills.package import list_files, read_file

MAX_FILES = 20
"""Maximum number of artifacts in a result."""
MAX_SHOWN_BYTES = 1_000_000
"""Maximum size of an image or sound that is embedded in the result."""
MAX_SHOWN_TEXT_LENGTH = 8_000
"""Maximum bytes of an embedded text."""
# The table of Python 3.12 lacks Markdown and names WAV `audio/x-wav`.
_TYPES = {".md": "text/markdown", ".wav": "audio/wav"}


def is_host_fault(status: RunStatus) -> bool:
    """Return whether the model failed or none is set up, which the client cannot fix."""
    failure = status.failed.failure if status.failed is not None else status.failure
    return failure is not None and failure.reason in list_reasons()


def describe_fault(status: RunStatus) -> str:
    """Describe in one sentence why there is no result."""
    if not status.is_stopped:
        return status.failure_text
    why = status.failed.failure.message if status.failed is not None and status.failed.failure is not None else ""
    return f"{status.pause_reason}{f': {why}' if why else ''}. Resume with agent resume {status.run_id}"


def build_result(endpoint: McpEndpoint, status: RunStatus) -> types.CallToolResult:
    """Build the result of a call. Raises `MCPError` for a fault of the host."""
    state = status.state
    if is_host_fault(status):
        # A protocol error, because a model that reads an error result would call the tool again in vain.
        raise build_fault(endpoint, status)
    if not status.is_over:
        return build_error(f"{describe_waiting(endpoint, status)} It is run {state.run_id}.")
    if state.status != "completed":
        sentence = f"The run is {state.status}: {describe_fault(status)}. It is run {state.run_id}."
        return build_error(endpoint.clean.text(sentence))
    text = endpoint.clean.text(state.result)
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)] if text else []
    content += _show_files(endpoint, state)
    content = content or [types.TextContent(type="text", text="Done.")]
    return types.CallToolResult(content=content, structured_content=_read_structured(endpoint, state))


def build_fault(endpoint: McpEndpoint, status: RunStatus) -> MCPError:
    message = endpoint.clean.text(describe_fault(status))
    return MCPError(code=types.INTERNAL_ERROR, message=message, data={"run": status.run_id})


def build_error(text: str) -> types.CallToolResult:
    """Build an error result, which the client's model can act on."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=True)


def describe_waiting(endpoint: McpEndpoint, status: RunStatus) -> str:
    """Describe the user's next action, which the client can't take itself. Empty if the run continues on its own."""
    if status.is_over or not status.pause:
        return ""
    reason, run_id = endpoint.clean.text(status.pause_reason), status.run_id
    match status.pause:
        case "approval":
            ways = [
                endpoint.link(each) if endpoint.link else f"agent approvals approve {each}"
                for each in status.approval_ids
            ]
            return f"Waits for a user: {reason}. Only a user can approve it, not this client: {'; '.join(ways)}."
        case "input":
            return f"Asks: {reason}. Answer it with: agent resume {run_id} --input NAME=VALUE."
        case "signal" | "delegation":
            return ""
        case _:
            return f"Waits for a user: {reason}. Show it with: agent runs show {run_id}."


def list_artifacts(endpoint: McpEndpoint, run_id: str) -> tuple[str, ...]:
    """List the run's artifacts by relative path."""
    folder = endpoint.runtime.folder(run_id) / "artifacts"
    return tuple(file.path for file in list_files(folder)) if folder.is_dir() and not folder.is_symlink() else ()


def get_artifact_uri(run_id: str, name: str) -> str:
    return f"metier://runs/{run_id}/artifacts/{name}"


def guess_type(name: str) -> str:
    """Guess the media type from the suffix, the same way on every machine."""
    if (known := _TYPES.get(Path(name).suffix)) is not None:
        return known
    # Not `mimetypes.guess_type`, which also reads the tables of the machine.
    return mimetypes.MimeTypes().guess_type(name)[0] or "application/octet-stream"


def read_artifact(endpoint: McpEndpoint, run_id: str, name: str) -> bytes:
    """Read an artifact. Raises `SkillError` for a path outside the artifacts, through a link, or without a file."""
    return read_file(endpoint.runtime.folder(run_id) / "artifacts", name)


def _show_files(endpoint: McpEndpoint, state: RunState) -> list[types.ContentBlock]:
    """Embed pictures, sounds and short texts; link to other files."""
    makers = [state.run_id, *(child.run_id for child in state.children)]
    files = [(run_id, name) for run_id in makers for name in list_artifacts(endpoint, run_id)]
    return [_show_file(endpoint, run_id, name) for run_id, name in files[:MAX_FILES]]


def _show_file(endpoint: McpEndpoint, run_id: str, name: str) -> types.ContentBlock:
    media, uri = guess_type(name), get_artifact_uri(run_id, name)
    kind = media.partition("/")[0]
    size = (endpoint.runtime.folder(run_id) / "artifacts" / name).lstat().st_size
    if kind in ("image", "audio") and size <= MAX_SHOWN_BYTES:
        data = base64.b64encode(read_artifact(endpoint, run_id, name)).decode()
        block = types.ImageContent if kind == "image" else types.AudioContent
        return block.model_validate({"type": kind, "data": data, "mimeType": media})
    if kind == "text" and size <= MAX_SHOWN_TEXT_LENGTH:
        text = endpoint.redactor.redact(read_artifact(endpoint, run_id, name).decode("utf-8", "replace"))
        contents = types.TextResourceContents(uri=uri, mime_type=media, text=text)
        return types.EmbeddedResource(type="resource", resource=contents)
    return types.ResourceLink(type="resource_link", uri=uri, name=Path(name).name, mime_type=media)


def _read_structured(endpoint: McpEndpoint, state: RunState) -> dict[str, Any] | None:
    """Return the result as an object if the run has an output schema."""
    try:
        value = endpoint.clean.value(json.loads(state.result))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
