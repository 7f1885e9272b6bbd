"""A tool call as one line of arguments or as one sentence, safe to show. Pure."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from metier.telemetry.excerpt import cut_end, one_line
from metier.telemetry.sanitize import sanitize_line

_FIRST: dict[str, tuple[str, ...]] = {
    "Bash": ("command",),
    "Read": ("path",),
    "Write": ("path",),
    "Edit": ("path",),
    "Glob": ("pattern", "path"),
    "Grep": ("pattern", "path"),
    "WebFetch": ("url",),
    "WebSearch": ("query",),
    "ask_user": ("question",),
    "delegate": ("agent", "task"),
    "run_task": ("task",),
    "script_run": ("skill_name", "script_name"),
    "script_help": ("skill_name", "script_name"),
    "script_list": ("skill_name",),
    "skill_search": ("query",),
    "use_skill": ("skill", "reason"),
    "call_skill": ("skill", "reason"),
}
"""Arguments shown first and without their name, by tool."""
_HIDDEN = frozenset({"content", "old", "new", "old_string", "new_string", "justification", "description"})
"""Arguments that are long or shown elsewhere, such as in the diff."""
_MOST = 400
_MAX_VALUE = 60


def build_line(tool: str, arguments: JsonValue) -> str:
    """Return one line of at most 400 characters: the main argument first, then the others as `name=value`."""
    given = get_own_arguments(arguments)
    if not isinstance(given, dict):
        return _clean("" if given is None else _show(given))
    # Not arguments of the model: they number the tasks of one call.
    hidden = _HIDDEN | {"number", "of"} if tool == "delegate" else _HIDDEN
    first = [name for name in _FIRST.get(tool, ()) if given.get(name) not in (None, "")]
    parts = [one_line(_show(given[name]), _MOST) for name in first]
    parts += [
        f"{name}={one_line(_show(value), _MAX_VALUE)}"
        for name, value in given.items()
        if name not in first and name not in hidden and value not in (None, "", [], {})
    ]
    return _clean("  ".join(parts))


def get_own_arguments(arguments: JsonValue) -> JsonValue:
    """Return the tool's own arguments: a step of a decision wraps them as `{tool, arguments}`."""
    if isinstance(arguments, dict) and "tool" in arguments and "arguments" in arguments:
        return arguments["arguments"]
    return arguments


def _show(value: JsonValue) -> str:
    """Render a value in one line. Line breaks stay visible, because two commands are not one."""
    if isinstance(value, str):
        return " ⏎ ".join(line.strip() for line in value.strip().splitlines() if line.strip())
    return json.dumps(value, ensure_ascii=False)


def _clean(text: str) -> str:
    return sanitize_line(cut_end(text, _MOST))


_SENTENCES = {
    "Write": ("path", "This will write the file {}"),
    "Edit": ("path", "This will change the file {}"),
    "Read": ("path", "This will read the file {}"),
    "Glob": ("pattern", "This will list files that fit {}"),
    "Grep": ("pattern", "This will search files for {}"),
    "Bash": ("command", "This will run: {}"),
    "WebFetch": ("url", "This will fetch {}"),
    "WebSearch": ("query", "This will search the web for {}"),
    "delegate": ("agent", "This will hand work to the agent {}"),
    "run_task": ("task", "This will run the task {}"),
    "script_run": ("script_name", "This will run the script {} of a skill"),
}
_LONGEST = 200


def describe_call(tool: str, arguments: Mapping[str, JsonValue]) -> str:
    """Describe the call in one sentence. Pages show the exact arguments next to it."""
    name, sentence = _SENTENCES.get(tool, ("", ""))
    value = arguments.get(name)
    if isinstance(value, str) and value.strip():
        return sentence.format(one_line(sanitize_line(value), _LONGEST))
    return f"This will call {sanitize_line(tool)}"
