"""Pages of the workspace: skills, policy, health."""

import os
from collections import Counter
from datetime import datetime, timedelta
from typing import cast
from urllib.parse import quote

from anyio.to_thread import run_sync
from fastapi import APIRouter
from msgspec import Struct
from starlette.background import BackgroundTask
from starlette.responses import Response

from metier.approval.judge import Explanation
from metier.definitions.files.whole_file import replace_file
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.errors import ConfigError, UsageError
from metier.routing.prefilter import DEFAULT_MIN_SCORE
from metier.runtime.diagnosis import Finding, examine, examine_mcp
from metier.runtime.history.comparison import PastRuns, backtest_past_runs
from metier.runtime.host import Host
from metier.runtime.present_policy import build_present_policy, explain_call
from metier.runtime.runs import Runtime
from metier.runtime.skill_updates import check_for_update, find_installed, install_update
from metier.runtime.workspace.skill_catalog import describe_skill, list_skills, probe_skills
from metier.server.api.monitoring import read_queue
from metier.server.console.rendering import Here, Page, PageRoute, parse_object
from metier.server.problems import HttpProblem, describe_problem
from metier.skills.capabilities_report import list_capabilities
from metier.store.base import RUNNABLE, RunRow, RunSearch

router = APIRouter(include_in_schema=False, route_class=PageRoute)

_MAX_REQUEST_LENGTH = 2_000


@router.get("/skills")
async def show_skills(page: Here, probe: str = "") -> Response:
    """List the skills and, for a request, the candidates that a run would consider."""
    host = page.state.host
    asked = probe.strip()[:_MAX_REQUEST_LENGTH]
    found = await run_sync(list_skills, host)
    candidates = await probe_skills(host, asked) if asked else ()
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
    """Fetch the skill from its source and show the changes, or install exactly the version that was shown."""
    form = await page.read_form()
    match form.get("do", ""):
        case "look":
            update = await check_for_update(page.state.host, name)
            return await page.render("skill_update.html", "skills", name=name, update=update)
        case "trust" | "keep" as word:
            await install_update(page.state.host, name, tree=form.get("tree", ""), is_trusted=word == "trust")
            return page.go(f"/skills/{quote(name)}?done=updated")
        case word:
            raise UsageError(f"Unknown action {word[:40]!r} for a skill", hint="Use one of the buttons")


PAST_RUNS = 100
"""Past runs on which a draft is tested."""
_MAX_RULES_LENGTH = 200_000


@router.get("/policy")
async def show_policy(page: Here, tool: str = "", arguments: str = "", agent: str = "") -> Response:
    """Show the rules and, for a call, the decision and the rules that made it."""
    explanation = await _explain(page, tool, arguments, agent) if tool.strip() else None
    return await _render_policy(page, explanation=explanation, asked=(tool, arguments, agent))


async def _explain(page: Page, tool: str, arguments: str, agent: str) -> Explanation:
    policy = build_present_policy(page.state.host, agent.strip())
    return await explain_call(
        policy, tool.strip(), parse_object(arguments.strip() or "{}", what="arguments", example='{"path": "a.txt"}')
    )


async def _render_policy(
    page: Page,
    *,
    explanation: Explanation | None = None,
    asked: tuple[str, str, str] = ("", "", ""),
    draft: str | None = None,
    past: PastRuns | None = None,
    refused: tuple[str, ...] = (),
) -> Response:
    saved = read_policy_file(page.state.host.workspace).decode("utf-8", "replace")
    return await page.render(
        "policy.html",
        "policy",
        status=422 if refused else 200,
        explanation=explanation,
        asked=asked,
        saved=saved,
        draft=saved if draft is None else draft,
        past=past,
        refused=refused,
        file=POLICY_FILE,
        runs=PAST_RUNS,
    )


@router.post("/policy")
async def try_rules(page: Here) -> Response:
    """Test a draft of the rules on past runs, or save it."""
    form = await page.read_form()
    # Browsers send every line end of a form as CRLF.
    draft, before = form.get("rules", "").replace("\r\n", "\n"), form.get("saved", "").replace("\r\n", "\n")
    if len(draft) > _MAX_RULES_LENGTH:
        raise UsageError("The rules are too long", hint=f"Keep them within {_MAX_RULES_LENGTH:,} characters")
    try:
        past = await backtest_past_runs(page.state.runtime, runs=PAST_RUNS, host=draft.encode())
    except ConfigError as error:
        problem = describe_problem(error, page.state.redactor)
        return await _render_policy(page, draft=draft, refused=problem.problems or (problem.detail,))
    if form.get("do") != "save":
        return await _render_policy(page, draft=draft, past=past)
    workspace = page.state.host.workspace
    # Another user, or an editor, may have saved since: don't overwrite rules that this user didn't compare.
    if read_policy_file(workspace).decode("utf-8", "replace") != before:
        raise HttpProblem(
            409, "rules_changed", "The rules changed since you opened the page", hint="Load the page again"
        )
    (workspace / POLICY_FILE).parent.mkdir(parents=True, exist_ok=True)
    replace_file(workspace / POLICY_FILE, draft.encode())
    return page.go("/policy?done=saved")


_MAX_AGE = timedelta(seconds=30)
_MAX_RUNS = 50
_MAX_ROWS = 2_000


class Checkup(Struct):
    """The latest findings of `agent doctor`."""

    findings: tuple[Finding, ...] = ()
    checked_at: datetime | None = None

    async def run(self, host: Host) -> None:
        def check() -> tuple[Finding, ...]:
            return tuple(examine(host.settings, os.environ, cwd=host.workspace, home=host.home))

        self.findings = await run_sync(check)
        self.checked_at = host.clock.now()


@router.get("/health")
async def show_health(page: Here, check: str = "") -> Response:
    """Show the latest findings. Old ones are refreshed after the response.

    The checks start programs and compare the whole database with folders, which takes a second at 100,000 runs.
    """
    host, runtime = page.state.host, page.state.runtime
    rows = await _list_under_way(runtime)
    driven = [row for row in rows if row.driver]
    waiting = [row for row in rows if not row.driver and row.status in RUNNABLE]
    queued = await read_queue(page.state)
    checkup = cast("Checkup", page.request.app.state.checkup)  # put there by `mount`
    if checkup.checked_at is None or check:
        await checkup.run(host)
    # Reading a file is cheap, and a user who just accepted a server comes back to see it.
    servers = await run_sync(lambda: list(examine_mcp(host.settings, host.workspace, home=host.home)))
    findings = [queued.finding, *(each for each in checkup.findings if each.area != "mcp"), *servers]
    areas: dict[str, list[Finding]] = {}
    for finding in findings:
        areas.setdefault(finding.area, []).append(finding)
    response = await page.render(
        "health.html",
        "health",
        areas=areas,
        driven=driven,
        waiting=waiting,
        shown=[*driven, *waiting][:_MAX_RUNS],
        workers=Counter(row.driver for row in driven).most_common(),
        queues=Counter(row.queue for row in waiting if row.queue).most_common(),
        pool=page.state.pool,
        queue=page.state.queue,
        queued=queued,
        interrupted=sum(not row.queue for row in waiting),
        backend=host.settings.store.backend,
        checked_at=checkup.checked_at,
        problems=[finding for finding in findings if finding.state == "problem"],
    )
    if checkup.checked_at is not None and host.clock.now() - checkup.checked_at > _MAX_AGE:
        response.background = BackgroundTask(checkup.run, host)
    return response


async def _list_under_way(runtime: Runtime) -> list[RunRow]:
    """Return all unfinished runs that don't wait for a user."""
    search = RunSearch(statuses=(*RUNNABLE, "delegating"))
    rows: list[RunRow] = []
    while page := await runtime.store.search_runs(search, before=rows[-1].number if rows else 0, limit=_MAX_ROWS):
        rows += page
    return rows
