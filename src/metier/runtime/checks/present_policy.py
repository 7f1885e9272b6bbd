"""The policy that a run of an agent would have if it began now: for looking at calls, not for running them."""

from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from metier.approval.chain import STRICTNESS
from metier.approval.judge import Explanation, RulePolicy
from metier.context.decoder import build_step
from metier.definitions.policy_file import read_policy_file
from metier.definitions.profile import Profile
from metier.engine.execution.paths import find_call_leads
from metier.runtime.build import list_all_tools
from metier.runtime.host import Host
from metier.runtime.workspace.agents import resolve_agent
from metier.runtime.workspace.policy import Speakers, build_policy
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


async def explain_call(
    policy: RulePolicy, tool: str, arguments: dict[str, JsonValue], *, skill: str = ""
) -> Explanation:
    """As a run judges it: by what it says, and by where its paths and words lead now. The strictest verdict counts."""
    said = policy.explain(build_step(tool, arguments, call_id=""), skill=skill)
    leads = await find_call_leads(tool, arguments, tools=policy.tools, root=policy.root)
    for key, path in leads.items():
        moved = policy.explain(build_step(tool, {**arguments, key: path}, call_id=""), skill=skill)
        if STRICTNESS[moved.verdict.decision] > STRICTNESS[said.verdict.decision]:
            reason = f"It leads to {path!r}. {moved.verdict.reason}"
            said = replace(moved, verdict=replace(moved.verdict, reason=reason))
    return said


def _with_profile(place: Host, profile: Profile) -> Host:
    """What file tools refuse depends on it."""
    runtime = place.settings.runtime.model_copy(update={"profile": profile})
    return replace(place, settings=place.settings.model_copy(update={"runtime": runtime}))
