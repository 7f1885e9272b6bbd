"""The policy that a run of an agent would have if it began now: for looking at calls, not for running them."""

from dataclasses import replace
from pathlib import Path

from metier.approval.judge import RulePolicy
from metier.definitions.agent import Profile
from metier.runtime.build import list_all_tools
from metier.runtime.host import Host
from metier.runtime.workspace.agents import resolve_agent
from metier.runtime.workspace.policy import Speakers, build_policy, read_policy_file
from metier.runtime.workspace.trust import find_withheld
from metier.tools.toolbox import Toolbox


def build_present_policy(
    place: Host, agent_id: str, *, root: Path | None = None, profile: Profile | None = None, host: bytes | None = None
) -> RulePolicy:
    """The rules as they stand for this agent, the built-in one where none is named. Raises as `resolve_agent`.

    `host` are rules of the workspace that are not saved yet, in the place of those that are.
    """
    agent = resolve_agent(place, agent_id)
    chosen = profile or agent.profile
    offered = list_all_tools(agent.packages, _with_profile(agent.place, chosen), web=agent.web)
    host = read_policy_file(place.workspace) if host is None else host
    speakers = Speakers(
        host=host,
        agent=agent.definition,
        known=Toolbox(offered).names(),
        withheld=find_withheld(place, host),
    )
    tools = Toolbox(agent.choose_tools(offered))
    folder = root or place.workspace
    return build_policy(agent.packages, tools, workspace=folder, profile=chosen, speakers=speakers, is_partial=True)


def _with_profile(place: Host, profile: Profile) -> Host:
    """What file tools refuse depends on it."""
    runtime = place.settings.runtime.model_copy(update={"profile": profile})
    return replace(place, settings=place.settings.model_copy(update={"runtime": runtime}))
