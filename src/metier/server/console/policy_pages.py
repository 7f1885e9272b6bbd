"""The rules: what they say to a call, and what a draft of them would have changed before it is saved."""

import json

from fastapi import APIRouter
from pydantic import JsonValue
from starlette.responses import Response

from metier.approval.judge import Explanation
from metier.definitions.files.whole_file import replace_file
from metier.definitions.policy_file import POLICY_FILE, read_policy_file
from metier.errors import ConfigError, UsageError
from metier.runtime.checks.present_policy import build_present_policy, explain_call
from metier.runtime.history.comparison import PastRuns, backtest_past_runs
from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.problems import HttpProblem, describe_problem

router = APIRouter(include_in_schema=False, route_class=PageRoute)

RUNS = 100
"""Past runs that a draft is tried on."""
_MAX_RULES_LENGTH = 200_000


@router.get("/policy")
async def show_policy(page: Here, tool: str = "", arguments: str = "", agent: str = "") -> Response:
    """With a tool: how a call of it would be judged, and by what."""
    explanation = await _explain(page, tool, arguments, agent) if tool.strip() else None
    return await _render(page, explanation=explanation, asked=(tool, arguments, agent))


async def _explain(page: Page, tool: str, arguments: str, agent: str) -> Explanation:
    policy = build_present_policy(page.state.host, agent.strip())
    return await explain_call(policy, tool.strip(), _parse(arguments))


async def _render(
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
        runs=RUNS,
    )


@router.post("/policy")
async def try_rules(page: Here) -> Response:
    """Try a draft on past runs; save it only when that was seen and wanted."""
    form = await page.read_form()
    draft, before = form.get("rules", "").replace("\r\n", "\n"), form.get("saved", "").replace("\r\n", "\n")
    if len(draft) > _MAX_RULES_LENGTH:
        raise UsageError("The rules are too long", hint=f"Keep them within {_MAX_RULES_LENGTH:,} characters")
    try:
        past = await backtest_past_runs(page.state.runtime, runs=RUNS, host=draft.encode())
    except ConfigError as error:
        problem = describe_problem(error, page.state.redactor)
        return await _render(page, draft=draft, refused=problem.problems or (problem.detail,))
    if form.get("do") != "save":
        return await _render(page, draft=draft, past=past)
    workspace = page.state.host.workspace
    if read_policy_file(workspace).decode("utf-8", "replace") != before:
        raise HttpProblem(
            409, "rules_changed", "The rules changed since you began to edit them", hint="Load the page again"
        )
    (workspace / POLICY_FILE).parent.mkdir(parents=True, exist_ok=True)
    replace_file(workspace / POLICY_FILE, draft.encode())
    return page.go("/policy?done=saved")


def _parse(text: str) -> dict[str, JsonValue]:
    try:
        value: JsonValue = json.loads(text.strip() or "{}")
    except (ValueError, RecursionError) as error:
        raise UsageError("The arguments are not JSON", hint='Write {"path": "a.txt"}') from error
    if not isinstance(value, dict):
        raise UsageError("The arguments must be one JSON object", hint='Write {"path": "a.txt"}')
    return value
