"""Commands of a chat that only show: skills, tools, cost, the window of the model, permissions, servers, facts."""

import sys
from typing import get_args

from metier.approval.scopes import ScopeReader
from metier.cli.chat.desk import Desk
from metier.cli.chat.permission_modes import SUMMARIES, list_modes
from metier.cli.cost import print_totals
from metier.cli.mcp import examine, write_standing
from metier.cli.shared.output import warn_line, write_line
from metier.definitions.nearest import hint_nearest
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.errors import UsageError
from metier.runtime.build import list_all_tools
from metier.runtime.chat.chats import list_always
from metier.runtime.history.spending import read_conversation_spending
from metier.telemetry.excerpt import one_line
from metier.views.context_use import render_context
from metier.views.painter import build_painter
from metier.views.spending import Grouping, sum_up

_SHOWN = 90
_PROFILES = {
    "permissive": "nothing is asked; only rules deny or ask",
    "guarded": "asks before anything that is more than reading, unless a rule allows it",
    "strict": "asks as guarded does, inside a sandbox",
}


async def show_skills(desk: Desk, name: str) -> None:
    packages = desk.chat.resolve().packages
    chosen = [package for package in packages if package.definition.name.startswith(name)]
    if name and not chosen:
        known = [package.definition.name for package in packages]
        raise UsageError(f"No skill is called {name!r}", hint=hint_nearest(name, known) or "`/skills` lists them")
    for package in chosen:
        write_line(f"{package.definition.name:<22} {' '.join(package.definition.description.split())}")
    if not packages:
        warn_line("This agent has no skills")


async def show_tools(desk: Desk, name: str) -> None:
    agent = desk.chat.resolve()
    tools = agent.choose_tools(list_all_tools(agent.packages, agent.place, web=agent.web))
    chosen = [tool.info for tool in tools if tool.info.name.casefold().startswith(name.casefold())]
    if name and not chosen:
        known = [tool.info.name for tool in tools]
        raise UsageError(f"No tool is called {name!r}", hint=hint_nearest(name, known) or "`/tools` lists them")
    room = max(20, build_painter(sys.stdout).width - 36)
    for info in chosen:
        about = info.description if name else one_line(info.description, room)
        write_line(f"{info.name:<22} {info.risk or '-':<10} {about}")


async def show_cost(desk: Desk, by: str) -> None:
    known = get_args(Grouping)
    if by and by not in known:
        raise UsageError(f"Cost cannot be added up by {by!r}", hint=f"Use one of {', '.join(known)}")
    spent = await read_conversation_spending(desk.chat.runtime, desk.chat.context_id)
    grouping: Grouping = by if by in ("agent", "skill", "task", "day") else "model"
    totals = sum_up(spent, grouping)
    if not totals:
        warn_line("No model was asked in this conversation yet")
        return
    print_totals(totals)


async def show_context(desk: Desk, _: str) -> None:
    used = await desk.turns.find_context()
    if not used.limit:
        warn_line("No model was asked in this conversation yet")
        return
    painter = build_painter(sys.stdout)
    painter.print(*render_context(used, width=min(painter.width, _SHOWN)))


async def show_permissions(desk: Desk, mode: str) -> None:
    """The profile, the permission mode, the rules of the host, and what the person said always to."""
    agent = desk.chat.resolve()
    place = agent.place
    if mode:
        desk.modes.choose(mode, agent.profile)
        warn_line(f"Permission mode {desk.modes.mode}: {SUMMARIES[desk.modes.mode]}")
        return
    write_line(f"profile {agent.profile}: {_PROFILES[agent.profile]}")
    for each in list_modes(agent.profile):
        write_line(f"{'*' if each == desk.modes.mode else ' '} mode {each}: {SUMMARIES[each]}")
    reader = ScopeReader(root=str(place.workspace))
    host = reader.read_policy(read_policy_file(place.workspace).decode("utf-8", "replace"), file=POLICY_FILE)
    for rule in host.tools.rules:
        when = ", ".join(condition.key for condition in rule.when)
        about = f" by {when}" if when else ""
        write_line(f"{rule.decision:<6} {rule.subject}{about}  {rule.reason}  ({rule.place})".rstrip())
    if not host.tools.rules:
        write_line(f"no rules in {POLICY_FILE}")
    for key in await list_always(desk.chat):
        write_line(f"allow  {one_line(key, _SHOWN)}  (always in this conversation)")
    write_line("`agent policy explain TOOL --args JSON` says what a call would meet")


async def show_servers(desk: Desk, _: str) -> None:
    standings = examine(desk.chat.runtime.place)
    for standing in standings:
        write_standing(standing)
    if not standings:
        warn_line(f"No servers: there is no '{desk.chat.runtime.place.settings.mcp.file}', or it names none")


async def show_facts(desk: Desk, _: str) -> None:
    facts = await desk.chat.list_facts()
    for fact in facts:
        write_line(f"{fact.key}: {fact.text}{'' if fact.is_own else '  (told by the way)'}")
    if not facts:
        warn_line("No facts are kept yet; `/remember name: fact` keeps one")
