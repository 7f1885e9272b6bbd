"""The run index: the columns of a run, lists and searches, and the deletion of ended runs.

All functions run in the caller's transaction.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from msgspec import Struct

from metier.store.base import CHANGEABLE, FIELDS, RunRow, RunSearch, quote_like
from metier.store.failures import RunExists
from metier.store.machine import Machine
from metier.store.queries.leases import build_holding, build_unknown_run, holding_columns
from metier.store.queries.session import Dialect, Session, SqlRow, SqlValue, read_row

_COLUMNS = (
    "run.run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at, turns, cost_usd,"
    " reason, queue, ending, number, skill, task_id, tokens"
)
_COLUMN_COUNT = _COLUMNS.count(",") + 1
_RUNNABLE = "status IN ('pending', 'in_progress')"
_ENDED = "status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
# The parent of an ended run may still need the run's outcome. A scalar subquery, because PostgreSQL may build a hash
# table of all runs for EXISTS.
_PARENT_HAS_ENDED = (
    "(parent_run_id = '' OR coalesce((SELECT parent.status IN ('completed', 'failed', 'timeout', 'escalated',"
    " 'canceled') FROM runs AS parent WHERE parent.run_id = run.parent_run_id), TRUE))"
)
_TABLES = ("approvals", "approval_attempts", "blob_names", "receivers", "run_usage", "runs", "leases")
"""Tables whose rows are deleted together with their run, in addition to the journal."""

type Conditions = Mapping[str, str | int]
"""Conditions with one placeholder each, and their values. Conditions with an empty value are ignored."""


async def insert_run(db: Session, row: RunRow) -> None:
    """Insert a run. Raises `RunExists`."""
    inserted = await db.execute(
        "INSERT INTO runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
        " turns, cost_usd, reason, queue, task_id, tokens)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run_id) DO NOTHING",
        (
            *(row.run_id, row.context_id, row.status, row.task, row.agent, row.model, row.parent_run_id),
            *(row.created_at, row.updated_at, row.turns, row.cost_usd, row.reason, row.queue, row.task_id, row.tokens),
        ),
    )
    if not inserted:
        raise RunExists(f"There is already a run {row.run_id!r}", hint="Resume it, or start one with another id")


async def update_run(db: Session, run_id: str, changes: Mapping[str, str | int | float]) -> None:
    """Change columns of a run. Raises `ValueError` for a column that can't change."""
    unknown = changes.keys() - CHANGEABLE
    if unknown:
        raise ValueError(f"These columns of a run cannot change: {sorted(unknown)}")
    # Only known columns get here: names become part of the statement, because placeholders are for values.
    names = "".join(f", {name} = ?" for name in changes)
    await db.execute(
        f"UPDATE runs SET updated_at = {db.dialect.seconds_from_now}{names} WHERE run_id = ?",
        (0, *changes.values(), run_id),
    )


async def ask_to_end(db: Session, run_id: str, ending: str) -> None:
    """Record a request to end the run, unless there is one. Raises `RunUnknown`."""
    asked = await db.execute(
        "UPDATE runs SET ending = CASE ending WHEN '' THEN ? ELSE ending END WHERE run_id = ?", (ending, run_id)
    )
    if not asked:
        raise build_unknown_run(run_id)


async def list_runs(db: Session, where: Conditions, *, limit: int, machine: Machine) -> list[RunRow]:
    """List runs, newest first."""
    conditions, values = build_where(where)
    # Ordered like the index that the conditions use; otherwise the database may read every run.
    order = "run.run_id" if where.get("run.run_id >= ?") else "number"
    query = f"{_select(db.dialect)} WHERE {conditions} ORDER BY {order} DESC LIMIT ?"
    rows = await db.fetch_all(query, (*values, limit))
    return sorted((_build_run(row, machine) for row in rows), key=lambda run: run.number, reverse=True)


async def search_runs(db: Session, search: RunSearch, *, before: int, limit: int, machine: Machine) -> list[RunRow]:
    """Search runs, newest first."""
    # Rows are chosen before leases are joined, because searching for a rare word reads every run.
    conditions, values = _build_conditions(search, db.dialect)
    if before:
        conditions.append("number < ?")
        values.append(before)
    chosen = f"SELECT number FROM runs WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY number DESC LIMIT ?"
    query = f"{_select(db.dialect)} WHERE number IN ({chosen}) ORDER BY number DESC"
    return [_build_run(row, machine) for row in await db.fetch_all(query, (*values, limit))]


def _build_conditions(search: RunSearch, dialect: Dialect) -> tuple[list[str], list[SqlValue]]:
    conditions: list[str] = []
    values: list[SqlValue] = []
    for column, name in FIELDS:
        for attribute, negation in ((name, ""), (f"not_{name}", "NOT ")):
            if names := list[str](getattr(search, attribute)):
                conditions.append(f"{negation}{column} {dialect.is_one_of}")
                values.append(names)
    words, patterns = _build_word_conditions(search, dialect)
    conditions += words
    values += patterns
    bounds: dict[str, SqlValue] = {
        "cost_usd >= ?": search.min_cost,
        "cost_usd <= ?": search.max_cost,
        f"{dialect.unindexed}created_at >= ?": search.created_since,
        f"{dialect.unindexed}created_at < ?": search.created_before,
    }
    given = {condition: value for condition, value in bounds.items() if value is not None}
    conditions += given
    values += given.values()
    if search.without_children:
        conditions.append("run_id NOT LIKE 'child-%'")
    return conditions, values


def _build_word_conditions(search: RunSearch, dialect: Dialect) -> tuple[list[str], list[str]]:
    """Build the conditions for words. Like SQLite's LIKE, they only ignore the case of ASCII letters."""
    operators = ["LIKE"] * len(search.words) + ["NOT LIKE"] * len(search.not_words)
    patterns = [quote_like(word) for word in (*search.words, *search.not_words)]
    if dialect.name == "sqlite":
        return [f"(task || ' ' || run_id) {operator} ? ESCAPE '!'" for operator in operators], patterns
    tests = " AND ".join(f"words {operator} ? ESCAPE '!'" for operator in operators)
    conditions = [f"run_id IN (SELECT run_id FROM run_words WHERE {tests})"] if tests else []
    return conditions, ["".join(mark.lower() if mark.isascii() else mark for mark in text) for text in patterns]


async def list_stale(db: Session, *, queue: str, limit: int, machine: Machine) -> list[RunRow]:
    """List runnable runs without a driver, oldest first."""
    rows = await db.fetch_all(
        f"{_select(db.dialect)} WHERE queue = ? AND queue <> '' AND {_RUNNABLE}"
        f" AND {db.dialect.lease_is_over} ORDER BY number LIMIT ?",
        (queue, limit),
    )
    return [_build_run(row, machine) for row in rows]


class EndedRuns(Struct, frozen=True, kw_only=True):
    """The parameters of `Store.list_ended`."""

    updated_before: datetime
    after: RunRow | None
    number_below: int
    limit: int


async def list_ended(db: Session, page: EndedRuns, *, machine: Machine) -> list[RunRow]:
    """List ended runs by the time of their last change, oldest first."""
    # The index is named because SQLite, without statistics, would prefer the one by status and then sort.
    query = f"{_select(db.dialect, 'INDEXED BY runs_by_end')} WHERE {_ENDED} AND updated_at < ? AND {_PARENT_HAS_ENDED}"
    values: list[SqlValue] = [page.updated_before]
    if page.after is not None:
        query += " AND (updated_at, number) > (?, ?)"
        values += [page.after.updated_at, page.after.number]
    if page.number_below:
        query += " AND number < ?"
        values.append(page.number_below)
    rows = await db.fetch_all(f"{query} ORDER BY updated_at, number LIMIT ?", (*values, page.limit))
    return [_build_run(row, machine) for row in rows]


async def delete_runs(
    db: Session, run_ids: Sequence[str], *, machine: Machine, keep_journal_of: Collection[str] = ()
) -> list[str]:
    """Delete the runs that no process drives, and return them."""
    is_one_of = db.dialect.is_one_of
    # Locked in order of id, so that two processes that delete the same runs can't deadlock.
    leases = await db.fetch_all(
        f"SELECT run_id, {holding_columns(db.dialect)} FROM leases WHERE run_id {is_one_of} ORDER BY run_id FOR UPDATE",
        (run_ids,),
    )
    held = {run_id for run_id, *holding in leases if not build_holding(tuple(holding)).is_free(machine)}
    # Read after locking, because another process may have deleted some of these runs meanwhile.
    found = await db.fetch_all(f"SELECT run_id FROM runs WHERE run_id {is_one_of}", (run_ids,))
    free = [run_id for (run_id,) in found if run_id not in held]
    with_journal = [run_id for run_id in free if run_id not in keep_journal_of]
    await db.execute(f"DELETE FROM journal WHERE run_id {is_one_of}", (with_journal,))
    for table in _TABLES:
        await db.execute(f"DELETE FROM {table} WHERE run_id {is_one_of}", (free,))
    return free


def build_where(where: Conditions) -> tuple[str, list[str | int]]:
    """Return the text and the values of the conditions that have a value."""
    given = {condition: value for condition, value in where.items() if value}
    return " AND ".join(given) or "TRUE", list(given.values())


def _select(dialect: Dialect, hint: str = "") -> str:
    source = f"runs AS run {hint}".strip()
    return (
        f"SELECT {_COLUMNS}, {holding_columns(dialect)} FROM {source}"
        " LEFT JOIN leases AS lease ON lease.run_id = run.run_id"
    )


def _build_run(row: SqlRow, machine: Machine) -> RunRow:
    holding = build_holding(row[_COLUMN_COUNT:])
    is_free = holding.is_free(machine)
    run = read_row(RunRow, _COLUMNS.removeprefix("run."), row[:_COLUMN_COUNT])
    return replace(run, driver="" if is_free else holding.owner, left_by=holding.owner if is_free else "")
