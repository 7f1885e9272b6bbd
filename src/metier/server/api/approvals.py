"""Approvals: list, get, decide. The first decision counts; each one is recorded with its user."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import Field, JsonValue
from starlette.responses import Response

from metier.runtime.approval_questions import Reply
from metier.runtime.documents import approval_as_json, attempt_as_json
from metier.server.api.bodies import ApprovalDetails, ApprovalItem, Body, Page, answer, answer_page
from metier.server.idempotency import Document, Key, Once, run_once
from metier.server.problems import HttpProblem
from metier.server.run_actions import check_grant, decide
from metier.server.state import CurrentUser, ServerState, State

router = APIRouter(prefix="/approvals", tags=["approvals"])

type ApprovalName = Annotated[
    str,
    Path(max_length=200, description="The ID of an approval, a unique prefix of it, or `latest`: the only open one."),
]


class Decision(Body):
    reason: Annotated[str, Field(max_length=10_000, description="The model reads the reason of a denial.")] = ""
    hash: Annotated[
        str,
        Field(
            max_length=200,
            description="`hash` of the reviewed call; required to approve.",
        ),
    ] = ""


class Approval(Decision):
    arguments: Annotated[
        dict[str, JsonValue] | None,
        Field(description="Run the call with these arguments; needs the grant `edit`."),
    ] = None


@router.get("", response_model=Page[ApprovalItem])
async def list_approvals(
    state: State,
    status: Annotated[Literal["open", "approved", "denied", "expired", ""], Query()] = "open",
    run: Annotated[str, Query(max_length=200, description="Only approvals of this run.")] = "",
) -> Response:
    """List approvals, oldest first. With an empty status, include decided ones."""
    run_id = (await state.runtime.find(run)).run_id if run else ""
    found = await state.runtime.approvals.list_all(run_id=run_id, status=status)
    return answer_page(state, [approval_as_json(each) for each in found])


@router.get("/{approval}", response_model=ApprovalDetails)
async def get_approval(state: State, approval: ApprovalName) -> Response:
    """Return the exact call, its expected changes, the reason for asking, and all decisions."""
    question = await state.runtime.approvals.get(approval)
    attempts = await state.runtime.approvals.attempts(question)
    return answer(state, {**approval_as_json(question), "attempts": [attempt_as_json(each) for each in attempts]})


@router.post("/{approval}/approve", response_model=ApprovalItem)
async def approve(
    request: Request, state: State, user: CurrentUser, approval: ApprovalName, wanted: Approval, key: Key = ""
) -> Response:
    """Allow the call once, unchanged or with other arguments. The run continues."""
    if wanted.arguments is not None:
        check_grant(user, "edit")
    # `latest` or a prefix may mean another approval by now. The hash binds the decision to the call that was read.
    if not wanted.hash:
        raise HttpProblem(
            422,
            "hash_missing",
            f"Approving {approval!r} needs the hash of the reviewed call",
            hint=f"Send `hash` of GET /api/v1/approvals/{approval}",
        )
    reply = Reply(decision="approved", by=user.name, reason=wanted.reason, arguments=wanted.arguments)
    return await _decide(request, approval, reply, wanted=wanted, key=key, state=state)


@router.post("/{approval}/deny", response_model=ApprovalItem)
async def deny(
    request: Request, state: State, user: CurrentUser, approval: ApprovalName, wanted: Decision, key: Key = ""
) -> Response:
    """Deny the call. The model reads the reason, and the run continues."""
    reply = Reply(decision="denied", by=user.name, reason=wanted.reason)
    return await _decide(request, approval, reply, wanted=wanted, key=key, state=state)


async def _decide(
    request: Request, approval: str, reply: Reply, *, wanted: Decision, key: str, state: ServerState
) -> Response:
    async def work(_once: Once) -> Document:
        question = await state.runtime.approvals.get(approval)
        # A denial needs no hash: to refuse a call that is not the reviewed one does no harm.
        return approval_as_json(await decide(state, question, reply, seen=wanted.hash or question.hash))

    return answer(state, await run_once(request, key, work))
