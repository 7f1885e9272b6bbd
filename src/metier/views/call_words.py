"""A call as one sentence for the approver. Pure."""

from collections.abc import Mapping

from pydantic import JsonValue

from metier.telemetry.excerpt import one_line
from metier.telemetry.sanitize import sanitize_line

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
    """A sentence that names the thing the call is about; the exact arguments are next to it."""
    name, sentence = _SENTENCES.get(tool, ("", ""))
    value = arguments.get(name)
    if isinstance(value, str) and value.strip():
        return sentence.format(one_line(sanitize_line(value), _LONGEST))
    return f"This will call {sanitize_line(tool)}"
