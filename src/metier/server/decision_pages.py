"""`/decide/WORD`: show and decide one approval through the link of a notification, without signing in."""

from html import escape
from typing import Annotated, cast

from fastapi import APIRouter, FastAPI, Form, Path, Request
from jinja2 import Environment
from starlette.responses import Response

from metier.errors import ApprovalClosed
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.notify.links import PATH, DecisionLinks
from metier.server.console.inbox_cards import read_approval_card
from metier.server.plain_page import render_plain_page
from metier.server.problems import HttpProblem
from metier.server.run_actions import decide
from metier.server.state import ServerState, State, get_nonce

router = APIRouter(prefix=PATH, include_in_schema=False)

type Word = Annotated[str, Path(max_length=100)]

_GONE = """<p class="notice bad" role="alert">This link was already used or has expired.</p>
<p><a href="{base}/">Sign in to the console</a> to list open approvals.</p>"""


def mount(app: FastAPI, state: ServerState) -> None:
    app.include_router(router)
    # The link is the credential. It grants one decision and access to nothing else.
    state.access.public.add(PATH)


@router.get("/{word}")
async def show(request: Request, state: State, word: Word) -> Response:
    """Show the approval. This does not use up the link, because chat programs fetch links for a preview."""
    right = _get_links(state).find(word)
    if right is None:
        return _render_unknown(request, state)
    question = await state.runtime.approvals.get(right.approval_id)
    if question.row.status != "open":
        return await _render_decided(request, state, question)
    content = _render(
        request, "decision.html", card=await read_approval_card(state.runtime, question), decider=right.decider
    )
    return render_plain_page("Approval", content, nonce=get_nonce(request), base=state.base_path, is_wide=True)


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
        return _render_unknown(request, state)
    question = await state.runtime.approvals.get(right.approval_id)
    try:
        reply = Reply(decision=decision, by=right.decider, reason=reason)
        decided = await decide(state, question, reply, seen=seen)
    except ApprovalClosed:
        return await _render_decided(request, state, await state.runtime.approvals.get(right.approval_id))
    # Only after the decision counted: a link whose approval was refused can still be used to deny.
    _get_links(state).redeem(word)
    return await _render_decided(request, state, decided, is_new=True)


def _get_links(state: ServerState) -> DecisionLinks:
    return DecisionLinks(state.config.private)


def _render(request: Request, template: str, **values: object) -> str:
    environment = cast("Environment", request.app.state.console)  # set by `console.pages.mount`
    return environment.get_template(template).render(**values)


async def _render_decided(
    request: Request, state: ServerState, question: ApprovalQuestion, *, is_new: bool = False
) -> Response:
    """Render a closed approval. `is_new`: this request decided it."""
    card = await read_approval_card(state.runtime, question)
    title = card.status.capitalize() if is_new else "Expired" if card.status == "expired" else "Already decided"
    return render_plain_page(
        title,
        _render(request, "decided.html", card=card, is_new=is_new),
        nonce=get_nonce(request),
        base=state.base_path,
        status=200 if is_new else 409,
    )


def _render_unknown(request: Request, state: ServerState) -> Response:
    """Return the page for an unknown link. Raises `HttpProblem` after too many from one address."""
    # The word is the only credential, so guessing must be slow.
    if state.access.failures.take(request.client.host if request.client else "unknown"):
        raise HttpProblem(429, "too_many_requests", "Too many links that are not good", hint="Wait a minute")
    return render_plain_page(
        "Invalid link",
        _GONE.format(base=escape(state.base_path)),
        nonce=get_nonce(request),
        base=state.base_path,
        status=404,
    )
