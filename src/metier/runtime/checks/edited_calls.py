"""What a call would meet that a person edited while they approved it: they decide where no run is being driven."""

from pydantic import JsonValue

from metier.context.decoder import build_step
from metier.engine.execution.approvals import Found
from metier.engine.execution.paths import find_call_leads
from metier.engine.journal import read_entries
from metier.engine.state import fold
from metier.errors import ConfigError, UsageError
from metier.runtime.build import list_tools
from metier.runtime.checks.backtest import read_profile
from metier.runtime.checks.present_policy import build_present_policy
from metier.runtime.host import Host
from metier.store.base import Store
from metier.tools.base import ToolContext
from metier.tools.toolbox import Toolbox

type EditedCall = tuple[str, dict[str, JsonValue]]
"""A tool and the arguments that a person gave it."""


async def refuse_edited(run_id: str, call: EditedCall, *, place: Host, store: Store) -> str:
    """Why a call that a person edited would be denied in this run; empty where it would not.

    By the rules as they stand, with the agent, the profile and the skill of the run. The run judges once more by its
    own before anything happens; where the rules of today cannot be read, that has to do.
    """
    tool, arguments = call
    state = fold(run_id, await read_entries(store, run_id))
    if state.started is None:
        return ""
    try:
        policy = build_present_policy(place, state.started.agent, profile=read_profile(state.started.profile))
    except (ConfigError, UsageError):
        return ""
    verdict = policy.judge(build_step(tool, arguments, call_id=""), skill=state.skill)
    # The tool was there when the question was put: one that only a run can list is not missing.
    return verdict.reason if verdict.decision == "deny" and verdict.code != "unknown_tool" else ""


async def look_at_call(place: Host, tool: str, arguments: dict[str, JsonValue]) -> Found:
    """Only files can be looked at without running anything; of other calls nothing is known."""
    tools = Toolbox(list_tools((), place))
    preview = await tools.preview(tool, arguments, ToolContext(workspace=place.workspace))
    leads = await find_call_leads(tool, arguments, tools=tools, root=str(place.workspace))
    return Found(preview.base if preview else "", tuple(leads.values()), preview.text if preview else "")
