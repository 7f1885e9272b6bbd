"""Steps of a task that cannot do what they say, told before anything runs.

A step may name a tool that a rule always denies, belong to an agent that cannot be used, end with a command that no
rule allows, or stand in a file that no other step leads to. Reads; starts nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from metier.approval.judge import RulePolicy
from metier.approval.profile import ProfilePolicy
from metier.approval.rules import SHELL, RuleList, Scope
from metier.approval.scopes import ScopeReader
from metier.decisions import ActionStep
from metier.definitions.agent import AgentDefinition
from metier.definitions.files.contained_file import read_contained
from metier.definitions.ids import fold_id
from metier.definitions.inherit import INHERIT, resolve_list
from metier.definitions.permits import Permits
from metier.definitions.policy_file import read_policy_file
from metier.definitions.problems import Problem
from metier.definitions.references import Reference
from metier.definitions.task import TaskDefinition, TaskStep
from metier.errors import ConfigError
from metier.runtime.build import list_tools
from metier.runtime.host import Host
from metier.runtime.workspace.model_choice import choose_profile
from metier.tools.access import AccessFile
from metier.tools.toolbox import Toolbox

FENCE = b"---"
"""How a file begins that means to be a step; one without is a page that the author keeps beside the task."""


class StepChecker:
    """Holds steps against their agents, and against the rules and settings of the workspace."""

    def __init__(
        self, place: Host, agents: Mapping[str, AgentDefinition | None], *, is_tool: Callable[[str], bool], agent: str
    ) -> None:
        """`agents` by folded ID, nothing for one that cannot be used; `agent` does steps that name none."""
        self._place = place
        self._agent = agent
        self._agents = agents
        self._broken = {name for name, agent in agents.items() if agent is None}
        self._is_tool = is_tool
        self._host = _read_host(place)
        self._off = frozenset(name for access in AccessFile(place.workspace).load() for name in access.off)
        self._tools: Toolbox | None = None

    def check(
        self, task: TaskDefinition, *, permits: Iterable[Permits], references: Iterable[Reference]
    ) -> list[Problem]:
        """What is wrong with the steps; `permits` and `references` are theirs, with lines."""
        said = {each.file: each for each in permits}
        problems = self._find_broken_agents(references)
        for step in task.steps:
            own = said.get(str(step.file))
            agent = self._find_agent(step, task)
            if own is not None:
                scopes = self._read_scopes(step, task, agent)
                problems += self._check_tools(own, agent, scopes)
                problems += self._check_commands(own, step, task, agent=agent, scopes=scopes)
        return [*problems, *_find_unreached(task)]

    def _find_agent(self, step: TaskStep, task: TaskDefinition) -> AgentDefinition | None:
        """Nothing for the built-in one, and for one that is not there."""
        name = step.agent or task.agent or self._agent
        return self._agents.get(fold_id(name)) if name else None

    def _find_broken_agents(self, references: Iterable[Reference]) -> list[Problem]:
        return [
            _problem(
                "error",
                "agent_unusable",
                f"Agent {each.name!r} cannot be used, so this step can never run",
                file=each.file,
                line=each.line,
                hint="Correct the agent",
            )
            for each in references
            if each.kind == "agent" and fold_id(each.name) in self._broken
        ]

    def _read_scopes(self, step: TaskStep, task: TaskDefinition, agent: AgentDefinition | None) -> list[Scope]:
        reader = ScopeReader(root=str(self._place.workspace))
        scopes = [self._host]
        if agent is not None:
            scopes.append(reader.read_agent(agent))
        scopes.append(reader.read_task(task))
        return scopes if step is task.steps[0] else [*scopes, reader.read_step(step)]

    def _check_tools(self, own: Permits, agent: AgentDefinition | None, scopes: list[Scope]) -> Iterator[Problem]:
        for name, line in own.tools.items():
            if not self._is_tool(name):
                continue
            speaker = next((scope for scope in scopes if is_always_denied(name, scope.tools)), None)
            if speaker is not None:
                # A host narrows what any pack may do; what the pack itself contradicts is a mistake of the pack.
                severity = "warning" if speaker.kind == "host" else "error"
                message = f"Tool {name!r} is denied by the rules of {speaker.title}, so this step can never call it"
                hint = "Take the tool out, or change the rule"
                yield _problem(severity, "tool_denied", message, file=own.file, line=line, hint=hint)
            elif name in self._off:
                message = f"Tool {name!r} is turned off in this workspace, so this step does not have it"
                hint = "Turn it on in 'tool-access.json', or take it out"
                yield _problem("warning", "tool_off", message, file=own.file, line=line, hint=hint)
            elif agent is not None and not _has_tool(agent, name):
                message = f"Tool {name!r} is not in the list of agent {agent.id!r}; this step adds it"
                hint = "Add it to the agent too if that is meant, else take it out"
                yield _problem("warning", "tool_beyond_agent", message, file=own.file, line=line, hint=hint)

    def _check_commands(
        self, own: Permits, step: TaskStep, task: TaskDefinition, *, agent: AgentDefinition | None, scopes: list[Scope]
    ) -> Iterator[Problem]:
        """A command that is not allowed is never run, and so the step never counts as done."""
        for command, line in own.commands.items():
            reason = self._find_obstacle(command, step, task, agent=agent, scopes=scopes)
            if reason:
                message = f"The command {command!r} is never run, so this step can never succeed: {reason}"
                hint = f"Let it have {SHELL!r}, and allow the command by a rule that names it whole"
                yield _problem("error", "command_not_allowed", message, file=own.file, line=line, hint=hint)

    def _find_obstacle(
        self, command: str, step: TaskStep, task: TaskDefinition, *, agent: AgentDefinition | None, scopes: list[Scope]
    ) -> str:
        names: tuple[str, ...] = (SHELL,)
        for owner in (agent, task.steps[0], step):
            names = resolve_list(owner.tools, names) if owner is not None else names
        if SHELL not in names:
            return f"the lists of tools leave it no {SHELL!r}"
        if self._tools is None:
            self._tools = Toolbox(list_tools((), self._place))
        profile = choose_profile(self._place.settings.runtime.profile, agent)
        asking = ProfilePolicy("guarded" if profile == "permissive" else profile, self._tools)
        policy = RulePolicy(asking, self._tools, root=str(self._place.workspace), scopes=scopes)
        verdict = policy.judge(ActionStep(type="run_command", params={"command": command}), skill="")
        return "" if verdict.decision == "allow" else verdict.reason or "a rule asks about it"


def is_always_denied(name: str, rules: RuleList) -> bool:
    """No call of this tool is ever allowed by these rules, whatever its arguments are."""
    for rule in rules.rules:
        if rule.speaks_of(frozenset({name})):
            if rule.decision != "deny":
                return False
            if not rule.when:
                return True
    return rules.default == "deny"


def _has_tool(agent: AgentDefinition, name: str) -> bool:
    return agent.tools is None or INHERIT in agent.tools or name in agent.tools


def _read_host(place: Host) -> Scope:
    """Nothing where it cannot be read: that is said of the file itself."""
    try:
        data = read_policy_file(place.workspace)
    except ConfigError:
        return Scope(kind="host")
    reader = ScopeReader(root=str(place.workspace))
    return reader.read_policy(data.decode("utf-8", "replace"), file="")


def _find_unreached(task: TaskDefinition) -> Iterator[Problem]:
    """Only where the chain is whole: else the step before it is what has to be mended."""
    if task.steps[-1].next is not None:
        return
    steps = {step.file.name.casefold() for step in task.steps}
    for file in sorted(task.steps[0].file.parent.glob("*.md")):
        if file.name.casefold() not in steps and _is_step(file):
            message = "No step leads to this file, so it never runs"
            hint = f"Write 'next: {file.name}' in the step before it, or take its front matter out"
            yield _problem("warning", "step_unreached", message, file=str(file), line=1, hint=hint)


def _is_step(file: Path) -> bool:
    try:
        return read_contained(file, within=file.parent, limit=len(FENCE))[: len(FENCE)] == FENCE
    except OSError:
        return False


def _problem(
    severity: Literal["error", "warning"], code: str, message: str, *, file: str, line: int, hint: str
) -> Problem:
    return Problem(severity=severity, code=code, message=message, file=file, line=line, hint=hint)
