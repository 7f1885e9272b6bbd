"""Rules: an ordered list per scope, in which the first match decides. Pure values."""

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
"""The scripts outside its folder that each skill names, by the skill's canonical name."""
type ScopeKind = Literal["host", "agent", "task", "step", "skill"]

ORDER: dict[Decision, int] = {"allow": 0, "ask": 1, "deny": 2}
SHELL = "Bash"


class Condition(Struct, frozen=True):
    key: str
    """The argument; a dotted key names a nested value."""
    test: Test


class Rule(Struct, frozen=True, kw_only=True):
    number: int
    """Position in the list, from 1."""
    subject: str
    """The name of a tool or task; a final `*` matches the rest of a name."""
    decision: Decision
    when: tuple[Condition, ...] = ()
    reason: str = ""
    is_exact: bool = False
    """The rule names whole commands."""
    prefixes: frozenset[str] = frozenset()
    """Canonical prefixes of the commands that the rule names."""
    expressions: frozenset[str] = frozenset()
    """The literal start of each expression that the rule matches commands with."""
    file: str = ""
    line: int = 0

    @property
    def location(self) -> str:
        return f"{self.file}:{self.line}" if self.file else f"line {self.line}"

    @property
    def is_broad(self) -> bool:
        """Return True if the rule matches names by prefix instead of naming one."""
        return self.subject.endswith("*")

    def applies_to(self, names: frozenset[str]) -> bool:
        if self.subject in names:
            return True
        return self.subject.endswith("*") and any(name.startswith(self.subject[:-1]) for name in names)


class RuleList(Struct, frozen=True):
    rules: tuple[Rule, ...] = ()
    default: Decision | None = None
    """The list's default when none of its rules matches; usually None."""
    is_written: bool = False
    """The list exists in a file: calls that none of its rules allows are asked about, whatever the profile."""


NO_RULES = RuleList()


class Scope(Struct, frozen=True, kw_only=True):
    """The rules of one source: the host, an agent, a task, a step or a skill."""

    kind: ScopeKind
    name: str = ""
    tools: RuleList = NO_RULES
    tasks: RuleList = NO_RULES
    is_trusted: bool = True
    """False for untrusted skills and clones: their allow rules are ignored, and their deny rules apply."""
    preapproved: frozenset[str] = frozenset()
    """`allowed-tools` of a skill: whole tools, by name."""
    limits: Mapping[Listed, frozenset[str]] = msgspec.field(default_factory=dict[Listed, frozenset[str]])
    """The only tools, skills and tasks that may be used while the skill is in charge, if it lists them."""
    outside: tuple[str, ...] = ()
    """Scripts that a skill names outside its folder: absolute, or relative to the policy's root."""

    @property
    def title(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else f"the {self.kind}"


@dataclass(slots=True)
class Call:
    """A call as rules match it: its names and its canonical arguments."""

    tool: str
    names: frozenset[str]
    arguments: Mapping[str, JsonValue]
    is_task: bool = False
    _found: dict[str, tuple[JsonValue] | None] = field(default_factory=dict[str, "tuple[JsonValue] | None"])

    def find(self, key: str) -> tuple[JsonValue] | None:
        """Return the argument under a dotted key, in a tuple because it may be `null`; None if it is missing."""
        if key in self.arguments:
            return (self.arguments[key],)
        # Every rule asks for the same few keys, and a dotted key may mean parsing a URL.
        if key not in self._found:
            value = find_value(self.arguments, key) if "." in key else None
            self._found[key] = None if value is None else (value,)
        return self._found[key]


def find_rule(rules: RuleList, call: Call) -> Rule | None:
    """Return the first rule that matches, or None. A condition on a missing argument does not hold."""
    names = call.names
    for rule in rules.rules:
        if (rule.subject in names or rule.applies_to(names)) and matches(rule, call):
            return rule
    return None


def matches(rule: Rule, call: Call) -> bool:
    """Return True if all conditions of the rule hold."""
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
    """Allowed only in the read-only sandbox: by the tables the command only reads, and the sandbox enforces it."""
    is_child_question: bool = False
    """The profile asks because the call starts a child run; a child that may only read needs no answer."""
    code: str = ""
    """Set if the call could not run, whatever the rules say: `unknown_tool`, `invalid_input` or `permission_denied`."""


ALLOW = Verdict(decision="allow")
