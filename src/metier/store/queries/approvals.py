"""Approvals and the decisions on them. Everything runs inside the caller's transaction."""

from typing import Literal

from metier.store.base import ApprovalAttempt, ApprovalRow, RecordedDecision
from metier.store.failures import ApprovalUnknown, StoreDamaged
from metier.store.queries.run_index import Conditions, build_where
from metier.store.queries.session import NO_LIMIT, Session, read_row

_COLUMNS = "approval_id, run_id, step_id, payload, created_at, expires_at, status, decided_by, reason, edited_payload"
_ATTEMPT_COLUMNS = "approval_id, status, decided_by, reason, at, counted"


async def insert_approval(db: Session, row: ApprovalRow) -> None:
    """Insert an approval. Inserting it again changes nothing, so that a step can be repeated after a crash."""
    await db.execute(
        f"INSERT INTO approvals ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (approval_id) DO NOTHING",
        (
            *(row.approval_id, row.run_id, row.step_id, row.payload, row.created_at, row.expires_at),
            *(row.status, row.decided_by, row.reason, row.edited_payload),
        ),
    )
    known = await db.fetch_one(
        "SELECT run_id, step_id, payload FROM approvals WHERE approval_id = ?", (row.approval_id,)
    )
    if known != (row.run_id, row.step_id, row.payload):
        raise StoreDamaged(
            f"Approval {row.approval_id!r} already asks about another call", hint="Deny it, then start the run again"
        )


async def decide(
    db: Session,
    approval_id: str,
    *,
    status: Literal["approved", "denied", "expired"],
    decided_by: str,
    reason: str,
    edited_payload: bytes | None,
) -> bool:
    """Decide an approval if it is still open. Late decisions are recorded, too. Raises `ApprovalUnknown`."""
    # Compare and set: of two decisions at the same time, only one finds the approval open.
    counted = await db.execute(
        "UPDATE approvals SET status = ?, decided_by = ?, reason = ?, edited_payload = ?"
        " WHERE approval_id = ? AND status = 'open'",
        (status, decided_by, reason, edited_payload, approval_id),
    )
    known = await db.fetch_one("SELECT run_id FROM approvals WHERE approval_id = ?", (approval_id,))
    if known is None:
        raise ApprovalUnknown(
            f"There is no approval {approval_id!r}", hint="Run `agent approvals list` to list pending approvals"
        )
    await db.execute(
        "INSERT INTO approval_attempts (run_id, approval_id, status, decided_by, reason, at, counted)"
        f" VALUES (?, ?, ?, ?, ?, {db.dialect.seconds_from_now}, ?)",
        (known[0], approval_id, status, decided_by, reason, 0, counted == 1),
    )
    return counted == 1


async def list_attempts(db: Session, approval_id: str) -> list[ApprovalAttempt]:
    """List the decisions on an approval, oldest first."""
    rows = await db.fetch_all(
        f"SELECT {_ATTEMPT_COLUMNS} FROM approval_attempts WHERE approval_id = ? ORDER BY number", (approval_id,)
    )
    return [read_row(ApprovalAttempt, _ATTEMPT_COLUMNS, row) for row in rows]


async def list_decisions(db: Session, where: Conditions, *, limit: int) -> list[RecordedDecision]:
    """List decisions on all approvals, newest first."""
    conditions, values = build_where(where)
    rows = await db.fetch_all(
        f"SELECT attempt.{_ATTEMPT_COLUMNS.replace(', ', ', attempt.')}, attempt.run_id, asked.payload,"
        " asked.edited_payload, attempt.number FROM approval_attempts AS attempt"
        " JOIN approvals AS asked ON asked.approval_id = attempt.approval_id"
        f" WHERE {conditions} ORDER BY attempt.number DESC LIMIT ?",
        (*values, limit),
    )
    return [
        RecordedDecision(
            attempt=read_row(ApprovalAttempt, _ATTEMPT_COLUMNS, attempt),
            run_id=run_id,
            payload=payload,
            edited_payload=edited,
            number=number,
        )
        for *attempt, run_id, payload, edited, number in rows
    ]


async def list_approvals(
    db: Session, where: Conditions, *, order: str = "number", limit: int | None = None
) -> list[ApprovalRow]:
    conditions, values = build_where(where)
    columns = f"{_COLUMNS}, number"
    query = f"SELECT {columns} FROM approvals WHERE {conditions} ORDER BY {order} LIMIT ?"
    rows = await db.fetch_all(query, (*values, NO_LIMIT if limit is None else limit))
    return [read_row(ApprovalRow, columns, row) for row in rows]
