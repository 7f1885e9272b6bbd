"""The skills of the workspace: where each is from, whether it is trusted, what it could do, and which would answer."""

from anyio.to_thread import run_sync
from fastapi import APIRouter
from starlette.responses import Response

from metier.routing.prefilter import DEFAULT_MIN_SCORE
from metier.runtime.workspace.skill_probe import describe_skill, list_standings, probe_skills
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
    candidates = await run_sync(probe_skills, place, asked) if asked else ()
    return await page.render(
        "skills.html", "skills", found=found, asked=asked, candidates=candidates, least=DEFAULT_MIN_SCORE
    )


@router.get("/skills/{name:path}")
async def show_skill(page: Here, name: str) -> Response:
    details = await run_sync(describe_skill, page.state.host, name)
    capabilities = {title: words for title, words in list_capabilities(details.report).items() if words}
    return await page.render("skill.html", "skills", details=details, capabilities=capabilities)
