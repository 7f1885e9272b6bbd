"""Conversations in SQLite: rows to values and back, every function inside the caller's transaction. See `contexts`."""

import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import cast

from metier.dataclass import dataclass
from metier.ids import Clock
from metier.store.contexts import (
    ENDED,
    MAX_EVENTS_PER_CONTEXT,
    MAX_POCKET_FACTS_PER_BUCKET,
    ContextChange,
    ContextEvent,
    ContextState,
    Fact,
    NewEvent,
    NewFact,
    Redemption,
    build_conflict,
    build_full_bucket,
    dump_json,
    load_json,
)
from metier.store.machine import Machine
from metier.store.sqlite.messages import complete
from metier.store.sqlite.rows import render_time
from metier.task_state import TaskState

_STATE = (
    "context_id, version, current_turn, task_state, agent_state_detail, input_request_payload, summary, summarized_to,"
    " created_at, updated_at"
)


@dataclass(frozen=True, slots=True)
class Times:
    """The clocks of a store."""

    clock: Clock
    machine: Machine

    def now(self) -> str:
        return render_time(self.clock.now())


def find_state(connection: sqlite3.Connection, context_id: str) -> ContextState | None:
    found = find_states(connection, {"context_id = ?": context_id}, limit=1)
    return found[0] if found else None


def find_states(connection: sqlite3.Connection, where: Mapping[str, str], *, limit: int) -> list[ContextState]:
    """Last changed first. The keys of `where` are conditions with one placeholder each."""
    rows = connection.execute(
        f"SELECT {_STATE} FROM context_state WHERE {' AND '.join(where) or 'TRUE'}"  # noqa: S608 (fixed names)
        " ORDER BY updated_at DESC, context_id LIMIT ?",
        (*where.values(), limit),
    )
    return [_build_state(row) for row in rows]


def ensure_context(connection: sqlite3.Connection, context_id: str, times: Times) -> ContextState:
    state = find_state(connection, context_id)
    if state is not None:
        return state
    now = times.now()
    connection.execute(
        "INSERT INTO context_state VALUES (?, 1, 'pending', '', 0, 0, 0, '', '', 'null', ?, ?)", (context_id, now, now)
    )
    created = datetime.fromisoformat(now)
    return ContextState(context_id=context_id, created_at=created, updated_at=created)


def commit(connection: sqlite3.Connection, context_id: str, change: ContextChange, *, times: Times) -> ContextState:
    stored = ensure_context(connection, context_id, times)
    if change.completion is not None:
        complete(connection, change.completion)
    if change.state is not None:
        _replace(connection, change.state, change, times=times)
    if change.summary is not None:
        connection.execute(
            "UPDATE context_state SET summary = ?, summarized_to = ? WHERE context_id = ? AND summarized_to < ?",
            (change.summary.text, change.summary.upto, context_id, change.summary.upto),
        )
    for bucket, key in change.forgotten:
        connection.execute(
            "DELETE FROM pocket_facts WHERE context_id = ? AND bucket = ? AND key = ?", (context_id, bucket, key)
        )
    state = change.state or stored
    for fact in change.facts:
        _put_fact(connection, state, fact, times=times)
    if change.events:
        _append(connection, state, change.events, times=times)
    after = find_state(connection, context_id)
    assert after is not None, "it was made above, in this transaction"
    return after


def _replace(connection: sqlite3.Connection, state: ContextState, change: ContextChange, *, times: Times) -> None:
    """Compare and set. Whatever token led to the version before is over with it."""
    cursor = connection.execute(
        "UPDATE context_state SET version = version + 1, current_turn = ?, task_state = ?, agent_state_detail = ?,"
        " input_request_payload = ?, resume_token = '', updated_at = ? WHERE context_id = ? AND version = ?",
        (
            state.current_turn,
            state.task_state,
            state.agent_state_detail,
            dump_json(state.input_request),
            times.now(),
            state.context_id,
            change.base_version,
        ),
    )
    if cursor.rowcount != 1:
        found = find_state(connection, state.context_id)
        raise build_conflict(state.context_id, expected=change.base_version, found=found.version if found else 0)


def redeem(
    connection: sqlite3.Connection, context_id: str, redemption: Redemption, *, times: Times
) -> ContextState | None:
    cursor = connection.execute(
        "UPDATE context_state SET version = version + 1, resume_token = ?, updated_at = ?"
        " WHERE context_id = ? AND version = ? AND current_turn = ? AND task_state NOT IN (?, ?, ?, ?)",
        (redemption.digest, times.now(), context_id, redemption.version, redemption.turn, *ENDED),
    )
    if cursor.rowcount == 1:
        return find_state(connection, context_id)
    again = connection.execute(
        "SELECT 1 FROM context_state WHERE context_id = ? AND version = ? AND resume_token = ? AND resume_token != ''",
        (context_id, redemption.version + 1, redemption.digest),
    ).fetchone()
    return None if again is None else find_state(connection, context_id)


def _append(connection: sqlite3.Connection, state: ContextState, events: tuple[NewEvent, ...], *, times: Times) -> None:
    query = "SELECT last_event FROM context_state WHERE context_id = ?"
    number = int(connection.execute(query, (state.context_id,)).fetchone()[0])
    for event in events:
        cursor = connection.execute(
            "INSERT INTO conversation_events VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (context_id, message_id)"
            " DO NOTHING",
            (
                state.context_id,
                number + 1,
                event.event_type,
                dump_json(event.payload),
                times.now(),
                event.turn_number,
                event.agent_id,
                event.message_id or None,
            ),
        )
        number += cursor.rowcount
    connection.execute("UPDATE context_state SET last_event = ? WHERE context_id = ?", (number, state.context_id))
    connection.execute(
        "DELETE FROM conversation_events WHERE context_id = ? AND number <= ? AND turn_number < ?",
        (state.context_id, number - MAX_EVENTS_PER_CONTEXT, state.current_turn if state.is_resumable else 2**62),
    )


def find_events(connection: sqlite3.Connection, context_id: str, *, after: int, limit: int) -> list[ContextEvent]:
    rows = connection.execute(
        "SELECT number, event_type, payload, turn_number, agent_id, coalesce(message_id, ''), timestamp"
        " FROM conversation_events WHERE context_id = ? AND number > ? ORDER BY number DESC LIMIT ?",
        (context_id, after, limit),
    ).fetchall()
    return [_build_event(row) for row in reversed(rows)]


def _put_fact(connection: sqlite3.Connection, state: ContextState, fact: NewFact, *, times: Times) -> None:
    now = times.clock.now()
    expires = None if fact.ttl_seconds is None else render_time(now + timedelta(seconds=fact.ttl_seconds))
    place = (state.context_id, fact.bucket)
    connection.execute(
        "DELETE FROM pocket_facts WHERE context_id = ? AND bucket = ? AND expires_at <= ?", (*place, render_time(now))
    )
    connection.execute(
        "INSERT INTO pocket_facts VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (context_id, bucket, key) DO UPDATE SET"
        " value = excluded.value, timestamp = excluded.timestamp, ttl_seconds = excluded.ttl_seconds,"
        " expires_at = excluded.expires_at",
        (*place, fact.key, dump_json(fact.value), render_time(now), fact.ttl_seconds, expires),
    )
    query = "SELECT count(*) FROM pocket_facts WHERE context_id = ? AND bucket = ?"
    over = int(connection.execute(query, place).fetchone()[0]) - MAX_POCKET_FACTS_PER_BUCKET
    if over > 0 and state.is_resumable:
        raise build_full_bucket(*place)
    if over > 0:
        connection.execute(
            "DELETE FROM pocket_facts WHERE rowid IN (SELECT rowid FROM pocket_facts WHERE context_id = ?"
            " AND bucket = ? AND key != ? ORDER BY timestamp, key LIMIT ?)",
            (*place, fact.key, over),
        )


def find_facts(connection: sqlite3.Connection, where: Mapping[str, str], *, now: str) -> list[Fact]:
    """By bucket and key. The keys of `where` are conditions with one placeholder each."""
    rows = connection.execute(
        "SELECT bucket, key, value, timestamp, expires_at FROM pocket_facts"  # noqa: S608 (fixed names)
        f" WHERE {' AND '.join(where)} AND (expires_at IS NULL OR expires_at > ?) ORDER BY bucket, key",
        (*where.values(), now),
    )
    return [_build_fact(row) for row in rows]


def delete_context(connection: sqlite3.Connection, context_id: str) -> bool:
    for table in ("conversation_events", "pocket_facts", "messages"):
        connection.execute(f"DELETE FROM {table} WHERE context_id = ?", (context_id,))  # noqa: S608 (fixed names)
    return connection.execute("DELETE FROM context_state WHERE context_id = ?", (context_id,)).rowcount == 1


def _build_state(row: tuple[str, int, int, str, str, str, str, int, str, str]) -> ContextState:
    return ContextState(
        context_id=row[0],
        version=row[1],
        current_turn=row[2],
        task_state=cast(TaskState, row[3]),  # written by `_replace` only
        agent_state_detail=row[4],
        input_request=load_json(row[5]),
        summary=row[6],
        summarized_to=row[7],
        created_at=datetime.fromisoformat(row[8]),
        updated_at=datetime.fromisoformat(row[9]),
    )


def _build_event(row: tuple[int, str, str, int, str, str, str]) -> ContextEvent:
    return ContextEvent(
        number=row[0],
        event_type=row[1],
        payload=load_json(row[2]),
        turn_number=row[3],
        agent_id=row[4],
        message_id=row[5],
        timestamp=datetime.fromisoformat(row[6]),
    )


def _build_fact(row: tuple[str, str, str, str, str | None]) -> Fact:
    return Fact(
        bucket=row[0],
        key=row[1],
        value=load_json(row[2]),
        timestamp=datetime.fromisoformat(row[3]),
        expires_at=None if row[4] is None else datetime.fromisoformat(row[4]),
    )
