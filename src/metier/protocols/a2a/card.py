"""The agent card: name, addresses and, for authenticated callers, skills."""

from pathlib import Path

from a2a.types.a2a_pb2 import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from metier.definitions.task import load_task
from metier.protocols.a2a.caller import Caller
from metier.runtime.host import Host
from metier.runtime.workspace.agents import ResolvedAgent, resolve_agent
from metier.runtime.workspace.lookup import list_definitions
from metier.telemetry.excerpt import one_line
from metier.version import __version__

TASK = "task:"
"""The prefix of the IDs of A2A skills that are task definitions."""
PROTOCOL = "1.0"
RPC, REST = "rpc", "v1"
"""The last part of the addresses of the two bindings."""
_TEXT = ("text/plain", "application/json")
_BEARER = "bearer"
_DESCRIPTION_CHARACTERS = 400
_BUILT_IN = "metier"


def build_card(host: Host, caller: Caller, *, is_extended: bool) -> AgentCard:
    """Build the card. Raises `UsageError`, `ConfigError` if the agent cannot be used.

    Skills name files of the workspace, so callers without a token don't see them.
    """
    agent = _resolve(host, caller)
    return AgentCard(
        name=agent.definition.name if agent.definition else _BUILT_IN,
        description=_describe(agent),
        version=__version__,
        provider=AgentProvider(organization="Metier", url=caller.base_url),
        supported_interfaces=[
            AgentInterface(url=f"{build_address(caller)}/{end}", protocol_binding=binding, protocol_version=PROTOCOL)
            for end, binding in ((RPC, "JSONRPC"), (REST, "HTTP+JSON"))
        ],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True, extended_agent_card=True),
        security_schemes={_BEARER: SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))},
        security_requirements=[SecurityRequirement(schemes={_BEARER: StringList()})],
        default_input_modes=_TEXT,
        default_output_modes=_TEXT[:1],
        skills=[_build_run(), *(_list_skills(agent) if is_extended else ())],
    )


def list_skill_ids(host: Host, caller: Caller) -> frozenset[str]:
    """List the IDs of the skills on the extended card; callers can request no others."""
    return frozenset(skill.id for skill in (_build_run(), *_list_skills(_resolve(host, caller))))


def build_address(caller: Caller) -> str:
    return f"{caller.base_url}/a2a/{caller.agent}" if caller.agent else f"{caller.base_url}/a2a"


def _resolve(host: Host, caller: Caller) -> ResolvedAgent:
    return resolve_agent(host, caller.agent or host.settings.runtime.agent or "")


def _describe(agent: ResolvedAgent) -> str:
    said = agent.definition.description if agent.definition else ""
    return one_line(said, _DESCRIPTION_CHARACTERS) or "An agent of this workspace: it works on a task in words."


def _build_run() -> AgentSkill:
    return AgentSkill(id="run", name="run", description="Work on a task in words.", tags=["task"])


def _list_skills(agent: ResolvedAgent) -> list[AgentSkill]:
    """List the task definitions that the agent may run, then the skills that it may use."""
    skills: list[AgentSkill] = []
    for found in list_definitions(agent.host.workspace, "task").values():
        task = load_task(Path(found.path), id=found.id, within=found.within).task
        if task is not None and task.id in agent.tasks:
            inputs = ", ".join(item.name for item in task.inputs)
            said = f"{one_line(task.description, _DESCRIPTION_CHARACTERS)}{f' Inputs: {inputs}.' if inputs else ''}"
            skills.append(AgentSkill(id=f"{TASK}{task.id}", name=task.name, description=said, tags=["task"]))
    for package in agent.packages:
        definition = package.definition
        said = one_line(definition.description, _DESCRIPTION_CHARACTERS)
        skills.append(AgentSkill(id=definition.name, name=definition.name, description=said, tags=["skill"]))
    return skills
