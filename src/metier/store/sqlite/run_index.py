"""The run index and the approvals in SQLite: values to columns and back, search, removal of ended runs.

All inside the caller's transaction.
"""

import itertools
import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, cast

from msgspec import Struct

from metier.store.base import (
    CHANGEABLE,
    FIELDS,
    ApprovalAttempt,
    ApprovalRow,
    RunRow,
    RunSearch,
    make_printable,
    quote_like,
)
from metier.store.failures import ApprovalUnknown, RunExists, RunUnknown, StoreDamaged
from metier.store.machine import Machine
from metier.store.sqlite.leases import build_holding
from metier.task_state import TaskState

type ApprovalStatus = Literal["open", "approved", "denied", "expired"]

_RUN_COLUMNS = (
    "run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at, turns, cost_usd, reason,"
    " queue, task_id, tokens"
)
_APPROVAL_COLUMNS = (
    "approval_id, run_id, step_id, payload, created_at, expires_at, status, decided_by, reason, edited_payload"
)


SELECT_RUNS = (
    "SELECT runs.run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at, turns,"
    " cost_usd, reason, coalesce(owner, ''), coalesce(token, 0), coalesce(since, ''), coalesce(boot_id, ''),"
    " coalesce(until, 0.0), coalesce(process, ''), queue, ending, number, skill, task_id, tokens"
    " FROM runs LEFT JOIN leases USING (run_id)"
)

RUN_TABLES = ("journal", "approvals", "approval_attempts", "leases", "blob_names", "receivers", "run_usage", "runs")
"""Tables whose rows go with their run."""

type Conditions = Mapping[str, str | int | float]
"""Conditions with one placeholder each, and their values; an empty value is no condition."""


def insert_run(connection: sqlite3.Connection, row: RunRow) -> None:
    if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (row.run_id,)).fetchone() is not None:
        raise RunExists(f"There is already a run {row.run_id!r}", hint="Resume it, or start one with another id")
    texts = (row.run_id, row.context_id, row.status, row.task, row.agent, row.model, row.parent_run_id)
    times = (render_time(row.created_at), render_time(row.updated_at))
    connection.execute(
        f"INSERT INTO runs ({_RUN_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 (fixed names)
        (
            *map(make_printable, texts),
            *times,
            row.turns,
            row.cost_usd,
            make_printable(row.reason),
            row.queue,
            row.task_id,
            row.tokens,
        ),
    )


def update_run(
    connection: sqlite3.Connection, run_id: str, changes: Mapping[str, str | int | float], *, now: datetime
) -> None:
    """Raises `ValueError` for a column that may not change."""
    unknown = changes.keys() - CHANGEABLE
    if unknown:
        raise ValueError(f"These columns of a run cannot change: {sorted(unknown)}")
    names = ", ".join(f"{name} = ?" for name in (*changes, "updated_at"))
    values = [make_printable(value) if isinstance(value, str) else value for value in changes.values()]
    connection.execute(
        f"UPDATE runs SET {names} WHERE run_id = ?",  # noqa: S608 (names from the list above)
        (*values, render_time(now), run_id),
    )


def ask_to_end(connection: sqlite3.Connection, run_id: str, ending: str) -> None:
    cursor = connection.execute(
        "UPDATE runs SET ending = CASE ending WHEN '' THEN ? ELSE ending END WHERE run_id = ?",
        (make_printable(ending), run_id),
    )
    if cursor.rowcount == 0:
        raise RunUnknown(f"There is no run {run_id!r}", hint="List the runs with `agent runs list`")


def find_runs(connection: sqlite3.Connection, where: Conditions, *, limit: int, machine: Machine) -> list[RunRow]:
    """Newest first."""
    query, values = _add_conditions(SELECT_RUNS, where)
    # In the order of an index that the conditions use: else SQLite walks through every run there is.
    order = "runs.run_id" if "run_id >= ?" in query else "number"
    rows = connection.execute(f"{query} ORDER BY {order} DESC LIMIT ?", (*values, limit))
    return sorted((build_run(row, machine) for row in rows), key=lambda run: run.number, reverse=True)


def search_runs(
    connection: sqlite3.Connection, search: RunSearch, *, before: int, limit: int, machine: Machine
) -> list[RunRow]:
    """Newest first. The rows are chosen before leases are looked up: a rare word walks through every run there is."""
    conditions, values = _build_conditions(search)
    if before:
        conditions.append("number < ?")
        values.append(before)
    chosen = f"SELECT number FROM runs WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY number DESC LIMIT ?"  # noqa: S608 (fixed names)
    rows = connection.execute(f"{SELECT_RUNS} WHERE number IN ({chosen}) ORDER BY number DESC", (*values, limit))
    return [build_run(row, machine) for row in rows]


def _build_conditions(search: RunSearch) -> tuple[list[str], list[str | int | float]]:
    conditions: list[str] = []
    values: list[str | int | float] = []
    for column, name in FIELDS:
        for attribute, word in ((name, "IN"), (f"not_{name}", "NOT IN")):
            wanted: tuple[str, ...] = getattr(search, attribute)
            if wanted:
                conditions.append(f"{column} {word} ({', '.join('?' * len(wanted))})")
                values += wanted
    for words, word in ((search.words, "LIKE"), (search.not_words, "NOT LIKE")):
        for each in words:
            conditions.append(f"(task || ' ' || run_id) {word} ? ESCAPE '!'")
            values.append(quote_like(each))
    bounds: dict[str, str | float | None] = {
        "cost_usd >= ?": search.least_cost,
        "cost_usd <= ?": search.most_cost,
        # The plus keeps SQLite from using the index by creation, and then sorting every run that it finds there.
        "+created_at >= ?": None if search.begun_since is None else render_time(search.begun_since),
        "+created_at < ?": None if search.begun_before is None else render_time(search.begun_before),
    }
    for condition, value in bounds.items():
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if search.without_children:
        conditions.append("run_id NOT LIKE 'child-%'")
    return conditions, values


def find_stale(connection: sqlite3.Connection, *, queue: str, limit: int, machine: Machine) -> list[RunRow]:
    """Oldest first. Whether a lease is over is known here, not in SQL, so rows are looked at one by one."""
    # The condition is written like that of the index, with the words in it, so that SQLite uses the index.
    rows = connection.execute(
        f"{SELECT_RUNS} WHERE queue = ? AND queue != '' AND status IN ('pending', 'in_progress') ORDER BY number",
        (queue,),
    )
    free = (run for run in (build_run(row, machine) for row in rows) if not run.driver)
    return list(itertools.islice(free, limit))


def insert_approval(connection: sqlite3.Connection, row: ApprovalRow) -> None:
    """The same question again changes nothing, so that it can be asked once more after a crash."""
    known = connection.execute(
        "SELECT run_id, step_id, payload FROM approvals WHERE approval_id = ?", (row.approval_id,)
    ).fetchone()
    if known is not None:
        if known != (row.run_id, row.step_id, row.payload):
            raise StoreDamaged(
                f"Approval {row.approval_id!r} already asks about another call",
                hint="Deny it, then start the run again",
            )
        return
    expires_at = None if row.expires_at is None else render_time(row.expires_at)
    ids = (row.approval_id, row.run_id, row.step_id)
    decision = (row.status, make_printable(row.decided_by), make_printable(row.reason), row.edited_payload)
    connection.execute(
        f"INSERT INTO approvals ({_APPROVAL_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 (fixed names)
        (*ids, row.payload, render_time(row.created_at), expires_at, *decision),
    )


def decide(
    connection: sqlite3.Connection, approval_id: str, decision: tuple[str, str, str, bytes | None], *, now: datetime
) -> bool:
    """Compare and set: only an open approval changes. Who came too late is written down as well."""
    status, decided_by, reason, edited_payload = decision
    cursor = connection.execute(
        "UPDATE approvals SET status = ?, decided_by = ?, reason = ?, edited_payload = ?"
        " WHERE approval_id = ? AND status = 'open'",
        (status, make_printable(decided_by), make_printable(reason), edited_payload, approval_id),
    )
    counted = cursor.rowcount == 1
    known = connection.execute("SELECT run_id FROM approvals WHERE approval_id = ?", (approval_id,)).fetchone()
    if known is None:
        raise ApprovalUnknown(
            f"There is no approval {approval_id!r}", hint="List what is open with `agent approvals list`"
        )
    connection.execute(
        "INSERT INTO approval_attempts (run_id, approval_id, status, decided_by, reason, at, counted)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            known[0],
            approval_id,
            status,
            make_printable(decided_by),
            make_printable(reason),
            render_time(now),
            int(counted),
        ),
    )
    return counted


def find_attempts(connection: sqlite3.Connection, *, approval_id: str) -> list[ApprovalAttempt]:
    """Oldest first."""
    rows = connection.execute(
        "SELECT approval_id, status, decided_by, reason, at, counted FROM approval_attempts"
        " WHERE approval_id = ? ORDER BY number",
        (approval_id,),
    )
    return [_build_attempt(row) for row in rows]


def find_approvals(
    connection: sqlite3.Connection, where: Conditions, *, order: Literal["number", "approval_id"], limit: int | None
) -> list[ApprovalRow]:
    query, values = _add_conditions(f"SELECT {_APPROVAL_COLUMNS}, number FROM approvals", where)  # noqa: S608 (fixed names)
    rows = connection.execute(f"{query} ORDER BY {order} LIMIT ?", (*values, -1 if limit is None else limit))
    return [_build_approval(row) for row in rows]


def _add_conditions(query: str, where: Conditions) -> tuple[str, list[str | int | float]]:
    wanted = {condition: value for condition, value in where.items() if value != ""}
    return f"{query} WHERE {' AND '.join(wanted) or 'TRUE'}", list(wanted.values())


def delete_rows(connection: sqlite3.Connection, run_id: str) -> None:
    for table in RUN_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))  # noqa: S608 (fixed names)


def render_time(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def parse_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise StoreDamaged(
            f"The run store has {text!r} where a time should stand", hint="Restore `runs/state.db` from a back-up"
        ) from error


type _RunColumns = tuple[
    str,
    str,
    str,
    str,
    str,
    str,
    str,
    str,
    str,
    int,
    float,
    str,
    str,
    int,
    str,
    str,
    float,
    str,
    str,
    str,
    int,
    str,
    str,
    int,
]


def build_run(row: _RunColumns, machine: Machine) -> RunRow:
    holding = build_holding(row[12:18])
    is_free = holding.is_free(machine)
    return RunRow(
        run_id=row[0],
        context_id=row[1],
        status=cast(TaskState, row[2]),  # written by `insert_run` and `update_run` only
        task=row[3],
        agent=row[4],
        model=row[5],
        parent_run_id=row[6],
        created_at=parse_time(row[7]),
        updated_at=parse_time(row[8]),
        turns=row[9],
        cost_usd=row[10],
        reason=row[11],
        driver="" if is_free else holding.owner,
        left_by=holding.owner if is_free else "",
        queue=row[18],
        ending=row[19],
        number=row[20],
        skill=row[21],
        task_id=row[22],
        tokens=row[23],
    )


def _build_approval(row: tuple[str, str, str, bytes, str, str | None, str, str, str, bytes | None, int]) -> ApprovalRow:
    return ApprovalRow(
        approval_id=row[0],
        run_id=row[1],
        step_id=row[2],
        payload=row[3],
        created_at=parse_time(row[4]),
        expires_at=None if row[5] is None else parse_time(row[5]),
        status=cast(ApprovalStatus, row[6]),  # written by `insert_approval` and `decide` only
        decided_by=row[7],
        reason=row[8],
        edited_payload=row[9],
        number=row[10],
    )


def _build_attempt(row: tuple[str, str, str, str, str, int]) -> ApprovalAttempt:
    return ApprovalAttempt(
        approval_id=row[0],
        status=cast(Literal["approved", "denied", "expired"], row[1]),  # written by `decide` only
        decided_by=row[2],
        reason=row[3],
        at=parse_time(row[4]),
        counted=bool(row[5]),
    )


# Named, because without statistics SQLite would rather use the one by status, and sort. The condition is written like
# that of the index, with the words in it.
_SELECT = SELECT_RUNS.replace("FROM runs", "FROM runs INDEXED BY runs_by_end")
_HAS_ENDED = "status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
# What an unfinished run ordered is not over as long as that one may ask how it ended.
_NO_PARENT_GOES_ON = (
    "(parent_run_id = '' OR NOT EXISTS (SELECT 1 FROM runs AS parent WHERE parent.run_id = runs.parent_run_id"
    " AND parent.status NOT IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')))"
)


class Wanted(Struct, frozen=True, kw_only=True):
    """Which ended runs: see `Store.list_ended`."""

    updated_before: datetime
    after: RunRow | None
    number_below: int
    machine: Machine


def find_ended(connection: sqlite3.Connection, wanted: Wanted, *, limit: int) -> list[RunRow]:
    """By the time of their last change, oldest first."""
    cursor = ("", 0) if wanted.after is None else (render_time(wanted.after.updated_at), wanted.after.number)
    rows = connection.execute(
        f"{_SELECT} WHERE {_HAS_ENDED} AND updated_at < ? AND (updated_at, number) > (?, ?)"
        f" AND (? = 0 OR number < ?) AND {_NO_PARENT_GOES_ON} ORDER BY updated_at, number LIMIT ?",
        (render_time(wanted.updated_before), *cursor, wanted.number_below, wanted.number_below, limit),
    )
    return [build_run(row, wanted.machine) for row in rows]


def delete_runs(connection: sqlite3.Connection, run_ids: Sequence[str], *, machine: Machine) -> list[str]:
    """Those of them that were there and that no process drives."""
    found = connection.execute(
        "SELECT runs.run_id, coalesce(owner, ''), coalesce(token, 0), coalesce(since, ''), coalesce(boot_id, ''),"
        " coalesce(until, 0.0), coalesce(process, '')"
        " FROM json_each(?) AS wanted JOIN runs ON runs.run_id = wanted.value"
        " LEFT JOIN leases ON leases.run_id = runs.run_id",
        (json.dumps(list(run_ids)),),
    ).fetchall()
    free = [str(run_id) for run_id, *holding in found if build_holding(tuple(holding)).is_free(machine)]
    ids = json.dumps(free)
    for table in RUN_TABLES:
        connection.execute(f"DELETE FROM {table} WHERE run_id IN (SELECT value FROM json_each(?))", (ids,))  # noqa: S608 (fixed names)
    return free
