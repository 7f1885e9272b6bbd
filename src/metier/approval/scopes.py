"""The scopes of a run, read from the files that speak in it: host policy, agent, task, step, skill."""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from metier.approval.load import RuleReading, RuleSource, read_rules
from metier.approval.rules import NO_RULES, Listed, RuleList, Scope, ScopeKind
from metier.definitions.agent import AgentDefinition
from metier.definitions.names import canonical_name, fold_id
from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import FileModel, Raw, read_model
from metier.definitions.references import find_limit
from metier.definitions.skills.skill import SkillDefinition
from metier.definitions.task import TaskDefinition, TaskStep
from metier.definitions.text.front_matter import load_document
from metier.definitions.text.yaml_text import Mapping, Node, read_yaml
from metier.errors import ConfigError

_LIST_KEYS = frozenset({"default", "rules"})


class _Policy(FileModel):
    tool_approvals: Raw | None = None
    task_approvals: Raw | None = None


@dataclass(slots=True)
class ScopeReader:
    """Reads rules for one workspace and collects what is wrong with them."""

    root: str
    tools: Collection[str] | None = None
    tasks: Collection[str] | None = None
    problems: list[Problem] = field(default_factory=list[Problem])
    examples: int = 0

    def read_policy(self, text: str, *, file: str, kind: ScopeKind = "host") -> Scope:
        """A file of rules: `tool_approvals` and `task_approvals`, or the list of tool rules itself."""
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
        """The approvals of a Markdown definition, whatever kind it is; see `load_document`."""
        document = load_document(file, within=within)
        self.problems.extend(document.problems)
        tools, tasks = map(document.root.find_value, ("tool_approvals", "task_approvals"))
        return self._build("agent", tools, tasks, file=str(file))

    def read_agent(self, agent: AgentDefinition) -> Scope:
        scope = self._build("agent", agent.tool_approvals, agent.task_approvals, file=str(agent.file))
        return _named(scope, agent.id)

    def read_task(self, task: TaskDefinition) -> Scope:
        """The rules of `TASK.md`, which hold for all of its steps."""
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
            # `Bash(git:*)` names a part of a tool in another program's words: it allows nothing here.
            preapproved=frozenset(name for name in skill.allowed_tools if "(" not in name),
            limits=_read_limits(skill),
        )

    def check(self, what: str) -> None:
        """Raises `ConfigError` with every problem that was found."""
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
    """Skills and tasks in their canonical form, tools as they are called."""
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
