"""`/decide/WORD`: one approval, shown and decided by the link of a message, without signing in."""

import json
from html import escape
from typing import Annotated

from fastapi import APIRouter, FastAPI, Form, Path, Request
from starlette.responses import Response

from metier.errors import ApprovalClosed
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.notify.links import PATH, DecisionLinks, DecisionRight
from metier.runtime.questions.approvals import ApprovalQuestion, Reply
from metier.server.deciding import decide
from metier.server.plain_page import render_plain_page
from metier.server.problems import HttpProblem
from metier.server.state import ServerState, State, get_nonce
from metier.telemetry.sanitize import escape_json
from metier.views.call_words import describe_call

router = APIRouter(prefix=PATH, include_in_schema=False)

type Word = Annotated[str, Path(max_length=100)]

_FORM = """<p>{sentence}</p>
<pre>{arguments}</pre>
{preview}<p>{reason}</p>
<form method="post"><input type="hidden" name="hash" value="{hash}">
<label for="reason">Reason</label><input id="reason" name="reason" maxlength="10000" autocomplete="off">
<button name="decision" value="approved">Approve</button>
<button name="decision" value="denied">Deny</button></form>
<p>You decide as <strong>{decider}</strong>, once. The run is {run_id}.</p>"""
_GONE = "This link was used already, or is too old."


def mount(app: FastAPI, state: ServerState) -> None:
    app.include_router(router)
    # The link is the credential: it gives one decision and nothing to read beside it.
    state.access.public.add(PATH)


@router.get("/{word}")
async def show(request: Request, state: State, word: Word) -> Response:
    """Looking does not use the link: programs that preview links look too."""
    right = _get_links(state).find(word)
    if right is None:
        return _refuse(request, state)
    question = await state.runtime.approvals.get(right.approval_id)
    if question.row.status != "open":
        return _tell_closed(request, question)
    return render_plain_page("Approval", _render(state, question, right), nonce=get_nonce(request))


@router.post("/{word}")
async def decide_by_link(
    request: Request,
    state: State,
    word: Word,
    decision: Annotated[str, Form(max_length=20)],
    seen: Annotated[str, Form(alias="hash", max_length=200)],
    reason: Annotated[str, Form(max_length=10_000)] = "",
) -> Response:
    if decision not in ("approved", "denied"):
        raise HttpProblem(422, "wrong_decision", "This is no decision", hint="Approve or deny")
    right = _get_links(state).find(word)
    if right is None:
        return _refuse(request, state)
    question = await state.runtime.approvals.get(right.approval_id)
    try:
        await decide(state, question, Reply(decision=decision, by=right.decider, reason=reason), seen=seen)
    except ApprovalClosed:
        return _tell_closed(request, await state.runtime.approvals.get(right.approval_id))
    # Of two that use it at once one decides; one that was refused can still be used to deny.
    _get_links(state).redeem(word)
    done = "Approved" if decision == "approved" else "Denied"
    return render_plain_page(done, "<p>The run goes on. You can close this page.</p>", nonce=get_nonce(request))


def _get_links(state: ServerState) -> DecisionLinks:
    return DecisionLinks(state.recipe.private)


def _render(state: ServerState, question: ApprovalQuestion, right: DecisionRight) -> str:
    cleaner = build_place_cleaner(state.host)
    given = cleaner.value(dict(question.arguments))
    asked = question.asked
    preview = cleaner.text(asked.preview) if asked is not None else ""
    return _FORM.format(
        sentence=escape(describe_call(question.tool, given if isinstance(given, dict) else {})),
        arguments=escape(escape_json(json.dumps({question.tool: given}, indent=2, ensure_ascii=False))),
        preview=f"<pre>{escape(preview)}</pre>\n" if preview else "",
        reason=escape(cleaner.text(asked.reason) if asked is not None else ""),
        hash=escape(question.hash),
        decider=escape(right.decider),
        run_id=escape(question.row.run_id),
    )


def _tell_closed(request: Request, question: ApprovalQuestion) -> Response:
    row = question.row
    said = f"<p>It is {escape(row.status)}, by {escape(row.decided_by or 'nothing but time')}.</p>"
    return render_plain_page("Decided already", said, nonce=get_nonce(request), status=409)


def _refuse(request: Request, state: ServerState) -> Response:
    """Raises `HttpProblem` where too many wrong words came from one address."""
    if state.access.failures.take(request.client.host if request.client else "unknown"):
        raise HttpProblem(429, "too_many_requests", "Too many links that are not good", hint="Wait a minute")
    return render_plain_page(
        "Not found", f'<p class="wrong" role="alert">{_GONE}</p>', nonce=get_nonce(request), status=404
    )
