"""A run as an A2A task, and the receivers of its push notifications."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

from pydantic import Field, JsonValue

from metier.errors import ToolFailed
from metier.runtime.host import Host
from metier.runtime.status import RunStatus
from metier.store.base import Store
from metier.store.outbox import OutboxRow
from metier.tools.web.url import WebAccess, WebUrl, list_addresses, parse_url
from metier.values import Value

RESULT = "result"
TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELED", "REJECTED"})
INTERRUPTED = frozenset({"INPUT_REQUIRED", "AUTH_REQUIRED"})
RESTING = TERMINAL | INTERRUPTED
"""States in which nothing happens until the caller or a user acts."""
PREFIX = "TASK_STATE_"
_STATES = {
    "pending": "SUBMITTED",
    "completed": "COMPLETED",
    "canceled": "CANCELED",
    "failed": "FAILED",
    # The protocol has fewer final states than a run.
    "timeout": "FAILED",
    "escalated": "FAILED",
    "blocked": "FAILED",
}

# No control characters: a caller chooses these values, and they become headers of our request.
_HEADER_VALUE = r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$"


def get_task_state(status: RunStatus) -> str:
    """Return the state of the protocol without its prefix. The caller, a program, may only answer questions."""
    if status.status in _STATES:
        return _STATES[status.status]
    if status.pause == "input":
        return "INPUT_REQUIRED"
    return "AUTH_REQUIRED" if status.waits_for_user else "WORKING"


def build_task(status: RunStatus, *, at: datetime, base_url: str, clean: Callable[[str], str]) -> dict[str, JsonValue]:
    """Build the task; `base_url` is the address of the server for the caller and the approver."""
    row, state = status.row, get_task_state(status)
    context = read_context(row.context_id)
    owner: dict[str, JsonValue] = {"taskId": row.run_id, "contextId": context}
    described: dict[str, JsonValue] = {
        "state": f"{PREFIX}{state}",
        "timestamp": at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    }
    if parts := _describe(status, base_url, clean=clean):
        message_id = f"{row.run_id}-{status.waiting.seq}"
        described["message"] = {"messageId": message_id, **owner, "role": "ROLE_AGENT", "parts": parts}
    asked: dict[str, JsonValue] = {"messageId": f"{row.run_id}-0", **owner, "role": "ROLE_USER"}
    task: dict[str, JsonValue] = {
        "id": row.run_id,
        "contextId": context,
        "status": described,
        "history": [{**asked, "parts": [{"text": row.task}]}],
    }
    if status.status == "completed":
        result: dict[str, JsonValue] = {"text": clean(status.state.result)}
        task["artifacts"] = [{"artifactId": RESULT, "name": RESULT, "parts": [result]}]
    return task


def read_context(name: str) -> str:
    """Return the caller's own name of its conversation, without the prefix that identifies the caller."""
    return name.partition("/")[2]


def _describe(status: RunStatus, base_url: str, *, clean: Callable[[str], str]) -> list[JsonValue]:
    """Return the question with its fields, the place where the user decides, or the failure."""
    question = status.question
    match get_task_state(status):
        case "INPUT_REQUIRED" if question is not None:
            parts: list[JsonValue] = [{"text": clean(question.text)}]
            if question.raw_fields is not None:
                parts.append({"data": {"fields": question.raw_fields}})
            return parts
        case "AUTH_REQUIRED":
            return [{"text": clean(_name_decider(status, base_url))}]
        case "FAILED":
            return [{"text": clean(status.failure_text)}]
        case _:
            return []


def _name_decider(status: RunStatus, base_url: str) -> str:
    """Name the place of the decision. The call itself is shown only there, to the approver."""
    where = f"{base_url}/" if base_url else "the inbox of the server"
    asking = next(iter(status.approval_ids), "")
    command = f"agent approvals approve {asking}" if asking else f"agent resume {status.waiting.run_id}"
    return f"A person must decide before this goes on, at {where} or with `{command}`. A2A clients can't decide it."


# The credentials of a receiver are stored in its row only, never in a message or a journal.
class Target(Value):
    """The address of a receiver, and the token that authenticates the sender."""

    url: str = Field(min_length=1, max_length=2000)
    token: str = Field(default="", max_length=4000, pattern=rf"{_HEADER_VALUE}|^$")
    scheme: str = Field(default="", max_length=100, pattern=r"^[A-Za-z0-9!#$%&'*+.^_|~-]*$")
    credentials: str = Field(default="", max_length=8000, pattern=rf"{_HEADER_VALUE}|^$")
    base_url: str = ""
    """Address of the server for the caller."""


async def check_target(target: Target, host: Host) -> None:
    """Raise `ToolFailed` for an address that must not receive messages."""
    await list_target_addresses(parse_url(target.url), host)


async def find_target(row: OutboxRow, store: Store) -> Target | None:
    """Return the receiver; None if it or its task was removed."""
    message = json.loads(row.payload)
    for receiver in await store.outbox.list_receivers(str(message["task_id"])):
        if receiver.name == message["receiver"]:
            return Target.model_validate_json(receiver.data)
    return None


async def list_target_addresses(url: WebUrl, host: Host) -> list[str]:
    """Resolve the address. Only public addresses over TLS are allowed, and those named in the settings."""
    named = [text.rpartition(":") for text in host.settings.server.push_hosts]
    open_hosts = {(name.strip("[]").lower(), int(port)) for name, _, port in named}
    # The caller chooses the address, and must not make the server send requests into its own network.
    if url.scheme != "https" and (url.host, url.port) not in open_hosts:
        raise ToolFailed(
            f"A receiver must have an https address, and {url.text!r} has none",
            code="permission_denied",
            hint="The user of the server can name its host and port in `server.push_hosts`",
        )
    return await list_addresses(url, WebAccess(open_hosts=open_hosts))
