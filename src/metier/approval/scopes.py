"""The scopes of a run and their rules, read from the files of the host, an agent, a task, a step or a skill.

Every mistake is a problem with file, line and a correction. A list with a mistake is not used at all: half of a policy
is another policy.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct
from pydantic import Field, JsonValue, model_validator

from metier.approval.matchers import (
    COMMAND,
    EXACT,
    MatcherPlace,
    build_matcher,
    get_literal_start,
    list_operands,
    read_value,
)
from metier.approval.rules import NO_RULES, Condition, Decision, Listed, Rule, RuleList, Scope, ScopeKind
from metier.approval.shell import build_call, judge_alone
from metier.definitions.agent import AgentDefinition
from metier.definitions.names import canonical_name, fold_id
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import Entries, FileModel, Items, Raw, Text, Word, fault, get_line, read_model
from metier.definitions.references import find_limit
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.task import TaskDefinition, TaskStep
from metier.definitions.text.front_matter import load_document
from metier.definitions.text.yaml_text import Mapping, Node, Scalar, Sequence, read_yaml
from metier.errors import ConfigError
from metier.tools.shell.line import canonical_command


class RuleSource(Struct, frozen=True, kw_only=True):
    """The origin of rules, and the names they are checked against."""

    file: str
    root: str
    """The folder that relative paths in rules and calls start from."""
    known: Collection[str] | None = None
    """The existing names; None if they are unknown."""
    subject: str = "tool"
    """`tool`, or `task` for `task_approvals`."""


class RuleReading(Struct, frozen=True):
    rules: RuleList = NO_RULES
    problems: tuple[Problem, ...] = ()
    examples: int = 0
    """Number of checked examples."""


class _Example(Struct, frozen=True):
    rule: Rule
    expected: Decision
    number: int
    arguments: dict[str, JsonValue]
    line: int


class _List(FileModel):
    shape_hint = "Write 'rules:' below it"

    default: Word[Literal["approve", "ask", "deny"]] | None = None
    rules: Items[Raw] = ()


class _Examples(FileModel):
    shape_hint = "Write 'allow:', 'ask:' or 'deny:' and below it a list of arguments"

    allow: Raw | None = None
    ask: Raw | None = None
    deny: Raw | None = None


class _Rule(FileModel):
    shape_hint = "Write '- tool: …' and 'allow: true'"

    allow: Word[Literal["true", "false"]] | None = None
    verdict: Word[Decision] | None = None
    when: Entries[Raw] = Field(default_factory=dict[str, Node])
    reason: Text = ""
    examples: _Examples = _Examples()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.allow and self.verdict:
            message = "A rule has 'allow' or 'verdict', not both"
            raise fault("two_verdicts", message, "Keep one of them", key="verdict")
        if not self.allow and not self.verdict:
            raise fault("missing_verdict", "must have a verdict", "Add 'allow: true' or 'verdict: ask'")
        return self

    @property
    def decision(self) -> Decision:
        return self.verdict or ("allow" if self.allow == "true" else "deny")


class _ToolRule(_Rule):
    tool: Text


class _TaskRule(_Rule):
    task: Text


class _Reader:
    """Collects the rules, examples and problems of one list."""

    def __init__(self, source: RuleSource) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self.examples: list[_Example] = []

    def report(self, code: str, message: str, line: int, hint: str = "") -> None:  # noqa: PLR0917 - the shape of `Report`
        self.problems.append(
            Problem(severity="error", code=code, message=message, file=self.source.file, line=line, hint=hint)
        )

    def read_list(self, node: Node) -> RuleList:
        if isinstance(node, Sequence):
            return RuleList(self._read_rules(node.items), is_written=True)
        reading = read_model(_List, node, file=self.source.file, subject="The list of approvals")
        self.problems += reading.problems
        # The rules are also read if the list has another problem, so that all problems are reported at once.
        entry = node.find("rules") if isinstance(node, Mapping) else None
        items = entry.value.items if entry is not None and isinstance(entry.value, Sequence) else ()
        default = reading.value.default if reading.value else None
        # `approve` means that calls need an approval, like `ask`.
        return RuleList(self._read_rules(items), "ask" if default == "approve" else default, is_written=True)

    def _read_rules(self, items: Iterable[Node]) -> tuple[Rule, ...]:
        rules = [self._read_rule(item, number) for number, item in enumerate(items, start=1)]
        return tuple(rule for rule in rules if rule is not None)

    def _read_rule(self, node: Node, number: int) -> Rule | None:
        model = _ToolRule if self.source.subject == "tool" else _TaskRule
        reading = read_model(model, node, file=self.source.file, subject="A rule")
        self.problems += reading.problems
        if not isinstance(node, Mapping):
            return None
        self._check_subject(node)
        fields = reading.value
        when = self._read_when(node, narrow=fields is not None and fields.decision == "allow")
        if fields is None:
            return None
        command = fields.when.get(COMMAND)
        rule = Rule(
            number=number,
            subject=fields.tool if isinstance(fields, _ToolRule) else fields.task,
            decision=fields.decision,
            when=when,
            reason=fields.reason,
            file=self.source.file,
            line=node.line,
            is_exact=command is not None and _is_exact(command),
            prefixes=frozenset(canonical_command(text) for text in _list_operands(command, "startsWith")),
            expressions=frozenset(get_literal_start(text) for text in _list_operands(command, "matches")),
        )
        self._read_examples(fields.examples, rule, node)
        return rule

    def _check_subject(self, node: Mapping) -> None:
        key, known = self.source.subject, self.source.known
        entry = node.find(key)
        if entry is None or known is None or not isinstance(entry.value, Scalar):
            return
        name = entry.value.value.strip()
        is_pattern = name.endswith("*") and "*" not in name[:-1]
        if name in known or is_pattern or (key == "tool" and _is_from_elsewhere(name, known)):
            return
        hint = hint_nearest(name, known) or f"Known are {', '.join(sorted(known))}"
        self.report(f"unknown_{key}", f"No {key} is called {name!r}", entry.line, hint)

    def _read_when(self, node: Mapping, *, narrow: bool) -> tuple[Condition, ...]:
        entry = node.find("when")
        conditions: list[Condition] = []
        for demand in entry.value.entries if entry is not None and isinstance(entry.value, Mapping) else ():
            place = MatcherPlace(key=demand.key, root=self.source.root, narrow=narrow, report=self.report)
            test = build_matcher(demand.value, place)
            conditions += [Condition(demand.key, test)] if test is not None else []
        return tuple(conditions)

    def _read_examples(self, examples: _Examples, rule: Rule, node: Mapping) -> None:
        if examples.model_fields_set and rule.is_broad:
            hint = f"Name the {self.source.subject} in full, or put the examples into another rule"
            message = f"Examples need a rule for one {self.source.subject}"
            self.report("examples_of_many", message, get_line(node, ["examples"]), hint)
            return
        lists: list[tuple[Decision, Node | None]] = [
            ("allow", examples.allow),
            ("ask", examples.ask),
            ("deny", examples.deny),
        ]
        for expected, given in lists:
            items = given.items if isinstance(given, Sequence) else (given,) if given is not None else ()
            for number, item in enumerate(items, start=1):
                arguments = read_value(item)
                if isinstance(arguments, dict):
                    self.examples.append(_Example(rule, expected, number, arguments, item.line))
                else:
                    message = "An example must be a mapping of arguments"
                    self.report("not_an_example", message, item.line, "Write it like '{path: src/a.py}'")


def read_rules(node: Node, source: RuleSource) -> RuleReading:
    """Read the list under `tool_approvals` or `task_approvals` and check its examples. A problem leaves no rules."""
    reader = _Reader(source)
    rules = reader.read_list(node)
    # With a mistake in one rule, the examples of others would fail for no reason of their own.
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
    """Return True for a name of a server's or skill's tool, which is known only while the server or skill is active."""
    if "/" in name.strip("/"):
        return True
    skill, dot, _ = name.partition(".")
    return bool(dot) and not any(other.startswith(f"{skill}.") for other in known)


def _list_operands(command: Node | None, matcher: str) -> Iterable[str]:
    return () if command is None else list_operands(command, matcher)


def _is_exact(node: Node) -> bool:
    """Return True if only whole values match: `equals`, `in`, or `anyOf` with these."""
    if not isinstance(node, Mapping):
        return False
    return all(entry.key in EXACT or (entry.key == "anyOf" and _are_exact(entry.value)) for entry in node.entries)


def _are_exact(node: Node) -> bool:
    return isinstance(node, Sequence) and all(_is_exact(item) for item in node.items)


_LIST_KEYS = frozenset({"default", "rules"})


class _Policy(FileModel):
    tool_approvals: Raw | None = None
    task_approvals: Raw | None = None


@dataclass(slots=True)
class ScopeReader:
    """Reads the rules of one workspace and collects their problems."""

    root: str
    tools: Collection[str] | None = None
    tasks: Collection[str] | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    examples: int = 0

    def read_policy(self, text: str, *, file: str, kind: ScopeKind = "host") -> Scope:
        """Read a policy file: `tool_approvals` and `task_approvals`, or only a list of tool rules."""
        document = read_yaml(text, file=file)
        self.problems.extend(document.problems)
        root = document.root
        if root is None or has_errors(self.problems):
            return Scope(kind=kind)
        if not isinstance(root, Mapping) or not _LIST_KEYS.isdisjoint(entry.key for entry in root.entries):
            return Scope(kind=kind, tools=self._read(root, file, "tool"))
        reading = read_model(_Policy, root, file=file)
        self.problems.extend(reading.problems)
        return self._build(kind, root.find_value("tool_approvals"), root.find_value("task_approvals"), file=file)

    def read_definition(self, file: Path, *, within: Path | None = None) -> Scope:
        """Read the approvals of a Markdown definition of any kind; see `load_document`."""
        document = load_document(file, within=within)
        self.problems.extend(document.problems)
        tools, tasks = map(document.root.find_value, ("tool_approvals", "task_approvals"))
        return self._build("agent", tools, tasks, file=str(file))

    def read_agent(self, agent: AgentDefinition) -> Scope:
        scope = self._build("agent", agent.tool_approvals, agent.task_approvals, file=str(agent.file))
        return _named(scope, agent.id)

    def read_task(self, task: TaskDefinition) -> Scope:
        """Read the rules of `TASK.md`, which apply to all of its steps."""
        return _named(self._read_step("task", task.steps[0]), task.id)

    def read_step(self, step: TaskStep) -> Scope:
        return _named(self._read_step("step", step), step.name)

    def read_skill(self, skill: SkillDefinition, *, is_trusted: bool) -> Scope:
        scope = self._build("skill", skill.tool_approvals, skill.task_approvals, file=str(skill.file))
        return Scope(
            kind="skill",
            name=skill.name,
            tools=scope.tools,
            tasks=scope.tasks,
            is_trusted=is_trusted,
            # `Bash(git:*)` is another program's notation for a part of a tool; it allows nothing here.
            preapproved=frozenset(name for name in skill.allowed_tools if "(" not in name),
            limits=_read_limits(skill),
        )

    def check(self, what: str) -> None:
        """Raise `ConfigError` with all problems, if there are errors."""
        if has_errors(self.problems):
            raise ConfigError(f"{what} cannot be used", hint="Correct the lines above", problems=self.problems)

    def _read_step(self, kind: ScopeKind, step: TaskStep) -> Scope:
        return self._build(kind, step.tool_approvals, step.task_approvals, file=str(step.file))

    def _build(self, kind: ScopeKind, tools: Node | None, tasks: Node | None, *, file: str) -> Scope:
        return Scope(
            kind=kind,
            tools=self._read(tools, file, "tool") if tools else NO_RULES,
            tasks=self._read(tasks, file, "task") if tasks else NO_RULES,
        )

    def _read(self, node: Node, file: str, subject: str) -> RuleList:
        known = self.tools if subject == "tool" else self.tasks
        reading: RuleReading = read_rules(node, RuleSource(file=file, root=self.root, known=known, subject=subject))
        self.problems.extend(reading.problems)
        self.examples += reading.examples
        return reading.rules


def _read_limits(skill: SkillDefinition) -> dict[Listed, frozenset[str]]:
    """Return the limits of a skill: skills and tasks in canonical form, tools by name."""
    tools, skills, tasks = map(find_limit, (skill.tools, skill.skills, skill.tasks))
    limits: dict[Listed, frozenset[str]] = {}
    if tools is not None:
        limits["tools"] = frozenset(tools)
    if skills is not None:
        limits["skills"] = frozenset(map(canonical_name, skills))
    if tasks is not None:
        limits["tasks"] = frozenset(map(fold_id, tasks))
    return limits


def _named(scope: Scope, name: str) -> Scope:
    return Scope(kind=scope.kind, name=name, tools=scope.tools, tasks=scope.tasks)
