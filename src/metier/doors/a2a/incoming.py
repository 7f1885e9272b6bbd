"""A message of a peer as work for a run: its text, the task definition it names, the answer it gives."""

import json
from dataclasses import field
from typing import cast

from a2a.types.a2a_pb2 import Message
from a2a.utils.errors import ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf.json_format import MessageToDict
from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.runtime.questions.answers import list_field_names

TASK = "task:"
"""How the ids of A2A skills begin that are task definitions."""
SKILL = "skill"
"""The key of a message's metadata that names the A2A skill which is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
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


def build_answer(incoming: Incoming, fields: JsonValue) -> dict[str, JsonValue]:
    """Data as they are; text is the answer to the one thing that is asked for."""
    if incoming.values:
        return incoming.values
    return {next(iter(list_field_names(fields)), "answer"): incoming.text}
