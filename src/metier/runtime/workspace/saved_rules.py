"""A rule that a person writes by saying "always": the text of it, and the policy file with it. Pure; writes nothing.

It goes to the end of the list: a rule that denies or asks before it still speaks first.
"""

import json
import re
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from pydantic import JsonValue

from metier.approval.scopes import ScopeReader
from metier.definitions.problems import has_errors
from metier.errors import ConfigError
from metier.lazy_regex import lazy_regex

_RULES = lazy_regex(r"^(?P<indent>[ ]*)rules:[ ]*(?:#.*)?$")
_NEW = "tool_approvals:\n  rules:\n"


def build_rule(tool: str, arguments: dict[str, JsonValue]) -> str:
    """A rule that allows calls like this one, as YAML: this command, this host, this folder, else the tool."""
    lines = [f"- tool: {_quote(tool)}", "  allow: true"]
    if condition := _find_condition(tool, arguments):
        lines.append(f"  when: {condition}")
    return "\n".join(lines) + "\n"


def add_rule(policy: str, rule: str, *, file: str, root: str) -> str:
    """The text of the policy file with the rule at its end. Raises `ConfigError` where it has no place for it."""
    text = _insert(policy, rule) if policy.strip() else _NEW + _indent(rule, 4)
    before, after = (_count_rules(each, file=file, root=root) for each in (policy, text or ""))
    if text is None or after != before + 1:
        raise ConfigError(
            f"The rule cannot be added to '{file}' as that file is written; nothing was changed",
            hint=f"Add it by hand:\n{rule}",
        )
    return text


def _find_condition(tool: str, arguments: dict[str, JsonValue]) -> str:
    match tool:
        case "Bash":
            return f"{{command: {{equals: {_quote(str(arguments.get('command', '')))}}}}}"
        case "WebFetch":
            host = urlsplit(str(arguments.get("url", ""))).hostname or ""
            return f"{{url.host: {{equals: {_quote(host)}}}}}"
        case "Write" | "Edit":
            path = PurePosixPath(str(arguments.get("path", "")))
            folder = str(path.parent)
            if folder in ("", ".", "/"):
                return f"{{path: {{equals: {_quote(str(path))}}}}}"
            return f"{{path: {{startsWith: {_quote(folder + '/')}}}}}"
        case _:
            chosen = {key: value for key, value in arguments.items() if key in _NAMING and isinstance(value, str)}
            return (
                f"{{{', '.join(f'{key}: {{equals: {_quote(str(value))}}}' for key, value in chosen.items())}}}"
                if (chosen)
                else ""
            )


_NAMING = ("skill_name", "script_name", "script", "agent", "task")
"""Arguments that say which of many things a call reaches."""


def _quote(text: str) -> str:
    return (
        text
        if re.fullmatch(r"[A-Za-z_][\w./-]*", text) and text not in _WORDS
        else json.dumps(text, ensure_ascii=False)
    )


_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


def _insert(policy: str, rule: str) -> str | None:
    """Behind the last rule of the first list; None where there is none in the usual form."""
    lines = policy.rstrip("\n").split("\n")
    for number, line in enumerate(lines):
        found = _RULES.match(line)
        if found is None:
            continue
        indent = len(found["indent"])
        body = [
            at for at in range(number + 1, len(lines)) if lines[at].strip() and not lines[at].lstrip().startswith("#")
        ]
        end, step = number, indent + 2
        for at in body:
            deep = len(lines[at]) - len(lines[at].lstrip())
            is_item = lines[at].lstrip().startswith("- ")
            if deep < indent or (deep == indent and not is_item):
                break
            step = deep if end == number else step
            end = at
        return "\n".join([*lines[: end + 1], _indent(rule, step).rstrip("\n"), *lines[end + 1 :]]) + "\n"
    return None


def _indent(text: str, depth: int) -> str:
    return "".join(f"{' ' * depth}{line}\n" for line in text.rstrip("\n").split("\n"))


def _count_rules(text: str, *, file: str, root: str) -> int:
    """-1 where the text cannot be used."""
    reader = ScopeReader(root=root)
    scope = reader.read_policy(text, file=file)
    return -1 if has_errors(reader.problems) else len(scope.tools.rules)
