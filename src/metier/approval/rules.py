"""Rules as they are judged by: an ordered list per scope, the first that matches speaks. Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
from msgspec import Struct
from pydantic import JsonValue

from metier.approval.canonical import find_value
from metier.approval.matchers import Test

type Decision = Literal["allow", "ask", "deny"]
type Listed = Literal["tools", "skills", "tasks"]
type OutsideScripts = Mapping[str, tuple[str, ...]]
"""Paths of scripts outside of their folders that skills name, by canonical name."""
type ScopeKind = Literal["host", "agent", "task", "step", "skill"]

ORDER: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
SHELL = "Bash"


class Condition(Struct, frozen=True):
    key: str
    """The argument, dotted where it is nested."""
    test: Test


class Rule(Struct, frozen=True, kw_only=True):
    number: int
    """Its place in the list, from 1."""
    subject: str
    """The tool, or the task; `*` at the end stands for the rest of a name."""
    decision: Decision
    when: tuple[Condition, ...] = ()
    reason: str = ""
    is_exact: bool = False
    """It names whole commands."""
    prefixes: frozenset[str] = frozenset()
    """Normalized prefixes of the commands that it names."""
    expressions: frozenset[str] = frozenset()
    """Letters that every command which its expressions match begins with."""
    file: str = ""
    line: int = 0

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"

    @property
    def is_broad(self) -> bool:
        """It means whatever begins with these letters, and names no tool."""
        return self.subject.endswith("*")

    def speaks_of(self, names: frozenset[str]) -> bool:
        if self.subject in names:
            return True
        return self.subject.endswith("*") and any(name.startswith(self.subject[:-1]) for name in names)


class RuleList(Struct, frozen=True):
    rules: tuple[Rule, ...] = ()
    default: Decision | None = None
    """The list's default when none of its rules matches; usually None."""
    is_written: bool = False
    """An author wrote the list: then a call that no list allows is asked about, whatever the profile."""


NO_RULES = RuleList()


class Scope(Struct, frozen=True, kw_only=True):
    """One voice: the host, an agent, a task, a step, a skill."""

    kind: ScopeKind
    name: str = ""
    tools: RuleList = NO_RULES
    tasks: RuleList = NO_RULES
    is_trusted: bool = True
    """Allow rules of untrusted skills and clones are ignored; their deny rules apply."""
    preapproved: frozenset[str] = frozenset()
    """`allowed-tools` of a skill: whole tools, by name."""
    limits: Mapping[Listed, frozenset[str]] = msgspec.field(default_factory=dict[Listed, frozenset[str]])
    """Of a skill that lists them: the only tools, skills and tasks there are while it is in charge."""
    outside: tuple[str, ...] = ()
    """Scripts outside of its folder that a skill names: absolute, or relative to where calls are judged."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else f"the {self.kind}"


@dataclass(slots=True)
class Call:
    """One call, ready to be matched: its names, and its canonical arguments found by dotted key."""

    tool: str
    names: frozenset[str]
    arguments: Mapping[str, JsonValue]
    is_task: bool = False
    _found: dict[str, tuple[JsonValue] | None] = field(default_factory=dict[str, "tuple[JsonValue] | None"])

    def find(self, key: str) -> tuple[JsonValue] | None:
        """The argument in a tuple, because it may be `null`; None where it is missing."""
        if key in self.arguments:
            return (self.arguments[key],)
        if key not in self._found:
            value = find_value(self.arguments, key) if "." in key else None
            self._found[key] = None if value is None else (value,)
        return self._found[key]


def find_rule(rules: RuleList, call: Call) -> Rule | None:
    """The first rule that matches. A rule that demands something of a missing argument does not."""
    names = call.names
    for rule in rules.rules:
        if (rule.subject in names or rule.speaks_of(names)) and matches(rule, call):
            return rule
    return None


def matches(rule: Rule, call: Call) -> bool:
    """Everything that the rule demands of the arguments holds."""
    for condition in rule.when:
        value = call.find(condition.key)
        if value is None or not condition.test(value[0]):
            return False
    return True


class Verdict(Struct, frozen=True, kw_only=True):
    decision: Decision
    reason: str = ""
    rule: str = ""
    """The deciding rule and its scope; empty if the profile's default decided."""
    read_only: bool = False
    """Allowed only in the read-only sandbox: the tables say that it reads, and the sandbox holds it to that."""
    is_child_question: bool = False
    """The profile asks because the call starts a child run; a child that may only read needs no answer."""
    code: str = ""
    """Of a call that could not run whatever rules say: `unknown_tool`, `invalid_input` or `permission_denied`."""


ALLOW = Verdict(decision="allow")
