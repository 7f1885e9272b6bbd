"""A2A tasks and messages as runs: IDs and owners, incoming messages, and tasks for the SDK."""

import hashlib
import json
from collections.abc import Callable
from typing import cast

from a2a.types.a2a_pb2 import Message, Task, TaskState
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from msgspec import Struct, field
from pydantic import JsonValue

from metier.runtime.notify import a2a
from metier.runtime.notify.a2a import PREFIX
from metier.runtime.status import RunStatus
from metier.views.user_question import UserQuestion

RUN_PREFIX = "a2a-"
"""The prefix of the IDs of runs started over A2A."""
_CALLER_DIGITS, _TASK_DIGITS = 12, 20

TASK = "task:"
"""The prefix of the IDs of A2A skills that are task definitions."""
SKILL = "skill"
"""The metadata key of a message that names the requested A2A skill."""
_STATES: dict[str, int] = {name.removeprefix(PREFIX): value for name, value in TaskState.items()}
TERMINAL = frozenset(_STATES[name] for name in a2a.TERMINAL)
RESTING = frozenset(_STATES[name] for name in a2a.RESTING)


# A peer sees only the tasks that it sent to this agent itself. The prefix of their IDs enforces it.
class Caller(Struct, frozen=True, kw_only=True):
    """A caller and the agent that it calls."""

    user: str
    agent: str = ""
    """Empty for the default agent."""
    trace_parent: str = ""
    base_url: str = ""
    """The server's address as the caller sees it."""

    @property
    def prefix(self) -> str:
        """Return the ID prefix of this caller's tasks for this agent."""
        return f"{RUN_PREFIX}{_digest(f'{self.user}/{self.agent}')[:_CALLER_DIGITS]}"

    def name_task(self, message_id: str) -> str:
        """Return the run ID of a message. A repeated message gets the same ID, so it never starts a second run."""
        return f"{self.prefix}{_digest(message_id)[:_TASK_DIGITS]}"

    def name_context(self, context_id: str) -> str:
        """Return the name of a conversation of this caller, which cannot collide with a chat of the workspace."""
        return f"{self.prefix}/{context_id}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class Incoming(Struct, frozen=True, kw_only=True):
    text: str
    skill: str = ""
    """The requested A2A skill; empty if the message names none."""
    task_id: str = ""
    """A task definition; its inputs are the data of the message."""
    values: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def read_message(message: Message) -> Incoming:
    """Read a message. Raises `InvalidParamsError`, `ContentTypeNotSupportedError` for unsupported parts."""
    if not message.message_id:
        raise InvalidParamsError(message="The message has no messageId")
    texts: list[str] = []
    values: dict[str, JsonValue] = {}
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                found = cast("JsonValue", MessageToDict(part.data))  # a protobuf value is JSON
                if isinstance(found, dict):
                    values |= found
                else:
                    texts.append(json.dumps(found, ensure_ascii=False))
            case _:
                raise ContentTypeNotSupportedError(message="Files are not taken here; send text or data")
    wanted = str(MessageToDict(message.metadata).get(SKILL, "")) if message.HasField("metadata") else ""
    task_id = wanted.removeprefix(TASK) if wanted.startswith(TASK) else ""
    text = "\n\n".join(each for each in texts if each.strip())
    if not text and not task_id and not values:
        raise InvalidParamsError(message="The message has no text")
    if values and not task_id and not message.task_id:
        text = "\n\n".join(each for each in (text, json.dumps(values, ensure_ascii=False)) if each)
    return Incoming(text=text, skill=wanted, task_id=task_id, values=values)


def build_answer(incoming: Incoming, question: UserQuestion) -> dict[str, JsonValue]:
    """Return the data as they are; text answers the first field."""
    return incoming.values or {question.names[0]: incoming.text}


def get_task_state(status: RunStatus) -> int:
    return _STATES[a2a.get_task_state(status)]


def build_task(status: RunStatus, caller: Caller, *, clean: Callable[[str], str]) -> Task:
    described = a2a.build_task(status, at=status.row.updated_at, base_url=caller.base_url, clean=clean)
    return ParseDict(described, Task())
