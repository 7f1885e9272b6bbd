"""Read rules from YAML nodes: every mistake is a problem with file, line and what to write instead.

A list with a mistake in it is not used at all: half of a policy is another policy.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import TypedDict

from msgspec import Struct
from pydantic import JsonValue

from metier.approval.matchers import COMMAND, EXACT, MatcherPlace, build_matcher, find_operands, read_value
from metier.approval.regex import find_literal_start
from metier.approval.rules import NO_RULES, Condition, Decision, Rule, RuleList
from metier.approval.shell import build_call, judge_alone
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence, is_nothing
from metier.tools.shell.line import canonical_command

LIST_KEYS = ("default", "rules")
DECISIONS: tuple[Decision, ...] = ("allow", "ask", "deny")
DEFAULTS: dict[str, Decision] = {"approve": "ask", "ask": "ask", "deny": "deny"}
_TRUTH: dict[str, Decision] = {"true": "allow", "false": "deny"}


class RuleSource(Struct, frozen=True, kw_only=True):
    """Where rules come from, and against what they are checked."""

    file: str
    root: str
    """The folder that relative paths of rules and calls begin at."""
    known: Collection[str] | None = None
    """The names that exist; None where that cannot be known."""
    subject: str = "tool"
    """`tool`, or `task` for `task_approvals`."""


class RuleReading(Struct, frozen=True):
    rules: RuleList = NO_RULES
    problems: tuple[Problem, ...] = ()
    examples: int = 0
    """How many were checked."""


class _Commands(TypedDict):
    """Fields of a `Rule`."""

    is_exact: bool
    prefixes: frozenset[str]
    expressions: frozenset[str]


class _Example(Struct, frozen=True):
    rule: Rule
    expected: Decision
    number: int
    arguments: dict[str, JsonValue]
    line: int


@dataclass(slots=True)
class _Reader:
    source: RuleSource
    problems: list[Problem] = field(default_factory=list[Problem])
    examples: list[_Example] = field(default_factory=list[_Example])

    def report(self, code: str, message: str, line: int, hint: str = "") -> None:  # noqa: PLR0917 - the shape of `Report`
        self.problems.append(
            Problem(severity="error", code=code, message=message, file=self.source.file, line=line, hint=hint)
        )

    def read_list(self, node: Node) -> RuleList:
        if isinstance(node, Sequence):
            return RuleList(self._read_rules(node.items), is_written=True)
        if not isinstance(node, Mapping):
            self.report(
                "not_a_policy", "Approvals must be a mapping with 'rules'", node.line, "Write 'rules:' below it"
            )
            return NO_RULES
        fields = self._fields(node)
        fields.check_keys(LIST_KEYS)
        entry = fields.find("rules")
        items: tuple[Node, ...] = ()
        if entry is not None and isinstance(entry.value, Sequence):
            items = entry.value.items
        elif entry is not None:
            self.report("not_a_list", "Field 'rules' must be a list", entry.line, "Write one '- tool: …' for each")
        return RuleList(self._read_rules(items), self._read_default(fields), is_written=True)

    def _fields(self, node: Mapping) -> Fields:
        return Fields(node, file=self.source.file, strict=True, problems=self.problems, first_line=node.line)

    def _read_default(self, fields: Fields) -> Decision | None:
        entry = fields.find("default")
        if entry is None:
            return None
        written = fields.text("default") or ""
        if written in DEFAULTS:
            return DEFAULTS[written]
        hint = hint_nearest(written, DEFAULTS) or "One of approve, ask, deny; what is allowed stands in rules"
        self.report("unknown_default", f"Default {written!r} does not exist", entry.line, hint)
        return None

    def _read_rules(self, items: Iterable[Node]) -> tuple[Rule, ...]:
        rules = [self._read_rule(item, number) for number, item in enumerate(items, start=1)]
        return tuple(rule for rule in rules if rule is not None)

    def _read_rule(self, node: Node, number: int) -> Rule | None:
        if not isinstance(node, Mapping):
            self.report("not_a_rule", "A rule must be a mapping", node.line, "Write '- tool: …' and 'allow: true'")
            return None
        fields = self._fields(node)
        fields.check_keys((self.source.subject, "allow", "verdict", "when", "reason", "examples"))
        subject = self._read_subject(fields, node)
        decision = self._read_decision(fields, node)
        when = self._read_when(fields, narrow=decision == "allow")
        if not subject or decision is None:
            return None
        rule = Rule(
            number=number,
            subject=subject,
            decision=decision,
            when=when,
            reason=fields.text("reason") or "",
            file=self.source.file,
            line=node.line,
            **self._read_commands(fields),
        )
        self._read_examples(fields, rule)
        return rule

    def _read_subject(self, fields: Fields, node: Mapping) -> str:
        key = self.source.subject
        entry = fields.find(key)
        if entry is None:
            self.report(f"missing_{key}", f"A rule must name its {key}", node.line, f"Add '{key}: …'")
            return ""
        name = fields.text(key) or ""
        known = self.source.known
        if known is None or name in known or self._is_pattern(name):
            return name
        if key == "tool" and _is_from_elsewhere(name, known):
            return name
        hint = hint_nearest(name, known) or f"Known are {', '.join(sorted(known))}"
        self.report(f"unknown_{key}", f"No {key} is called {name!r}", entry.line, hint)
        return name

    def _is_pattern(self, name: str) -> bool:
        return name.endswith("*") and "*" not in name[:-1]

    def _read_decision(self, fields: Fields, node: Mapping) -> Decision | None:
        allow, verdict = fields.find("allow"), fields.find("verdict")
        if allow is not None and verdict is not None:
            self.report("two_verdicts", "A rule has 'allow' or 'verdict', not both", verdict.line, "Keep one of them")
            return None
        if allow is not None:
            return self._read_word(allow, _TRUTH, "true or false")
        if verdict is not None:
            return self._read_word(verdict, {word: word for word in DECISIONS}, "allow, ask or deny")
        self.report(
            "missing_verdict", "A rule must say what it decides", node.line, "Add 'allow: true' or 'verdict: ask'"
        )
        return None

    def _read_word(self, entry: Entry, words: dict[str, Decision], choice: str) -> Decision | None:
        written = entry.value.value if isinstance(entry.value, Scalar) else ""
        if written in words:
            return words[written]
        hint = hint_nearest(written, words)
        self.report("unknown_verdict", f"Field {entry.key!r} must be {choice}, not {written!r}", entry.line, hint)
        return None

    def _read_when(self, fields: Fields, *, narrow: bool) -> tuple[Condition, ...]:
        entry = fields.find("when")
        if entry is None:
            return ()
        if not isinstance(entry.value, Mapping):
            hint = "Write the name of an argument and below it a matcher"
            self.report("not_a_mapping", "Field 'when' must be a mapping", entry.line, hint)
            return ()
        conditions = [self._read_condition(demand, narrow=narrow) for demand in entry.value.entries]
        return tuple(condition for condition in conditions if condition is not None)

    def _read_commands(self, fields: Fields) -> _Commands:
        """Which commands of the shell the rule names, and how."""
        entry = fields.find("when")
        demand = entry.value.find(COMMAND) if entry is not None and isinstance(entry.value, Mapping) else None
        if demand is None:
            return _Commands(is_exact=False, prefixes=frozenset(), expressions=frozenset())
        return _Commands(
            is_exact=_is_exact(demand.value),
            prefixes=frozenset(canonical_command(text) for text in find_operands(demand.value, "startsWith")),
            expressions=frozenset(find_literal_start(text) for text in find_operands(demand.value, "matches")),
        )

    def _read_condition(self, demand: Entry, *, narrow: bool) -> Condition | None:
        place = MatcherPlace(key=demand.key, root=self.source.root, narrow=narrow, report=self.report)
        test = build_matcher(demand.value, place)
        return None if test is None else Condition(demand.key, test)

    def _read_examples(self, fields: Fields, rule: Rule) -> None:
        entry = fields.find("examples")
        if entry is None:
            return
        if not isinstance(entry.value, Mapping):
            hint = "Write 'allow:', 'ask:' or 'deny:' and below it a list of arguments"
            self.report("not_a_mapping", "Field 'examples' must be a mapping", entry.line, hint)
            return
        if rule.subject.endswith("*"):
            hint = f"Name the {self.source.subject} in full, or put the examples into another rule"
            self.report("examples_of_many", f"Examples need a rule for one {self.source.subject}", entry.line, hint)
            return
        self._fields(entry.value).check_keys(DECISIONS)
        for decision in DECISIONS:
            found = entry.value.find(decision)
            if found is not None and not is_nothing(found.value):
                self._read_example_list(found, rule, decision)

    def _read_example_list(self, entry: Entry, rule: Rule, expected: Decision) -> None:
        items = entry.value.items if isinstance(entry.value, Sequence) else (entry.value,)
        for number, item in enumerate(items, start=1):
            arguments = read_value(item)
            if isinstance(arguments, dict):
                self.examples.append(_Example(rule, expected, number, arguments, item.line))
            else:
                message = "An example must be a mapping of arguments"
                self.report("not_an_example", message, item.line, "Write it like '{path: src/a.py}'")


def read_rules(node: Node, source: RuleSource) -> RuleReading:
    """The list below `tool_approvals` or `task_approvals`, its examples tried. With a problem there are no rules."""
    reader = _Reader(source)
    rules = reader.read_list(node)
    if not has_errors(reader.problems):
        for example in reader.examples:
            _check_example(example, rules, reader.report, root=source.root)
    problems = tuple(sorted(reader.problems, key=lambda problem: problem.line or 0))
    return RuleReading(NO_RULES if problems else rules, problems, len(reader.examples))


def _check_example(
    example: _Example, rules: RuleList, report: Callable[[str, str, int, str], None], *, root: str
) -> None:
    subject = example.rule.subject
    call = build_call(subject, frozenset({subject}), example.arguments, root=root)
    found, decision = judge_alone(rules, call, root)
    if decision == example.expected:
        return
    if found is None:
        why = "No rule matches it"
    elif found is example.rule:
        why = "This rule matches it"
    else:
        why = f"Rule {found.number} in line {found.line} matches it first"
    message = f"Example {example.number} under {example.expected!r} is judged {decision!r}"
    report("failed_example", message, example.line, f"{why}; correct the rule or move the example")


def _is_from_elsewhere(name: str, known: Collection[str]) -> bool:
    """Tools of MCP servers are known once their server runs, those of toolsets while their skill is active."""
    if "/" in name.strip("/"):
        return True
    skill, dot, _ = name.partition(".")
    return bool(dot) and not any(other.startswith(f"{skill}.") for other in known)


def _is_exact(node: Node) -> bool:
    """Only whole values match: `equals`, `in`, or a choice of such."""
    if not isinstance(node, Mapping):
        return False
    return all(entry.key in EXACT or (entry.key == "anyOf" and _are_exact(entry.value)) for entry in node.entries)


def _are_exact(node: Node) -> bool:
    return isinstance(node, Sequence) and all(_is_exact(item) for item in node.items)
