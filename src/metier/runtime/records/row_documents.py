"""Rows of the index of runs as JSON and as words, the same on the command line and over HTTP. Pure."""

from datetime import UTC, datetime

from pydantic import JsonValue

from metier.runtime.records.known_cost import find_listed_cost
from metier.store.base import RUNNABLE, RunRow


def find_shown_status(row: RunRow) -> str:
    """A run that was in progress when its process died is not in progress; one of a queue waits for a worker."""
    if row.status in RUNNABLE and not row.driver:
        return "queued" if row.queue else "interrupted"
    return row.status


def row_as_json(row: RunRow) -> dict[str, JsonValue]:
    return {
        "run_id": row.run_id,
        "status": row.status,
        "interrupted": find_shown_status(row) == "interrupted",
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


def find_row_cost(row: RunRow) -> float | None:
    return find_listed_cost(row.cost_usd, turns=row.turns, model=row.model)


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
