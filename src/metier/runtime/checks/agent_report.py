"""An agent's effective tools, skills and tasks in this workspace, each with its origin."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from metier.approval.rules import Rule, Scope
from metier.definitions.names import fold_id
from metier.definitions.policy_file import read_policy_file
from metier.definitions.skills.skill_names import is_called
from metier.runtime.build import list_all_tools
from metier.runtime.host import Host
from metier.runtime.workspace.agents import AgentInForce, resolve_agent
from metier.runtime.workspace.policy import open_reader, read_host
from metier.tools.access import AccessFile
from metier.tools.base import Tool
from metier.tools.toolbox import Toolbox
from metier.tools.toolsets.loader import load_toolsets


class Named(Struct, frozen=True, kw_only=True):
    """A tool, skill or task that the agent may use."""

    name: str
    source: str
    """Provider of the entry: Metier itself, a skill, or the workspace."""
    line: int | None = None
    """Line of the agent's file that names it; None if it is inherited."""
    note: str = ""


class AgentReport(Struct, frozen=True, kw_only=True):
    agent: AgentInForce
    tools: tuple[Named, ...]
    skills: tuple[Named, ...]
    tasks: tuple[Named, ...]
    rules: tuple[tuple[str, Rule], ...]
    """Rules with the scope that each comes from, in evaluation order."""
    missing: tuple[str, ...] = ()
    """Tools that the agent names and that don't exist now."""


async def report_agent(host: Host, agent_id: str, *, model: str = "") -> AgentReport:
    """Report the agent as a run would have it; toolsets of trusted skills are run to list their tools."""
    agent = resolve_agent(host, agent_id, model=model)
    toolsets = await load_toolsets(agent.packages, host.environ)
    try:
        offered: tuple[Tool, ...] = (*list_all_tools(agent.packages, agent.host, web=agent.web), *toolsets.tools)
        return _build(agent, offered)
    finally:
        await toolsets.aclose()


def _build(agent: AgentInForce, offered: tuple[Tool, ...]) -> AgentReport:
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
                source=_shorten(str(package.definition.file), str(workspace), kind=package.source),
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


def _shorten(path: str, workspace: str, *, kind: str) -> str:
    """Shorten a path below the workspace; others stay as they are."""
    return f"{kind}: {path.removeprefix(f'{workspace}/')}"


def _read_scopes(agent: AgentInForce, box: Toolbox) -> list[Scope]:
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
