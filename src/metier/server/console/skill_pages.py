"""The skills of the workspace: where each is from, whether it is trusted, what it could do, and which would answer."""

from urllib.parse import quote

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import Response

from metier.errors import UsageError
from metier.routing.prefilter import DEFAULT_MIN_SCORE
from metier.runtime.skill_updates import find_installed, look_for_update, take_update
from metier.runtime.workspace.skill_catalog import describe_skill, list_standings, probe_skills
from metier.server.console.rendering import Here, PageRoute
from metier.skills.capabilities_report import list_capabilities

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_LONGEST = 2_000


@router.get("/skills")
async def show_skills(page: Here, probe: str = "") -> Response:
    """With a request: the skills that a run would consider for it, and by which words."""
    place = page.state.host
    asked = probe.strip()[:_LONGEST]
    found = await run_sync(list_standings, place)
    candidates = await probe_skills(place, asked) if asked else ()
    return await page.render(
        "skills.html", "skills", found=found, asked=asked, candidates=candidates, least=DEFAULT_MIN_SCORE
    )


@router.get("/skills/{name:path}")
async def show_skill(page: Here, name: str) -> Response:
    details = await run_sync(describe_skill, page.state.host, name)
    capabilities = {title: words for title, words in list_capabilities(details.report).items() if words}
    installed = await run_sync(find_installed, page.state.host, name)
    return await page.render("skill.html", "skills", details=details, capabilities=capabilities, installed=installed)


@router.post("/skill-updates/{name:path}")
async def update_skill(page: Here, name: str) -> Response:
    """Fetch the skill from its source and show what would change; install exactly that when it was seen and wanted."""
    form = await page.read_form()
    match form.get("do", ""):
        case "look":
            update = await look_for_update(page.state.host, name)
            return await page.render("skill_update.html", "skills", name=name, update=update)
        case "trust" | "keep" as word:
            await take_update(page.state.host, name, tree=form.get("tree", ""), is_trusted=word == "trust")
            return page.go(f"/skills/{quote(name)}?done=updated")
        case word:
            raise UsageError(f"A skill cannot be told to {word[:40]!r}", hint="Use one of the buttons")
