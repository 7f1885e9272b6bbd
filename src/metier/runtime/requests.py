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
from metier.telemetry.tracing import VARIABLE
from metier.tools.base import Media
from metier.tools.schemas import SchemaCheck

MAX_SCHEMA_BYTES = 256_000


class RunRequest(Struct, frozen=True, kw_only=True):
    """A request for a new run, from a user or from another run. The run's first entry is built from it."""

    task: str
    mode: Literal["live", "dry_run"] = "live"
    extra_context: str = ""
    agent: str = ""
    """ID of the agent; empty for the default agent of the settings, or the built-in one."""
    model: str = ""
    """Model to use instead of the agent's; the agent must allow it."""
    order: ChildRequest | None = None
    """Request of a parent run or a task definition. Its agent applies instead of the default one."""
    parent_run_id: str = ""
    inherited_pins: Mapping[str, str] = field(default_factory=dict[str, str])
    """Pins of the parent run that also bind this run."""
    parent_worktree: RunWorktree | None = None
    """Worktree of the parent, which this run shares unless it gets its own."""
    settings_digest: str = ""
    """Digest of the parent's settings; empty for the settings of the starting process."""
    extra_input: ExtraInput | None = None
    """Conversation before the run, and the task step that it executes."""
    context_id: str = ""
    """ID of its conversation; empty for a run without one."""
    run_id: str = ""
    """ID to use, derived from the requester; starting it twice raises `RunExists`. Empty for a new ID."""
    trace_parent: str = ""
    """The W3C `traceparent` of the request; invalid values are ignored."""
    attachments: tuple[Media, ...] = ()
    """Pictures and documents for the model; see `runtime.attachments`."""
    output_schema: dict[str, JsonValue] | None = None
    """JSON Schema of the result; a request in `order` has its own."""


def build_ordered(order: ChildRequest) -> RunRequest:
    """Build the run request for work that a parent run or a task definition requests."""
    return RunRequest(task=order.task, agent=order.agent, model=order.model, order=order)


def join_trace(request: RunRequest, host: Host) -> RunRequest:
    """Return the request with the trace of the environment (`TRACEPARENT`), if there is one."""
    return replace(request, trace_parent=host.environ.get(VARIABLE, ""))


type Schema = dict[str, JsonValue]


def read_output_schema(given: str) -> Schema:
    """Read a JSON Schema from text or a file. Raises `UsageError`."""
    # A schema of this kind is always an object, and file names don't start like one.
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
