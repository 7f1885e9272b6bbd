"""Audit of decisions: who approved or denied which call, newest first."""

from datetime import datetime
from typing import cast
from urllib.parse import urlencode

from fastapi import APIRouter
from msgspec import Struct
from pydantic import JsonValue
from starlette.responses import Response

from metier.runtime.cleaning import build_host_redactor
from metier.runtime.questions.approval_questions import parse_call
from metier.server.console.rendering import Here, PageRoute
from metier.store.base import RecordedDecision
from metier.telemetry.call_text import show_call
from metier.telemetry.redaction import Redactor
from metier.views.call_words import describe_call

router = APIRouter(include_in_schema=False, route_class=PageRoute)

PAGE = 50
STATUSES = ("approved", "denied", "expired")


class ListedDecision(Struct, frozen=True, kw_only=True):
    approval_id: str
    run_id: str
    status: str
    decided_by: str
    reason: str
    at: datetime
    call: str
    is_edited: bool
    counted: bool
    """False if another decision was first."""


@router.get("/audit")
async def show_audit(page: Here, by: str = "", status: str = "", before: int = 0) -> Response:
    runtime = page.state.runtime
    wanted = status if status in STATUSES else ""
    rows = await runtime.store.list_decisions(decided_by=by[:200], status=wanted, before=before, limit=PAGE + 1)
    redactor = build_host_redactor(runtime.host)
    address = urlencode({name: value for name, value in (("by", by), ("status", wanted)) if value})
    return await page.render(
        "audit.html",
        "audit",
        decisions=[build_listed(row, redactor) for row in rows[:PAGE]],
        by=by,
        wanted=wanted,
        statuses=STATUSES,
        address=address,
        before=before,
        next_cursor=rows[PAGE - 1].number if len(rows) > PAGE else 0,
    )


def build_listed(row: RecordedDecision, redactor: Redactor) -> ListedDecision:
    tool, arguments = parse_call(row.payload)
    shown = cast("dict[str, JsonValue]", show_call({**arguments}, redactor))  # an object stays one
    return ListedDecision(
        approval_id=row.attempt.approval_id,
        run_id=row.run_id,
        status=row.attempt.status,
        decided_by=row.attempt.decided_by,
        reason=row.attempt.reason,
        at=row.attempt.at,
        call=describe_call(tool, shown),
        is_edited=row.attempt.counted and row.edited_payload is not None,
        counted=row.attempt.counted,
    )
