"""Identity of calls: equal calls, and a call with edited arguments. Pure."""

import json

from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import find_running_file, name_call
from metier.approval.rules import SHELL
from metier.decisions import ActionStep
from metier.errors import ToolFailed
from metier.tools.web.url import parse_url

_FETCH = "WebFetch"
_ONE_OF_MANY = {
    "script_run": ("skill_name", "script_name"),
    "script_help": ("skill_name", "script_name"),
    "run_task": ("task",),
    "delegate": ("agent",),
}


def build_identity(action: ActionStep) -> str:
    """Build the same identity for equal calls, whatever output the model expects."""
    return json.dumps([action.type, action.params])


def build_memory_key(action: ActionStep) -> str:
    """Build the key for "always in this run": the tool, or for tools with many targets the one that was shown.

    Of the shell one command, of scripts one script, of tasks and agents one of them, of pages those of one host; of
    files that run by themselves one file.
    """
    name, arguments = name_call(action)
    if name == SHELL:
        return f"{name}: {json.dumps(arguments, sort_keys=True)}"
    if name == _FETCH:
        return f"{name}: {_get_host(str(arguments.get('url', '')))}"
    if keys := _ONE_OF_MANY.get(name):
        return f"{name}: {json.dumps([arguments.get(key) for key in keys])}"
    if (running := find_running_file(arguments)) is not None:
        return f"{name}: {running[1]}"
    return name


def _get_host(url: str) -> str:
    """Return the host of an address, or the text itself if it can't be parsed."""
    try:
        parsed = parse_url(url)
    except ToolFailed:
        return url
    return f"{parsed.scheme}://{parsed.authority}"


def edit_arguments(action: ActionStep, arguments: dict[str, JsonValue]) -> ActionStep:
    """Return the action with the arguments that the approver edited."""
    if action.type == "call_tool":
        return replace(action, params={**action.params, "arguments": arguments})
    return replace(action, params=arguments)
