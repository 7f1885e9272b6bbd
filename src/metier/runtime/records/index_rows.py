"""Rows of the run index as JSON and as text, the same on the command line and over HTTP. Pure."""

from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue

from metier.providers.facts import find_cost
from metier.providers.options import OFFLINE
from metier.store.base import RUNNABLE, RunRow

TYPED = "typed"
"""Provider and model name of a command that a user typed into a chat."""


def find_listed_cost(cost_usd: float, *, turns: int, model: str) -> float | None:
    """Return the cost of an index row, which does not count tokens: a run without model calls cost nothing."""
    return find_cost(cost_usd, tokens=0 if model in (OFFLINE, TYPED) else turns)


def render_cost(cost: float | None) -> str:
    return "unknown cost" if cost is None else f"{cost:.4f} USD"


def get_shown_status(row: RunRow) -> str:
    """Return the status for people: without a driver, a run is not in progress, whatever the index says.

    The lease tells the cases apart: never claimed or handed back ("queued"), left by a worker whose lease expired
    ("worker_lost"), or left by a process outside any queue ("interrupted").
    """
    if row.status in RUNNABLE and not row.driver:
        if not row.queue:
            return "interrupted"
        return "worker_lost" if row.left_by else "queued"
    return row.status


def row_as_json(row: RunRow) -> dict[str, JsonValue]:
    return {
        "run_id": row.run_id,
        "status": row.status,
        "interrupted": get_shown_status(row) == "interrupted",
        "worker_lost": get_shown_status(row) == "worker_lost",
        "driver": row.driver,
        "queue": row.queue,
        "task": row.task,
        "agent": row.agent,
        "model": row.model,
        "parent_run_id": row.parent_run_id,
        "turns": row.turns,
        "cost_usd": find_row_cost(row),
        "tokens": row.tokens,
        "reason": "" if row.status == "pending" else row.reason,  # until then it says what was wanted
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }


def read_row(item: dict[str, Any]) -> RunRow:
    """Read what `row_as_json` wrote, as a server sends it."""
    return RunRow(
        run_id=item["run_id"],
        context_id=item["run_id"],
        status=item["status"],
        task=item["task"],
        agent=item["agent"],
        model=item["model"],
        parent_run_id=item["parent_run_id"],
        created_at=datetime.fromisoformat(item["created_at"]),
        updated_at=datetime.fromisoformat(item["updated_at"]),
        turns=item["turns"],
        # Without a price it is zero here too, which is shown as unknown for a run that has turns.
        cost_usd=item["cost_usd"] or 0.0,
        tokens=item["tokens"],
        reason=item["reason"],
        driver=item["driver"],
        queue=item["queue"],
        left_by="its worker" if item["worker_lost"] else "",
    )


def find_row_cost(row: RunRow) -> float | None:
    return find_listed_cost(row.cost_usd, turns=row.turns, model=row.model)


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
