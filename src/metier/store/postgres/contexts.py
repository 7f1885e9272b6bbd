"""Conversations in PostgreSQL: rows to values and back, every function inside the caller's transaction."""

from datetime import datetime
from typing import LiteralString, cast

from pydantic import JsonValue

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
from metier.store.postgres.database import fetch_all, fetch_one
from metier.store.postgres.messages import complete
from metier.store.postgres.schema import Connection
from metier.store.postgres.text import decode, encode
from metier.task_state import TaskState

_SELECT_STATE: LiteralString = (
    "SELECT context_id, version, current_turn, task_state, agent_state_detail, input_request_payload::text, summary,"
    " summarized_to, created_at, updated_at FROM agent_context_state"
)
_SELECT_FACTS: LiteralString = "SELECT bucket, key, value::text, timestamp, expires_at FROM agent_pocket_facts"
_LIVE: LiteralString = "(expires_at IS NULL OR expires_at > clock_timestamp())"


async def find_state(connection: Connection, context_id: str) -> ContextState | None:
    row = await fetch_one(connection, f"{_SELECT_STATE} WHERE context_id = %s", (encode(context_id),))
    return None if row is None else _build_state(row)


async def find_states(connection: Connection, *, task_state: str, limit: int) -> list[ContextState]:
    """Last changed first."""
    rows = await fetch_all(
        connection,
        f"{_SELECT_STATE} WHERE %s = '' OR task_state = %s ORDER BY updated_at DESC, context_id LIMIT %s",
        (task_state, task_state, limit),
    )
    return [_build_state(row) for row in rows]


async def lock_context(connection: Connection, context_id: str) -> ContextState:
    """Create it if missing. No other transaction changes it until this one ends, which gives events their order."""
    query: LiteralString = f"{_SELECT_STATE} WHERE context_id = %s FOR UPDATE"
    row = await fetch_one(connection, query, (encode(context_id),))
    if row is None:
        await connection.execute(
            "INSERT INTO agent_context_state (context_id, created_at, updated_at)"
            " VALUES (%s, clock_timestamp(), clock_timestamp()) ON CONFLICT (context_id) DO NOTHING",
            (encode(context_id),),
        )
        row = await fetch_one(connection, query, (encode(context_id),))
    assert row is not None, "it is made above"
    return _build_state(row)


async def commit(connection: Connection, context_id: str, change: ContextChange) -> None:
    stored = await lock_context(connection, context_id)
    if change.completion is not None:
        await complete(connection, change.completion)
    if change.state is not None:
        await _replace(connection, stored, change.state, expected=change.base_version)
    if change.summary is not None:
        await connection.execute(
            "UPDATE agent_context_state SET summary = %s, summarized_to = %s"
            " WHERE context_id = %s AND summarized_to < %s",
            (encode(change.summary.text), change.summary.upto, encode(context_id), change.summary.upto),
        )
    for bucket, key in change.forgotten:
        await connection.execute(
            "DELETE FROM agent_pocket_facts WHERE context_id = %s AND bucket = %s AND key = %s",
            (encode(context_id), encode(bucket), encode(key)),
        )
    state = change.state or stored
    for fact in change.facts:
        await _put_fact(connection, state, fact)
    if change.events:
        await _append(connection, state, change.events)


async def _replace(connection: Connection, stored: ContextState, state: ContextState, *, expected: int) -> None:
    """Compare and set. Whatever token led to the version before is over with it."""
    cursor = await connection.execute(
        "UPDATE agent_context_state SET version = version + 1, current_turn = %s, task_state = %s,"
        " agent_state_detail = %s, input_request_payload = %s::json, resume_token = '', updated_at = clock_timestamp()"
        " WHERE context_id = %s AND version = %s",
        (*_changed_columns(state), encode(state.context_id), expected),
    )
    if cursor.rowcount != 1:
        raise build_conflict(state.context_id, expected=expected, found=stored.version)


async def replace_state(
    connection: Connection, state: ContextState, *, expected: int, commit_id: str
) -> ContextState | None:
    """A state and nothing else, in one statement: many that race for it hold the lock as short as can be.

    None when it was not the expected one, or is not there.
    """
    row = await fetch_one(
        connection,
        "WITH changed AS (UPDATE agent_context_state SET version = version + 1, current_turn = %s, task_state = %s,"
        " agent_state_detail = %s, input_request_payload = %s::json, resume_token = '', updated_at = clock_timestamp()"
        " WHERE context_id = %s AND version = %s RETURNING *), noted AS (INSERT INTO agent_commits (commit_id, at)"
        " SELECT %s, updated_at FROM changed) SELECT context_id, version, current_turn, task_state, agent_state_detail,"
        " input_request_payload::text, summary, summarized_to, created_at, updated_at FROM changed",
        (*_changed_columns(state), encode(state.context_id), expected, commit_id),
    )
    return None if row is None else _build_state(row)


async def is_noted(connection: Connection, commit_id: str) -> bool:
    """Did a commit count whose answer was lost?"""
    return await fetch_one(connection, "SELECT 1 FROM agent_commits WHERE commit_id = %s", (commit_id,)) is not None


def _changed_columns(state: ContextState) -> tuple[int, str, str, str]:
    return state.current_turn, state.task_state, encode(state.agent_state_detail), dump_json(state.input_request)


async def redeem(connection: Connection, context_id: str, redemption: Redemption) -> bool:
    cursor = await connection.execute(
        "UPDATE agent_context_state SET version = version + 1, resume_token = %s, updated_at = clock_timestamp()"
        " WHERE context_id = %s AND version = %s AND current_turn = %s AND task_state <> ALL(%s)",
        (redemption.digest, encode(context_id), redemption.version, redemption.turn, list(ENDED)),
    )
    if cursor.rowcount == 1:
        return True
    again = await fetch_one(
        connection,
        "SELECT 1 FROM agent_context_state WHERE context_id = %s AND version = %s AND resume_token = %s"
        " AND resume_token <> ''",
        (encode(context_id), redemption.version + 1, redemption.digest),
    )
    return again is not None


async def _append(connection: Connection, state: ContextState, events: tuple[NewEvent, ...]) -> None:
    context_id = encode(state.context_id)
    row = await fetch_one(connection, "SELECT last_event FROM agent_context_state WHERE context_id = %s", (context_id,))
    number = int(row[0]) if row else 0
    for event in events:
        cursor = await connection.execute(
            "INSERT INTO agent_conversation_events"
            " (context_id, number, event_type, payload, timestamp, turn_number, agent_id, message_id)"
            " VALUES (%s, %s, %s, %s::json, clock_timestamp(), %s, %s, %s) ON CONFLICT (context_id, message_id)"
            " DO NOTHING",
            (
                context_id,
                number + 1,
                encode(event.event_type),
                dump_json(event.payload),
                event.turn_number,
                encode(event.agent_id),
                encode(event.message_id) or None,
            ),
        )
        number += cursor.rowcount
    await connection.execute(
        "UPDATE agent_context_state SET last_event = %s WHERE context_id = %s", (number, context_id)
    )
    await connection.execute(
        "DELETE FROM agent_conversation_events WHERE context_id = %s AND number <= %s AND turn_number < %s",
        (context_id, number - MAX_EVENTS_PER_CONTEXT, state.current_turn if state.is_resumable else 2**62),
    )


async def find_events(connection: Connection, context_id: str, *, after: int, limit: int) -> list[ContextEvent]:
    rows = await fetch_all(
        connection,
        "SELECT number, event_type, payload::text, turn_number, agent_id, coalesce(message_id, ''), timestamp"
        " FROM agent_conversation_events WHERE context_id = %s AND number > %s ORDER BY number DESC LIMIT %s",
        (encode(context_id), after, limit),
    )
    return [
        ContextEvent(
            number=int(number),
            event_type=decode(event_type),
            payload=load_json(payload),
            turn_number=int(turn),
            agent_id=decode(agent_id),
            message_id=decode(message_id),
            timestamp=timestamp,
        )
        for number, event_type, payload, turn, agent_id, message_id, timestamp in reversed(rows)
    ]


async def _put_fact(connection: Connection, state: ContextState, fact: NewFact) -> None:
    place = (encode(state.context_id), encode(fact.bucket))
    await connection.execute(
        "DELETE FROM agent_pocket_facts WHERE context_id = %s AND bucket = %s AND expires_at <= clock_timestamp()",
        place,
    )
    await connection.execute(
        "INSERT INTO agent_pocket_facts (context_id, bucket, key, value, timestamp, ttl_seconds, expires_at)"
        " VALUES (%s, %s, %s, %s::json, clock_timestamp(), %s, clock_timestamp() + make_interval(secs => %s))"
        " ON CONFLICT (context_id, bucket, key) DO UPDATE SET value = excluded.value, timestamp = excluded.timestamp,"
        " ttl_seconds = excluded.ttl_seconds, expires_at = excluded.expires_at",
        (*place, encode(fact.key), dump_json(fact.value), fact.ttl_seconds, fact.ttl_seconds),
    )
    query = "SELECT count(*) FROM agent_pocket_facts WHERE context_id = %s AND bucket = %s"
    row = await fetch_one(connection, query, place)
    over = (int(row[0]) if row else 0) - MAX_POCKET_FACTS_PER_BUCKET
    if over > 0 and state.is_resumable:
        raise build_full_bucket(state.context_id, fact.bucket)
    if over > 0:
        await connection.execute(
            "DELETE FROM agent_pocket_facts WHERE (context_id, bucket, key) IN (SELECT context_id, bucket, key"
            " FROM agent_pocket_facts WHERE context_id = %s AND bucket = %s AND key <> %s"
            " ORDER BY timestamp, key LIMIT %s)",
            (*place, encode(fact.key), over),
        )


async def find_fact(connection: Connection, context_id: str, *, bucket: str, key: str) -> Fact | None:
    row = await fetch_one(
        connection,
        f"{_SELECT_FACTS} WHERE context_id = %s AND bucket = %s AND key = %s AND {_LIVE}",
        (encode(context_id), encode(bucket), encode(key)),
    )
    return None if row is None else _build_fact(row)


async def find_facts(connection: Connection, context_id: str, *, bucket: str) -> list[Fact]:
    rows = await fetch_all(
        connection,
        f"{_SELECT_FACTS} WHERE context_id = %s AND (%s = '' OR bucket = %s) AND {_LIVE} ORDER BY bucket, key",
        (encode(context_id), encode(bucket), encode(bucket)),
    )
    return [_build_fact(row) for row in rows]


async def delete_context(connection: Connection, context_id: str) -> bool:
    """Events, facts and messages go with it."""
    cursor = await connection.execute("DELETE FROM agent_context_state WHERE context_id = %s", (encode(context_id),))
    return cursor.rowcount == 1


def _build_fact(row: tuple[str, str, str, datetime, datetime | None]) -> Fact:
    bucket, key, value, timestamp, expires_at = row
    loaded: JsonValue = load_json(value)
    return Fact(bucket=decode(bucket), key=decode(key), value=loaded, timestamp=timestamp, expires_at=expires_at)


def _build_state(row: tuple[str, int, int, str, str, str, str, int, datetime, datetime]) -> ContextState:
    return ContextState(
        context_id=decode(row[0]),
        version=row[1],
        current_turn=row[2],
        task_state=cast(TaskState, row[3]),  # written by `_replace` only
        agent_state_detail=decode(row[4]),
        input_request=load_json(row[5]),
        summary=decode(row[6]),
        summarized_to=row[7],
        created_at=row[8],
        updated_at=row[9],
    )
