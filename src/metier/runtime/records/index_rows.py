"""Rows of the run index as JSON and text, the same on the command line and over HTTP. Pure."""

from datetime import UTC, datetime
from typing import Any

from msgspec import convert
from pydantic import JsonValue

from metier.providers.facts import find_cost
from metier.providers.options import OFFLINE
from metier.store.base import RUNNABLE, RunRow

TYPED = "typed"
"""Provider and model name in the run of a shell command that the user typed into a chat."""


def find_row_cost(row: RunRow) -> float | None:
    """Return the cost of a run in the index, which may lack token counts. A run without model calls costs nothing."""
    # Rows of older versions lack the tokens, so turns are used: both are above zero if a model was called.
    return find_cost(row.cost_usd, tokens=0 if row.model in (OFFLINE, TYPED) else row.turns)


def get_shown_status(row: RunRow) -> str:
    """Return the status for display. A run without a driver is not in progress, whatever the index says.

    It is "queued" if no worker has claimed it or one handed it back, "worker_lost" if the lease of its worker expired,
    and "interrupted" if it belongs to no queue.
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
        "reason": "" if row.status == "pending" else row.reason,  # a pending row uses this column for something else
        "created_at": iso(row.created_at),
        "updated_at": iso(row.updated_at),
    }


def read_row(item: dict[str, Any]) -> RunRow:
    """Read what `row_as_json` wrote, as a server sends it."""
    # An unknown cost becomes zero, which is shown as unknown again for a run with turns.
    cost, left_by = item["cost_usd"] or 0.0, "its worker" if item["worker_lost"] else ""
    return convert({**item, "context_id": item["run_id"], "cost_usd": cost, "left_by": left_by}, RunRow)


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
