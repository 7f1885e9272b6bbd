"""The run index and the approvals in PostgreSQL: values to columns and back, search, and removal of ended runs."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, LiteralString

from msgspec import Struct

from metier.store.base import CHANGEABLE, FIELDS, ApprovalAttempt, ApprovalRow, RunRow, RunSearch, quote_like
from metier.store.failures import ApprovalUnknown, RunExists, RunUnknown, StoreDamaged
from metier.store.machine import Machine
from metier.store.postgres.database import decode_text, encode_text, fetch_all, fetch_one
from metier.store.postgres.leases import build_holding
from metier.store.postgres.partitions import find_day
from metier.store.postgres.schema import Connection

SELECT_RUNS: LiteralString = (
    "SELECT run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at, turns, cost_usd,"
    " reason, queue, ending, owner, token, since,"
    " coalesce(extract(epoch FROM until - clock_timestamp()), 0)::float8, boot_id, process, number, skill, task_id,"
    " tokens"
    " FROM agent_runs JOIN agent_leases USING (run_id)"
)
_APPROVAL_COLUMNS: LiteralString = (
    "approval_id, run_id, step_id, payload, created_at, expires_at, status, decided_by, reason, edited_payload"
)
_CHANGES: Mapping[str, LiteralString] = {
    "status": "status = %s",
    "turns": "turns = %s",
    "cost_usd": "cost_usd = %s",
    "tokens": "tokens = %s",
    "reason": "reason = %s",
    "model": "model = %s",
    "ending": "ending = %s",
    "queue": "queue = %s",
    "skill": "skill = %s",
}

type Conditions = Mapping[LiteralString, str | int]
"""Conditions with one placeholder each, and their values; an empty value is no condition."""


async def insert_run(connection: Connection, row: RunRow) -> None:
    texts = (row.run_id, row.context_id, row.status, row.task, row.agent, row.model, row.parent_run_id)
    cursor = await connection.execute(
        "INSERT INTO agent_runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
        " turns, cost_usd, reason, queue, task_id, tokens)"
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (run_id) DO NOTHING",
        (
            *map(encode_text, texts),
            row.created_at,
            row.updated_at,
            row.turns,
            row.cost_usd,
            encode_text(row.reason),
            encode_text(row.queue),
            encode_text(row.task_id),
            row.tokens,
        ),
    )
    if cursor.rowcount == 0:
        raise RunExists(f"There is already a run {row.run_id!r}", hint="Resume it, or start one with another id")
    await connection.execute(
        "INSERT INTO agent_leases (run_id, owner, token, boot_id, process) VALUES (%s, '', 0, '', '')",
        (encode_text(row.run_id),),
    )


async def update_run(connection: Connection, run_id: str, changes: Mapping[str, str | int | float]) -> None:
    """Raises `ValueError` for a column that may not change."""
    unknown = changes.keys() - CHANGEABLE
    if unknown:
        raise ValueError(f"These columns of a run cannot change: {sorted(unknown)}")
    query: LiteralString = "UPDATE agent_runs SET updated_at = clock_timestamp()"
    for name in changes:
        query += ", " + _CHANGES[name]
    values = [encode_text(value) if isinstance(value, str) else value for value in changes.values()]
    await connection.execute(query + " WHERE run_id = %s", (*values, encode_text(run_id)))


async def ask_to_end(connection: Connection, run_id: str, ending: str) -> None:
    cursor = await connection.execute(
        "UPDATE agent_runs SET ending = CASE ending WHEN '' THEN %s ELSE ending END WHERE run_id = %s",
        (encode_text(ending), encode_text(run_id)),
    )
    if cursor.rowcount == 0:
        raise RunUnknown(f"There is no run {run_id!r}", hint="List the runs with `agent runs list`")


async def find_runs(connection: Connection, where: Conditions, *, limit: int, machine: Machine) -> list[RunRow]:
    """Newest first."""
    query, values = _add_conditions(SELECT_RUNS, where)
    # In the order of an index that the conditions use: else the server may walk through every run there is.
    order: LiteralString = " ORDER BY run_id DESC" if where.get("run_id >= %s") else " ORDER BY number DESC"
    rows = await fetch_all(connection, query + order + " LIMIT %s", (*values, limit))
    return sorted((build_run(row, machine) for row in rows), key=lambda run: run.number, reverse=True)


async def search_runs(
    connection: Connection, search: RunSearch, *, before: int, limit: int, machine: Machine
) -> list[RunRow]:
    """Newest first. The rows are chosen before leases are looked up: a rare word walks through every run there is."""
    conditions, values = _build_conditions(search)
    if before:
        conditions.append("number < %s")
        values.append(before)
    where: LiteralString = " WHERE " + " AND ".join(conditions) if conditions else ""
    chosen: LiteralString = "SELECT number FROM agent_runs" + where + " ORDER BY number DESC LIMIT %s"  # noqa: S608 (fixed names)
    query: LiteralString = SELECT_RUNS + " WHERE number IN (" + chosen + ") ORDER BY number DESC"
    return [build_run(row, machine) for row in await fetch_all(connection, query, (*values, limit))]


_WANTED: Mapping[str, LiteralString] = {
    "status": "status = ANY(%s)",
    "agent": "agent = ANY(%s)",
    "model": "model = ANY(%s)",
    "skill": "skill = ANY(%s)",
    "task_id": "task_id = ANY(%s)",
}


def _build_conditions(search: RunSearch) -> tuple[list[LiteralString], list[object]]:
    conditions: list[LiteralString] = []
    values: list[object] = []
    for column, name in FIELDS:
        if wanted := list(map(encode_text, getattr(search, name))):
            conditions.append(_WANTED[column])
            values.append(wanted)
        if unwanted := list(map(encode_text, getattr(search, f"not_{name}"))):
            conditions.append("NOT " + _WANTED[column])
            values.append(unwanted)
    if words := _build_word_conditions(search, values):
        conditions.append("run_id IN (SELECT run_id FROM agent_run_words WHERE " + " AND ".join(words) + ")")  # noqa: S608 (fixed names)
    bounds: dict[LiteralString, object] = {
        "cost_usd >= %s": search.least_cost,
        "cost_usd <= %s": search.most_cost,
        "created_at >= %s": search.begun_since,
        "created_at < %s": search.begun_before,
    }
    for condition, value in bounds.items():
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if search.without_children:
        conditions.append("run_id NOT LIKE 'child-%%'")
    return conditions, values


def _build_word_conditions(search: RunSearch, values: list[object]) -> list[LiteralString]:
    """As SQLite does: the case of ASCII letters alone does not count."""
    wanted: list[LiteralString] = ["words LIKE %s ESCAPE '!'" for _ in search.words]
    unwanted: list[LiteralString] = ["words NOT LIKE %s ESCAPE '!'" for _ in search.not_words]
    values += [encode_text(_fold(quote_like(word))) for word in (*search.words, *search.not_words)]
    return wanted + unwanted


def _fold(text: str) -> str:
    return "".join(mark.lower() if mark.isascii() else mark for mark in text)


async def find_stale(connection: Connection, *, queue: str, limit: int, machine: Machine) -> list[RunRow]:
    """Oldest first."""
    rows = await fetch_all(
        connection,
        f"{SELECT_RUNS} WHERE queue = %s AND queue <> '' AND status IN ('pending', 'in_progress')"
        " AND (owner = '' OR until <= clock_timestamp()) ORDER BY number LIMIT %s",
        (encode_text(queue), limit),
    )
    return [build_run(row, machine) for row in rows]


async def insert_approval(connection: Connection, row: ApprovalRow) -> None:
    """The same question again changes nothing, so that it can be asked once more after a crash."""
    ids = (encode_text(row.approval_id), encode_text(row.run_id), encode_text(row.step_id))
    decision = (row.status, encode_text(row.decided_by), encode_text(row.reason), row.edited_payload)
    await connection.execute(
        f"INSERT INTO agent_approvals ({_APPROVAL_COLUMNS})"  # noqa: S608 (fixed names)
        " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
        " ON CONFLICT (approval_id) DO NOTHING",
        (*ids, row.payload, row.created_at, row.expires_at, *decision),
    )
    known = await fetch_one(
        connection, "SELECT run_id, step_id, payload FROM agent_approvals WHERE approval_id = %s", (ids[0],)
    )
    if known is None or (known[0], known[1], bytes(known[2])) != (ids[1], ids[2], row.payload):
        raise StoreDamaged(
            f"Approval {row.approval_id!r} already asks about another call",
            hint="Deny it, then start the run again",
        )


async def decide(connection: Connection, approval_id: str, decision: tuple[str, str, str, bytes | None]) -> bool:
    """Compare and set: only an open approval changes. Who came too late is written down as well."""
    status, decided_by, reason, edited_payload = decision
    texts = (status, encode_text(decided_by), encode_text(reason))
    cursor = await connection.execute(
        "UPDATE agent_approvals SET status = %s, decided_by = %s, reason = %s, edited_payload = %s"
        " WHERE approval_id = %s AND status = 'open'",
        (*texts, edited_payload, encode_text(approval_id)),
    )
    counted = cursor.rowcount == 1
    cursor = await connection.execute(
        "INSERT INTO agent_approval_attempts (run_id, approval_id, status, decided_by, reason, at, counted)"
        " SELECT run_id, approval_id, %s, %s, %s, clock_timestamp(), %s FROM agent_approvals WHERE approval_id = %s",
        (*texts, counted, encode_text(approval_id)),
    )
    if cursor.rowcount == 0:
        raise ApprovalUnknown(
            f"There is no approval {approval_id!r}", hint="List what is open with `agent approvals list`"
        )
    return counted


async def find_attempts(connection: Connection, approval_id: str) -> list[ApprovalAttempt]:
    """Oldest first."""
    rows = await fetch_all(
        connection,
        "SELECT approval_id, status, decided_by, reason, at, counted FROM agent_approval_attempts"
        " WHERE approval_id = %s ORDER BY number",
        (encode_text(approval_id),),
    )
    return [_build_attempt(row) for row in rows]


async def find_approvals(
    connection: Connection, where: Conditions, *, order: LiteralString, limit: int | None
) -> list[ApprovalRow]:
    query, values = _add_conditions(f"SELECT {_APPROVAL_COLUMNS}, number FROM agent_approvals", where)  # noqa: S608 (fixed names)
    found = await fetch_all(connection, query + " ORDER BY " + order + " LIMIT %s", (*values, limit))
    return [_build_approval(row) for row in found]


async def delete_rows(connection: Connection, run_id: str) -> None:
    for query in (
        "DELETE FROM agent_journal WHERE run_id = %s",
        "DELETE FROM agent_approvals WHERE run_id = %s",
        "DELETE FROM agent_approval_attempts WHERE run_id = %s",
        "DELETE FROM agent_blob_names WHERE run_id = %s",
        "DELETE FROM agent_receivers WHERE run_id = %s",
        "DELETE FROM agent_run_usage WHERE run_id = %s",
        "DELETE FROM agent_runs WHERE run_id = %s",
        "DELETE FROM agent_leases WHERE run_id = %s",
    ):
        await connection.execute(query, (encode_text(run_id),))


def _add_conditions(query: LiteralString, where: Conditions) -> tuple[LiteralString, list[str | int]]:
    wanted: dict[LiteralString, str | int] = {condition: value for condition, value in where.items() if value}
    conditions: LiteralString = " AND ".join(wanted)
    query = query + " WHERE " + conditions if wanted else query
    return query, [encode_text(value) if isinstance(value, str) else value for value in wanted.values()]


def build_run(row: tuple[Any, ...], machine: Machine) -> RunRow:
    run_id, context_id, status, task, agent, model, parent_run_id, *rest = row
    created_at, updated_at, turns, cost_usd, reason, queue, ending, *holding, number, skill, task_id, tokens = rest
    held: tuple[str, int, datetime | None, float, str, str] = tuple(holding)
    lease = build_holding(held)
    is_free = lease.is_free(machine)
    return RunRow(
        run_id=decode_text(run_id),
        context_id=decode_text(context_id),
        status=status,
        task=decode_text(task),
        agent=decode_text(agent),
        model=decode_text(model),
        parent_run_id=decode_text(parent_run_id),
        created_at=created_at,
        updated_at=updated_at,
        turns=turns,
        cost_usd=cost_usd,
        reason=decode_text(reason),
        driver="" if is_free else lease.owner,
        left_by=lease.owner if is_free else "",
        queue=decode_text(queue),
        ending=decode_text(ending),
        number=int(number),
        skill=decode_text(skill),
        task_id=decode_text(task_id),
        tokens=int(tokens),
    )


type _ApprovalColumns = tuple[
    str,
    str,
    str,
    bytes,
    datetime,
    datetime | None,
    Literal["open", "approved", "denied", "expired"],
    str,
    str,
    Any,
    int,
]


def _build_approval(row: tuple[Any, ...]) -> ApprovalRow:
    columns: _ApprovalColumns = row
    edited: bytes | None = columns[9]
    return ApprovalRow(
        approval_id=decode_text(columns[0]),
        run_id=decode_text(columns[1]),
        step_id=decode_text(columns[2]),
        payload=bytes(columns[3]),
        created_at=columns[4],
        expires_at=columns[5],
        status=columns[6],
        decided_by=decode_text(columns[7]),
        reason=decode_text(columns[8]),
        edited_payload=None if edited is None else bytes(edited),
        number=columns[10],
    )


def _build_attempt(row: tuple[Any, ...]) -> ApprovalAttempt:
    approval_id, status, decided_by, reason, at, counted = row
    return ApprovalAttempt(
        approval_id=decode_text(approval_id),
        status=status,
        decided_by=decode_text(decided_by),
        reason=decode_text(reason),
        at=at,
        counted=counted,
    )


# Written like the condition of the index, with the words in it, so that the server uses the index.
_HAS_ENDED: LiteralString = "status IN ('completed', 'failed', 'timeout', 'escalated', 'canceled')"
# What an unfinished run ordered is not over as long as that one may ask how it ended. One value, not EXISTS: of that
# the server might make a hash of all runs there are.
_NO_PARENT_GOES_ON: LiteralString = (
    "(parent_run_id = '' OR coalesce((SELECT parent.status IN ('completed', 'failed', 'timeout', 'escalated',"
    " 'canceled') FROM agent_runs AS parent WHERE parent.run_id = agent_runs.parent_run_id), TRUE))"
)
_DELETIONS: tuple[LiteralString, ...] = (
    "DELETE FROM agent_approvals WHERE run_id = ANY(%s)",
    "DELETE FROM agent_approval_attempts WHERE run_id = ANY(%s)",
    "DELETE FROM agent_blob_names WHERE run_id = ANY(%s)",
    "DELETE FROM agent_receivers WHERE run_id = ANY(%s)",
    "DELETE FROM agent_run_usage WHERE run_id = ANY(%s)",
    "DELETE FROM agent_runs WHERE run_id = ANY(%s)",
    "DELETE FROM agent_leases WHERE run_id = ANY(%s)",
)


class Wanted(Struct, frozen=True, kw_only=True):
    """Which ended runs: see `Store.list_ended`."""

    updated_before: datetime
    after: RunRow | None
    number_below: int
    machine: Machine


async def find_ended(connection: Connection, wanted: Wanted, *, limit: int) -> list[RunRow]:
    """By the time of their last change, oldest first."""
    query = f"{SELECT_RUNS} WHERE {_HAS_ENDED} AND updated_at < %s AND {_NO_PARENT_GOES_ON}"
    values: list[object] = [wanted.updated_before]
    if wanted.after is not None:
        query += " AND (updated_at, number) > (%s, %s)"
        values += [wanted.after.updated_at, wanted.after.number]
    if wanted.number_below:
        query += " AND number < %s"
        values.append(wanted.number_below)
    rows = await fetch_all(connection, query + " ORDER BY updated_at, number LIMIT %s", (*values, limit))
    return [build_run(row, wanted.machine) for row in rows]


async def delete_runs(
    connection: Connection, run_ids: Sequence[str], *, machine: Machine, days_over: frozenset[str] = frozenset()
) -> list[str]:
    """Those of them that were there and that no process drives. Inside the caller's transaction.

    Entries of `days_over` stay: their whole tables are dropped afterwards.
    """
    rows = await fetch_all(
        connection,
        "SELECT run_id, owner, token, since, coalesce(extract(epoch FROM until - clock_timestamp()), 0)::float8,"
        " boot_id, process FROM agent_leases WHERE run_id = ANY(%s) ORDER BY run_id FOR UPDATE",
        ([encode_text(run_id) for run_id in run_ids],),
    )
    free = [str(run_id) for run_id, *holding in rows if _is_free(tuple(holding), machine)]
    with_entries = [run_id for run_id in free if find_day(run_id) not in days_over]
    await connection.execute("DELETE FROM agent_journal WHERE run_id = ANY(%s)", (with_entries,))
    for query in _DELETIONS:
        await connection.execute(query, (free,))
    return [decode_text(run_id) for run_id in free]


def _is_free(holding: tuple[Any, ...], machine: Machine) -> bool:
    columns: tuple[str, int, datetime | None, float, str, str] = holding
    return build_holding(columns).is_free(machine)
