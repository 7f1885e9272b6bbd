"""The policy and tools of a run that would start now.

The policy is applied to a proposed call, an edited one, or the calls of past runs. A report lists an agent's effective
tools, skills, tasks and rules with their origin.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import RUN_TASK, Explanation, RulePolicy, name_call
from metier.approval.profile import ProfilePolicy, read_profile
from metier.approval.rules import ORDER, Decision, Rule, RuleList, Scope
from metier.context.decoder import build_step
from metier.decisions import ActionStep
from metier.definitions.names import Profile, fold_id
from metier.definitions.policy_file import read_policy_file
from metier.definitions.skills.skill_names import is_called
from metier.engine.decide import Policy
from metier.engine.entries.entry import Entry
from metier.engine.entries.question import ApprovalAsked
from metier.engine.entries.run import RunStarted
from metier.engine.entries.step import StepFinished, StepStarted
from metier.engine.execution.approval_requests import CallSnapshot
from metier.engine.execution.judged_paths import resolve_call_links
from metier.engine.journal import read_entries
from metier.engine.state.fold import apply, fold
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import build_memory_key
from metier.errors import ConfigError, UsageError
from metier.runtime.build import list_all_tools, list_tools
from metier.runtime.confinement import find_reading_level
from metier.runtime.host import Host, shorten_path
from metier.runtime.workspace.agents import ResolvedAgent, resolve_agent
from metier.runtime.workspace.policy import PolicySources, build_policy, list_outside_scripts, open_reader, read_host
from metier.runtime.workspace.trust import get_withheld
from metier.store.base import Store
from metier.tools.access import FILE_NAME, AccessFile
from metier.tools.base import Tool, ToolContext
from metier.tools.toolbox import Toolbox
from metier.tools.toolsets.loader import load_toolsets


def build_present_policy(
    host: Host,
    agent_id: str,
    *,
    root: Path | None = None,
    profile: Profile | None = None,
    policy_file: bytes | None = None,
) -> RulePolicy:
    """Build the current policy for this agent, or the built-in one. Raises like `resolve_agent`.

    `policy_file` replaces the policy file of the workspace, to test a draft.
    """
    agent = resolve_agent(host, agent_id)
    chosen = profile or agent.profile
    # The profile also determines the files that tools reject.
    judged = agent.host.with_runtime(profile=chosen)
    offered = list_all_tools(agent.packages, judged, web=agent.web)
    policy_file = read_policy_file(host.workspace) if policy_file is None else policy_file
    sources = PolicySources(
        host=policy_file,
        agent=agent.definition,
        known=Toolbox(offered).names(),
        withheld=get_withheld(host, policy_file),
        outside=list_outside_scripts(agent.packages, host.workspace),
        access=_read_access(host.workspace),
    )
    tools = Toolbox(agent.choose_tools(offered))
    folder = root or host.workspace
    trial = find_reading_level(judged)
    default = ProfilePolicy(chosen, tools, reading=trial.level if trial is not None else "none")
    return build_policy(agent.packages, tools, workspace=folder, profile=default, sources=sources, is_partial=True)


def _read_access(workspace: Path) -> Scope:
    """Read the disabled tools as rules. A run reads the file before each turn instead. Raises `ConfigError`."""
    rules: list[Rule] = []
    for reading in AccessFile(workspace).load():
        reading.check()
        for name in sorted(reading.off, key=reading.lines.__getitem__):
            reason, file, line = f"Tool {name!r} is turned off", str(reading.file), reading.lines[name]
            rules.append(
                Rule(number=len(rules) + 1, subject=name, decision="deny", reason=reason, file=file, line=line)
            )
    # Without this tool, no task can be run.
    tasks = tuple(replace(rule, subject="*") for rule in rules if rule.subject == RUN_TASK)
    return Scope(kind="host", name=FILE_NAME, tools=RuleList(tuple(rules)), tasks=RuleList(tasks))


async def explain_call(
    policy: RulePolicy, tool: str, arguments: dict[str, JsonValue], *, skill: str = ""
) -> Explanation:
    """Explain the decision like a run: with the paths as written and with resolved links. The strictest one counts."""
    said = policy.explain(build_step(tool, arguments, call_id=""), skill=skill)
    targets = await resolve_call_links(tool, arguments, tools=policy.tools, root=policy.root)
    for key, path in targets.items():
        moved = policy.explain(build_step(tool, {**arguments, key: path}, call_id=""), skill=skill)
        if ORDER[moved.verdict.decision] > ORDER[said.verdict.decision]:
            reason = f"It leads to {path!r}. {moved.verdict.reason}"
            said = replace(moved, verdict=replace(moved.verdict, reason=reason))
    return said


class PastCall(Struct, frozen=True, kw_only=True):
    """A past call and its decision at that time."""

    step_id: str
    action: ActionStep
    skill: str
    was: Decision


class Change(Struct, frozen=True, kw_only=True):
    run_id: str
    step_id: str
    tool: str
    arguments: dict[str, JsonValue]
    was: Decision
    now: Decision
    reason: str
    rule: str


class Backtest(Struct, frozen=True):
    calls: int
    changes: tuple[Change, ...]


def list_calls(run_id: str, entries: Sequence[Entry]) -> list[PastCall]:
    """List the evaluated calls in order. Calls allowed by a remembered answer count as `ask`."""
    state = RunState(run_id)
    found: dict[str, PastCall] = {}
    for entry in entries:
        step_id = getattr(entry, "step_id", "")
        was = _find_decision(entry, state)
        # The first decision counts: the start of an approved call would look like a call that was allowed.
        if was is not None and step_id not in found:
            action = state.step(step_id).action
            found[step_id] = PastCall(step_id=step_id, action=action, skill=state.skill, was=was)
        # Only now, because the decision was made in the state before its entry.
        apply(state, entry)
    return list(found.values())


def backtest(run_id: str, entries: Sequence[Entry], build: Callable[[str, Profile], Policy]) -> Backtest:
    """Evaluate the calls of a run again, with its agent and profile. `build` returns the current policy."""
    started = entries[0] if entries and isinstance(entries[0], RunStarted) else None
    if started is None:
        return Backtest(0, ())
    policy = build(started.agent, read_profile(started.profile))
    calls = list_calls(run_id, entries)
    changes: list[Change] = []
    for call in calls:
        verdict = policy.judge(call.action, skill=call.skill)
        if verdict.decision != call.was:
            tool, arguments = name_call(call.action)
            changes.append(
                Change(
                    run_id=run_id,
                    step_id=call.step_id,
                    tool=tool,
                    arguments=arguments,
                    was=call.was,
                    now=verdict.decision,
                    reason=verdict.reason,
                    rule=verdict.rule,
                )
            )
    return Backtest(len(calls), tuple(changes))


def _find_decision(entry: Entry, state: RunState) -> Decision | None:
    match entry:
        case ApprovalAsked():
            return "ask"
        case StepStarted():
            return "ask" if build_memory_key(entry.action) in state.remembered else "allow"
        case StepFinished(status="denied"):
            return "deny"
        case _:
            return None


type EditedCall = tuple[str, dict[str, JsonValue]]
"""A tool and the arguments that the user edited."""


async def get_edit_denial(run_id: str, call: EditedCall, *, host: Host, store: Store) -> str:
    """Return why a call that the user edited would be denied in this run, or an empty string.

    This uses the current rules with the agent, profile and skill of the run. If they can't be read, nothing is denied
    here, because the run evaluates the call again with its own rules before it runs.
    """
    tool, arguments = call
    state = fold(run_id, await read_entries(store, run_id))
    if state.started is None:
        return ""
    try:
        policy = build_present_policy(host, state.started.agent, profile=read_profile(state.started.profile))
    except (ConfigError, UsageError):
        return ""
    verdict = policy.judge(build_step(tool, arguments, call_id=""), skill=state.skill)
    # An unknown tool is not a denial: the run had it when it asked, but only a run can list the tools of toolsets.
    return verdict.reason if verdict.decision == "deny" and verdict.code != "unknown_tool" else ""


async def preview_call(host: Host, tool: str, arguments: dict[str, JsonValue]) -> CallSnapshot:
    """Preview the call of a file tool. Other tools have no preview without running them."""
    tools = Toolbox(list_tools((), host))
    preview = await tools.preview(tool, arguments, ToolContext(workspace=host.workspace))
    targets = await resolve_call_links(tool, arguments, tools=tools, root=str(host.workspace))
    return CallSnapshot(preview.base if preview else "", tuple(targets.values()), preview.text if preview else "")


class Named(Struct, frozen=True, kw_only=True):
    """A tool, skill or task that the agent may use."""

    name: str
    source: str
    """Origin: Metier itself, a skill, or the workspace."""
    line: int | None = None
    """Line in the agent's file; None if it is inherited."""
    note: str = ""


class AgentReport(Struct, frozen=True, kw_only=True):
    agent: ResolvedAgent
    tools: tuple[Named, ...]
    skills: tuple[Named, ...]
    tasks: tuple[Named, ...]
    rules: tuple[tuple[str, Rule], ...]
    """Rules with the scope that each comes from, in evaluation order."""
    missing: tuple[str, ...] = ()
    """Tools in the agent's list that don't exist now."""


async def report_agent(host: Host, agent_id: str, *, model: str = "") -> AgentReport:
    """Report the agent as a run would have it. This starts the toolsets of trusted skills to list their tools."""
    agent = resolve_agent(host, agent_id, model=model)
    toolsets = await load_toolsets(agent.packages, host.environ)
    try:
        offered: tuple[Tool, ...] = (*list_all_tools(agent.packages, agent.host, web=agent.web), *toolsets.tools)
        return _build_report(agent, offered)
    finally:
        await toolsets.aclose()


def _build_report(agent: ResolvedAgent, offered: tuple[Tool, ...]) -> AgentReport:
    box, chosen = Toolbox(offered), agent.choose_tools(offered)
    off = box.resolve(AccessFile(agent.host.workspace).read())
    lines = {name: agent.lines.get(name, {}) for name in ("tools", "skills", "tasks")}
    by_tool = {tool.info.name: line for name, line in lines["tools"].items() if (tool := box.find(name))}
    by_task = {fold_id(name): line for name, line in lines["tasks"].items()}
    workspace = agent.host.workspace
    return AgentReport(
        agent=agent,
        tools=tuple(
            Named(
                name=tool.info.name,
                source=_describe_source(tool),
                line=by_tool.get(tool.info.name),
                note="turned off in 'tool-access.json'" if tool.info.name in off else "",
            )
            for tool in sorted(chosen, key=lambda tool: tool.info.name)
        ),
        skills=tuple(
            Named(
                name=package.definition.name,
                source=f"{package.source}: {shorten_path(package.definition.file, workspace)}",
                line=next((at for name, at in lines["skills"].items() if is_called(package.definition, name)), None),
            )
            for package in agent.packages
        ),
        tasks=tuple(Named(name=each, source="workspace", line=by_task.get(fold_id(each))) for each in agent.tasks),
        rules=tuple(_list_rules(_read_scopes(agent, box))),
        missing=tuple(_list_missing(lines["tools"], box)),
    )


def _describe_source(tool: Tool) -> str:
    kind, _, rest = tool.info.id.partition(":")
    if kind == "skill":
        return f"skill {rest.partition('.')[0]!r}"
    return "built in" if kind == "builtin" else kind


def _read_scopes(agent: ResolvedAgent, box: Toolbox) -> list[Scope]:
    workspace = agent.host.workspace
    reader = open_reader(workspace, box)
    scopes = [read_host(reader, read_policy_file(workspace), workspace=workspace)]
    if agent.definition is not None:
        scopes.append(reader.read_agent(agent.definition))
        reader.check(f"The rules of agent {agent.id!r}")
    return scopes


def _list_rules(scopes: Iterable[Scope]) -> Iterable[tuple[str, Rule]]:
    for scope in scopes:
        for rule in (*scope.tools.rules, *scope.tasks.rules):
            yield scope.kind, rule


def _list_missing(lines: Mapping[str, int], box: Toolbox) -> Iterable[str]:
    return (name for name in lines if box.find(name) is None)
