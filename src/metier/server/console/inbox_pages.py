"""The inbox: approvals and runs that wait for a user, and the forms that decide and answer them."""

import json
import re
from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter
from pydantic import JsonValue
from starlette.responses import Response

from metier.errors import ApprovalClosed, MetierError, UsageError
from metier.runtime.answers import Answer, RaisedLimits
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.cleaning import build_host_cleaner
from metier.runtime.inbox import read_inbox
from metier.server.console.inbox_cards import build_waiting_card, read_approval_card
from metier.server.console.rendering import Here, Page, PageRoute
from metier.server.problems import describe_problem
from metier.server.run_actions import answer, check_grant, continue_run, decide
from metier.telemetry.sanitize import escape_json
from metier.views.form_fields import build_fields, parse_values

router = APIRouter(include_in_schema=False, route_class=PageRoute)

# Not any path: a form of another page could otherwise redirect the user to an action.
_BACK_PATH = re.compile(r"/(chat|runs)/[\w-]{1,200}")


@router.get("/")
async def show_inbox(page: Here) -> Response:
    return await _render(page, "inbox.html")


@router.get("/inbox/list")
async def show_list(page: Here) -> Response:
    return await _render(page, "inbox_list.html")


async def _render(page: Page, template: str) -> Response:
    runtime = page.state.runtime
    inbox = await read_inbox(runtime)
    cards = [await read_approval_card(runtime, question) for question in inbox.approvals]
    runs = [build_waiting_card(run, runtime.host) for run in inbox.runs]
    return await page.render(template, "inbox", cards=cards, runs=runs)


@router.get("/approvals/{name}")
async def show_approval(page: Here, name: str) -> Response:
    question = await page.state.runtime.approvals.get(name)
    return await _render_approval(page, question)


async def _render_approval(
    page: Page,
    question: ApprovalQuestion,
    *,
    edited: str = "",
    diff: str | None = None,
    refused: str = "",
    status: int = 200,
) -> Response:
    return await page.render(
        "approval.html",
        "inbox",
        status=status,
        card=await read_approval_card(page.state.runtime, question),
        attempts=await page.state.runtime.approvals.attempts(question),
        # Invisible characters as JSON escapes: the approver sees them, and the form sends the same value back.
        edited_text=edited or escape_json(json.dumps(question.arguments, indent=2, ensure_ascii=False)),
        edited_diff=diff,
        refused=refused,
    )


@router.post("/approvals/{name}")
async def decide_one(page: Here, name: str) -> Response:
    """Decide an approval. If it was decided before, the page shows by whom."""
    form = await page.read_form()
    question = await page.state.runtime.approvals.get(name)
    word = _read_decision(form.get("decision", ""))
    try:
        await decide(
            page.state,
            question,
            Reply(decision=word, by=page.user.name, reason=form.get("reason", "")),
            seen=form.get("hash", ""),
        )
    except MetierError as error:
        return await _render_refusal(page, name, error)
    return page.go(f"{_get_back(form)}?done={word}")


async def _render_refusal(page: Page, name: str, error: MetierError) -> Response:
    """Render the current approval with the reason why the decision was rejected."""
    problem = describe_problem(error, page.state.redactor)
    question = await page.state.runtime.approvals.get(name)
    message = " ".join(part for part in (f"{problem.detail}.", problem.hint) if part)
    return await _render_approval(page, question, refused=message, status=problem.status)


@router.post("/approvals/{name}/edit")
async def edit_call(page: Here, name: str) -> Response:
    """Preview an edited call, or approve it."""
    check_grant(page.user, "edit")
    form = await page.read_form()
    runtime, text = page.state.runtime, form.get("arguments", "")
    question = await runtime.approvals.get(name)
    arguments = _parse_arguments(text)
    problem = "they are not a JSON object" if arguments is None else await question.get_wrong_arguments(arguments)
    if arguments is None or problem:
        return await _render_approval(
            page, question, edited=text, refused=f"These arguments cannot be used: {problem}", status=422
        )
    if form.get("do") == "approve":
        reply = Reply(decision="approved", by=page.user.name, reason=form.get("reason", ""), arguments=arguments)
        try:
            await decide(page.state, question, reply, seen=form.get("hash", ""))
        except ApprovalClosed as error:
            return await _render_refusal(page, name, error)
        return page.go("/?done=approved")
    found = await runtime.approvals.look(question, arguments)
    diff = build_host_cleaner(runtime.host).text(found.preview)
    return await _render_approval(page, question, edited=text, diff=diff)


def _parse_arguments(text: str) -> dict[str, JsonValue] | None:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@router.post("/inbox/many")
async def decide_many(page: Here) -> Response:
    """Decide several approvals independently: one that was decided before doesn't stop the others."""
    word = _read_decision((await page.read_form()).get("decision", ""))
    marked = await page.read_list("approval")
    if not marked:
        raise UsageError("Nothing is marked", hint="Mark the approvals to decide together")
    failed: list[str] = []
    for each in marked:
        # Each mark carries the hash of the call that the user saw.
        name, _, seen = each.partition(":")
        try:
            question = await page.state.runtime.approvals.get(name)
            await decide(page.state, question, Reply(decision=word, by=page.user.name), seen=seen)
        except MetierError as error:
            failed.append(f"{name}: {error.message}")
    if failed:
        raise UsageError("Not all of them were decided", hint="; ".join(failed))
    return page.go("/?done=decided")


@router.post("/runs/{run_id}/answer")
async def answer_question(page: Here, run_id: str) -> Response:
    form = await page.read_form()
    question = (await page.state.runtime.get_status(run_id)).question
    values = parse_values(build_fields(question) if question is not None else (), form)
    await answer(page.state, run_id, Answer(values=values, by=page.user.name))
    return page.go(f"{_get_back(form)}?done=answered")


@router.post("/runs/{run_id}/doubt")
async def answer_doubt(page: Here, run_id: str) -> Response:
    form = await page.read_form()
    word = form.get("answer", "")
    if word not in ("done", "retry", "skip", "abort"):
        raise UsageError(f"Unknown answer {word[:40]!r}", hint="Use one of the buttons")
    await answer(page.state, run_id, Answer(doubt=word, by=page.user.name))
    return page.go(f"{_get_back(form)}?done=answered")


@router.post("/runs/{run_id}/accept")
async def accept_code(page: Here, run_id: str) -> Response:
    check_grant(page.user, "code")
    await answer(page.state, run_id, Answer(accepts_changed_skills=True, by=page.user.name))
    return page.go("/?done=resumed")


@router.post("/runs/{run_id}/raise")
async def raise_limit(page: Here, run_id: str) -> Response:
    check_grant(page.user, "limits")
    form = await page.read_form()
    raised = _read_limit(form.get("limit", ""), form.get("value", ""))
    await answer(page.state, run_id, Answer(raised=raised, reopens=True, by=page.user.name))
    return page.go(f"{_get_back(form)}?done=raised")


@router.post("/runs/{run_id}/resume")
async def resume(page: Here, run_id: str) -> Response:
    await continue_run(page.state, run_id)
    return page.go(f"/runs/{run_id}?done=resumed")


def _get_back(form: Mapping[str, str]) -> str:
    """Return the page of the form: a conversation or a run, else the inbox. Other addresses are ignored."""
    back = form.get("back", "")
    return back if _BACK_PATH.fullmatch(back) else "/"


def _read_limit(name: str, text: str) -> RaisedLimits:
    try:
        match name:
            case "max_turns":
                # The form suggests large numbers as `1e+06`, which `int` alone rejects.
                return RaisedLimits(max_turns=int(float(text)))
            case "max_cost_usd":
                return RaisedLimits(max_cost_usd=float(text))
            case "timeout_seconds":
                return RaisedLimits(timeout_seconds=float(text))
            case _:
                raise UsageError(f"Unknown limit {name[:40]!r}")
    except (ValueError, OverflowError) as error:
        raise UsageError("The limit is not a number", hint="Write a number") from error


def _read_decision(word: str) -> Literal["approved", "denied"]:
    if word not in ("approved", "denied"):
        raise UsageError(f"Unknown decision {word[:40]!r}", hint="Approve or deny")
    return word
