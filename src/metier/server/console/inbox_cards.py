"""Cards of approvals and waiting runs."""

from datetime import datetime
from typing import cast

from msgspec import Struct
from pydantic import JsonValue

from metier.runtime.answers import Limit
from metier.runtime.approval_questions import ApprovalQuestion
from metier.runtime.cleaning import build_host_cleaner, build_host_redactor
from metier.runtime.host import Host
from metier.runtime.runs import Runtime
from metier.runtime.status import RunStatus, WaitKind
from metier.telemetry.call_text import show_call
from metier.telemetry.sanitize import reveal
from metier.views.call_line import describe_call
from metier.views.form_fields import FormField, build_fields

_LABELS: dict[WaitKind, tuple[str, str]] = {
    "input": ("A question", "question"),
    "in_doubt": ("Did this step happen?", "interrupted"),
    "step_failed": ("A step failed", "step failed"),
    "changed_code": ("Files of a skill changed", "changed files"),
    "limit": ("A limit is reached", "limit"),
}
_STOPPED = ("The run was stopped", "stopped")
_LIMITS: dict[Limit, str] = {
    "max_turns": "Turns",
    "max_cost_usd": "Cost in US dollars",
    "timeout_seconds": "More seconds",
}


class ApprovalCard(Struct, frozen=True, kw_only=True):
    approval_id: str
    run_id: str
    task: str
    agent: str
    tool: str
    sentence: str
    arguments: JsonValue
    hash: str
    preview: str
    base: str
    leads: tuple[str, ...]
    reason: str
    justification: str
    risk: str
    created_at: datetime
    expires_at: datetime | None
    is_stale: bool
    can_edit: bool
    """False if a secret is redacted: an edited call would contain the placeholder instead of it."""
    status: str = ""
    """Empty while the approval is pending."""
    decided_by: str = ""
    decision_reason: str = ""


class WaitingCard(Struct, frozen=True, kw_only=True):
    run_id: str
    kind: WaitKind
    title: str
    label: str
    reason: str
    cause: str
    task: str
    agent: str
    since: datetime
    fields: tuple[FormField, ...] = ()
    limit: str = ""
    limit_label: str = ""
    suggested: str = ""


async def read_approval_card(runtime: Runtime, question: ApprovalQuestion) -> ApprovalCard:
    row, asked = question.row, question.asked
    run = await runtime.store.find_run(row.run_id)
    clean = build_host_cleaner(runtime.host).value
    # Not `clean`: it removes terminal sequences, but a shell would run the text inside them.
    shown = show_call({**question.arguments}, build_host_redactor(runtime.host))
    given = cast("dict[str, JsonValue]", shown)  # an object stays one
    is_open = row.status == "open"
    return ApprovalCard(
        approval_id=row.approval_id,
        run_id=row.run_id,
        task=str(clean(run.task)) if run is not None else row.run_id,
        agent=run.agent if run is not None else "",
        tool=question.tool,
        sentence=describe_call(question.tool, given),
        arguments=given,
        hash=question.hash,
        preview=reveal(asked.preview) if asked is not None else "",
        base=asked.base if asked is not None else "",
        leads=asked.leads_to if asked is not None else (),
        reason=asked.reason if asked is not None else "",
        justification=str(clean(asked.justification)) if asked is not None else "",
        risk=asked.risk if asked is not None else "",
        created_at=row.created_at,
        expires_at=row.expires_at,
        is_stale=is_open and await runtime.approvals.is_stale(question),
        can_edit=is_open and given == question.arguments,
        status="" if is_open else row.status,
        decided_by=row.decided_by,
        decision_reason=row.reason,
    )


def build_waiting_card(run: RunStatus, host: Host) -> WaitingCard:
    clean = build_host_cleaner(host).value
    kind = run.wait_kind
    title, label = _LABELS.get(kind, _STOPPED)
    question = run.question if kind == "input" else None
    return WaitingCard(
        run_id=run.run_id,
        kind=kind if kind in _LABELS else "stopped",
        title=title,
        label=label,
        reason=str(clean(question.text if question is not None else run.message)),
        cause=str(clean(run.cause)),
        task=str(clean(run.row.task)),
        agent=run.row.agent,
        since=run.row.updated_at,
        fields=build_fields(question) if question is not None else (),
        limit=run.limit or "",
        limit_label=_LIMITS[run.limit] if run.limit is not None else "",
        suggested=f"{run.suggested_limit:g}",
    )
