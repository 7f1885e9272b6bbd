"""Files that programs run or obey by themselves: a broad allow does not reach the writing of one. Pure."""

import posixpath
from collections.abc import Mapping

from pydantic import JsonValue

from metier.approval.canonical import kind_of
from metier.approval.rules import Rule
from metier.tools.protected import runs_by_itself

RUNS_BY_ITSELF = "{!r} is run or obeyed by programs that were not asked to, and only a rule that names it can allow it"


def find_running_file(arguments: Mapping[str, JsonValue]) -> tuple[str, str] | None:
    """The first argument that is the path of such a file: its key and its value."""
    for key, value in arguments.items():
        if isinstance(value, str) and kind_of(key) == "path" and runs_by_itself(value):
            return key, value
    return None


def names_file(rule: Rule, key: str, path: str) -> bool:
    """It would not allow another name in the same folder."""
    neighbour = posixpath.join(posixpath.dirname(path), "another name")
    return any(condition.key == key and not condition.test(neighbour) for condition in rule.when)
