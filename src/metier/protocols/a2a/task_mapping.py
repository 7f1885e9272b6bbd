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
"""Prefix of the IDs of runs that came through this protocol."""
_CALLER_DIGITS, _TASK_DIGITS = 12, 20

TASK = "task:"
"""Prefix of the IDs of A2A skills that are task definitions."""
SKILL = "skill"
"""The key of a message's metadata that names the A2A skill which is wanted."""
_STATES: dict[str, int] = {name.removeprefix(PREFIX): value for name, value in TaskState.items()}
TERMINAL = frozenset(_STATES[name] for name in a2a.TERMINAL)
RESTING = frozenset(_STATES[name] for name in a2a.RESTING)


# A peer sees the tasks that it sent to an agent itself, and no other run of the workspace: their IDs say so.
class Caller(Struct, frozen=True, kw_only=True):
    """The caller, and the agent that it calls."""

    user: str
    agent: str = ""
    """Empty for the agent of the settings."""
    trace_parent: str = ""
    base_url: str = ""
    """Under which address the caller reaches the server."""

    @property
    def prefix(self) -> str:
        """Of the ids of every task that this caller gave to this agent."""
        return f"{RUN_PREFIX}{_digest(f'{self.user}/{self.agent}')[:_CALLER_DIGITS]}"

    def name_task(self, message_id: str) -> str:
        """The same message sent again names the same run: there is never a second one."""
        return f"{self.prefix}{_digest(message_id)[:_TASK_DIGITS]}"

    def name_context(self, context_id: str) -> str:
        """A conversation of this caller, which no chat of the workspace can have the name of."""
        return f"{self.prefix}/{context_id}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class Incoming(Struct, frozen=True, kw_only=True):
    text: str
    skill: str = ""
    """The A2A skill that is wanted; empty where the message does not say."""
    task_id: str = ""
    """A task definition; its inputs are the data of the message."""
    values: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])


def read_message(message: Message) -> Incoming:
    """Raises `InvalidParamsError`, and `ContentTypeNotSupportedError` for parts that are neither text nor data."""
    if not message.message_id:
        raise InvalidParamsError(message="The message has no messageId")
    texts: list[str] = []
    values: dict[str, JsonValue] = {}
    for part in message.parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(part.text)
            case "data":
                found = cast("JsonValue", MessageToDict(part.data))  # what a protobuf value holds is JSON
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
