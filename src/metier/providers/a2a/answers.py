"""What a remote agent says by A2A, read once at the edge: its card, its tasks, its messages. Pure."""

from typing import cast

from msgspec import Struct
from pydantic import JsonValue

from metier.providers.failures import BadRequest, ReplyBroken
from metier.providers.json_values import Wire, as_object, as_objects, as_text

_PREFIX = "TASK_STATE_"
ENDED = frozenset({"completed", "failed", "canceled", "rejected"})
RESTING = ENDED | {"input_required", "auth_required"}


class RemoteTask(Struct, frozen=True, kw_only=True):
    id: str
    state: str
    """As the protocol names it, without the prefix, in lower case."""
    text: str = ""
    """The result, the question, or why it failed."""
    fields: JsonValue = None
    """The form of the answer that it asks for."""

    @property
    def is_resting(self) -> bool:
        return self.state in RESTING


def read_card(card: Wire) -> str:
    """The address for JSON-RPC of version 1. Raises `BadRequest` where there is none."""
    for interface in as_objects(card.get("supportedInterfaces")):
        version = as_text(interface.get("protocolVersion"))
        if interface.get("protocolBinding") == "JSONRPC" and version.startswith("1"):
            return as_text(interface.get("url"))
    raise BadRequest("The card of the remote agent names no JSON-RPC address of version 1")


def read_result(result: Wire) -> RemoteTask:
    """The answer to a message: a task, or a message that is the whole answer."""
    if task := as_object(result.get("task")):
        return read_task(task)
    if message := as_object(result.get("message")):
        return RemoteTask(id=as_text(message.get("taskId")), state="completed", text=_join(message.get("parts")))
    raise ReplyBroken("The remote agent answered with neither a task nor a message")


def read_task(task: Wire) -> RemoteTask:
    status = as_object(task.get("status"))
    state, task_id = as_text(status.get("state")).removeprefix(_PREFIX).lower(), as_text(task.get("id"))
    if not state or not task_id:
        raise ReplyBroken("The remote agent answered with a task that has no id or no state")
    parts = as_object(status.get("message")).get("parts")
    said = _join(parts)
    if state == "completed":
        said = "\n\n".join(_join(each.get("parts")) for each in as_objects(task.get("artifacts"))) or said
    data = [as_object(part.get("data")) for part in as_objects(parts)]
    fields = next((each["fields"] for each in data if "fields" in each), None)
    return RemoteTask(id=task_id, state=state, text=said, fields=cast("JsonValue", fields))  # what JSON holds is JSON


def _join(parts: object) -> str:
    return "\n\n".join(text for part in as_objects(parts) if (text := as_text(part.get("text"))))
