"""What makes two calls the same, and a call with other arguments. Pure."""

import json

from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.approval.rules import SHELL
from metier.decisions import ActionStep


def build_identity(action: ActionStep) -> str:
    """The same for calls that ask for the same."""
    return action.model_dump_json(exclude={"call_id"})


def build_memory_key(action: ActionStep) -> str:
    """What "always in this run" extends to: the tool; of the shell, one command."""
    name, arguments = name_call(action)
    return f"{name}: {json.dumps(arguments, sort_keys=True)}" if name == SHELL else name


def edit_arguments(action: ActionStep, arguments: dict[str, JsonValue]) -> ActionStep:
    """The same action with other arguments, as somebody approved it."""
    if action.type == "call_tool":
        return action.model_copy(update={"params": {**action.params, "arguments": arguments}})
    return action.model_copy(update={"params": arguments})
