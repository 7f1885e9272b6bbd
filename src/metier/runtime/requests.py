"""A request for a new run, and the schema that its result must have."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.engine.entries.run import RunWorktree
from metier.engine.entries.task import ChildRequest
from metier.errors import UsageError
from metier.runtime.host import Host
from metier.runtime.workspace.instructions import ExtraInput
from metier.telemetry.otel.trace_context import VARIABLE
from metier.tools.base import Media
from metier.tools.schemas import SchemaCheck

MAX_SCHEMA_BYTES = 256_000


class RunRequest(Struct, frozen=True, kw_only=True):
    """A request for a new run, from a user or from another run. Its first entry records the result."""

    task: str
    mode: Literal["live", "dry_run"] = "live"
    extra_context: str = ""
    agent: str = ""
    """ID of the agent; empty for the one of the settings, or the built-in one."""
    model: str = ""
    """Model to use instead of the agent's; the agent must allow it."""
    order: ChildRequest | None = None
    """Work that a parent run or a task definition requests; its agent applies, not the one of the settings."""
    parent_run_id: str = ""
    inherited_pins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pins of the parent run that bind this one too."""
    parent_worktree: RunWorktree | None = None
    """The parent's worktree, which this run works in too unless it gets its own."""
    settings_digest: str = ""
    """Digest of the parent's settings; empty for those of the process that starts the run."""
    extra_input: ExtraInput | None = None
    """The conversation before it, and the task step that it carries out."""
    context_id: str = ""
    """Its conversation; empty for a run on its own."""
    run_id: str = ""
    """ID derived from the requester, if any; starting it twice raises `RunExists`."""
    trace_parent: str = ""
    """The W3C `traceparent` of the request; invalid values are ignored."""
    attachments: tuple[Media, ...] = ()
    """Pictures and documents for the model; see `runtime.attachments`."""
    output_schema: dict[str, JsonValue] | None = None
    """JSON Schema of its result; an order has its own."""


def build_ordered(order: ChildRequest) -> RunRequest:
    """Build the request for the work that a parent run or a task definition requests."""
    return RunRequest(task=order.task, agent=order.agent, model=order.model, order=order)


def join_trace(request: RunRequest, host: Host) -> RunRequest:
    """Return the request as part of the environment's trace, if there is one."""
    return replace(request, trace_parent=host.environ.get(VARIABLE, ""))


type Schema = dict[str, JsonValue]


def read_output_schema(given: str) -> Schema:
    """Read a JSON Schema from text or a file. Raises `UsageError`."""
    text = given if given.lstrip().startswith("{") else _read_file(Path(given))
    try:
        found = cast("object", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"The output schema is not JSON: {error}", hint="Give a JSON schema, or its file") from error
    return check_output_schema(found)


def check_output_schema(schema: object) -> Schema:
    """Check that it is a usable JSON Schema. Raises `UsageError`."""
    if not isinstance(schema, dict):
        raise UsageError("The output schema is not a JSON object", hint='Such as {"type": "object", "properties": …}')
    found = cast("Schema", schema)  # the caller parsed it from JSON
    try:
        SchemaCheck("output_schema", found)
    except (UsageError, TypeError) as error:
        reason = error.message.partition("invalid schema: ")[2] if isinstance(error, UsageError) else str(error)
        raise UsageError(f"The output schema is not a JSON schema: {reason}") from error
    return found


def _read_file(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_SCHEMA_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"The output schema {str(file)!r} cannot be read: {error.strerror}", hint="Give a JSON schema, or its file"
        ) from error
    if len(data) > MAX_SCHEMA_BYTES:
        raise UsageError(f"The output schema {str(file)!r} is larger than {MAX_SCHEMA_BYTES} bytes")
    return data.decode("utf-8", "replace")
