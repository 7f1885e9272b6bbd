"""What a call would meet that a person edited while they approved it: they decide where no run is being driven."""

from pydantic import JsonValue

from metier.engine.approvals import Found
from metier.engine.paths import find_call_leads
from metier.runtime.build import list_tools
from metier.runtime.place import Place
from metier.tools.base import ToolContext
from metier.tools.toolbox import Toolbox


async def look_at_call(place: Place, tool: str, arguments: dict[str, JsonValue]) -> Found:
    """Only files can be looked at without running anything; of other calls nothing is known."""
    tools = Toolbox(list_tools((), place))
    preview = await tools.preview(tool, arguments, ToolContext(workspace=place.workspace))
    leads = await find_call_leads(tool, arguments, tools=tools, root=str(place.workspace))
    return Found(preview.base if preview else "", tuple(leads.values()))
