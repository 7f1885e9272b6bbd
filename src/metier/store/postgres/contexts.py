"""Conversations in PostgreSQL: `store.contexts.ContextStore`, rows, and messages with their workers.

Each method is one transaction.
"""

import secrets
from datetime import datetime
from typing import LiteralString, cast

from pydantic import JsonValue

from metier.store.contexts import (
    ENDED,
    MAX_EVENTS_PER_CONTEXT,
    MAX_POCKET_FACTS_PER_BUCKET,
    Claim,
    Completion,
    ContextChange,
    ContextEvent,
    ContextState,
    Fact,
    NewEvent,
    NewFact,
    Redemption,
    StoredMessage,
    build_conflict,
    build_duplicate,
    build_full_bucket,
    build_lost_claim,
    check_change,
    check_names,
    dump_json,
    load_json,
)
from metier.store.machine import Machine
from metier.store.postgres.database import Database, decode_text, encode_text, fetch_all, fetch_one
from metier.store.postgres.leases import Holding
from metier.store.postgres.schema import Connection
from metier.task_state import TaskState


async def claim_message(connection: Connection, claim: Claim, *, seconds: float, machine: Machine) -> int:
    """Claim the message that `claim` names and return the token. The caller holds the lock on the context."""
    known = await find_message(connection, claim.context_id, claim.message_id, machine=machine)
    if known is not None and (known.is_done or known.owner):
        raise build_duplicate(known)
    row = await fetch_one(
        connection,
        "INSERT INTO agent_messages (context_id, message_id, is_done, result, owner, token, until, boot_id, process)"
        " VALUES (%s, %s, FALSE, 'null', %s, nextval('agent_fencing'), clock_timestamp() + make_interval(secs => %s),"
        " %s, %s) ON CONFLICT (context_id, message_id) DO UPDATE SET owner = excluded.owner, token = excluded.token,"
        " until = excluded.until, boot_id = excluded.boot_id, process = excluded.process RETURNING token",
        (
            encode_text(claim.context_id),
            encode_text(claim.message_id),
            encode_text(claim.owner),
            seconds,
            machine.boot_id(),
            machine.process(),
        ),
    )
    assert row is not None, "an upsert returns its row"
    return int(row[0])


async def renew(connection: Connection, claim: Claim, *, seconds: float) -> None:
    cursor = await connection.execute(
        "UPDATE agent_messages SET until = clock_timestamp() + make_interval(secs => %s)"
        " WHERE context_id = %s AND message_id = %s AND token = %s AND owner = %s AND NOT is_done",
        (seconds, *_key(claim)),
    )
    if cursor.rowcount != 1:
        raise build_lost_claim(claim)


async def release(connection: Connection, claim: Claim) -> None:
    await connection.execute(
        "UPDATE agent_messages SET owner = ''"
        " WHERE context_id = %s AND message_id = %s AND token = %s AND owner = %s AND NOT is_done",
        _key(claim),
    )


async def complete(connection: Connection, completion: Completion) -> None:
    """Completing with an expired claim is fine as long as no other worker claimed the message."""
    cursor = await connection.execute(
        "UPDATE agent_messages SET is_done = TRUE, result = %s::json, owner = ''"
        " WHERE context_id = %s AND message_id = %s AND token = %s AND owner = %s AND NOT is_done",
        (dump_json(completion.result), *_key(completion.claim)),
    )
    if cursor.rowcount != 1:
        raise build_lost_claim(completion.claim)


async def find_message(
    connection: Connection, context_id: str, message_id: str, *, machine: Machine
) -> StoredMessage | None:
    row = await fetch_one(
        connection,
        "SELECT is_done, result::text, owner, token, NULL, extract(epoch FROM until - clock_timestamp())::float8,"
        " boot_id, process FROM agent_messages WHERE context_id = %s AND message_id = %s",
        (encode_text(context_id), encode_text(message_id)),
    )
    if row is None:
        return None
    is_done, result, owner, token, since, left, boot_id, process = row
    holding = Holding(owner=owner, token=token, since=since, left_seconds=left, boot_id=boot_id, process=process)
    driver = "" if holding.is_free(machine) else decode_text(owner)
    return StoredMessage(message_id=message_id, is_done=is_done, result=load_json(result), owner=driver)


def _key(claim: Claim) -> tuple[str, str, int, str]:
    return encode_text(claim.context_id), encode_text(claim.message_id), claim.token, encode_text(claim.owner)


_SELECT_STATE: LiteralString = (
    "SELECT context_id, version, current_turn, task_state, agent_state_detail, input_request_payload::text, summary,"
    " summarized_to, created_at, updated_at FROM agent_context_state"
)
_SELECT_FACTS: LiteralString = "SELECT bucket, key, value::text, timestamp, expires_at FROM agent_pocket_facts"
_LIVE: LiteralString = "(expires_at IS NULL OR expires_at > clock_timestamp())"


async def find_state(connection: Connection, context_id: str) -> ContextState | None:
    row = await fetch_one(connection, f"{_SELECT_STATE} WHERE context_id = %s", (encode_text(context_id),))
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
    row = await fetch_one(connection, query, (encode_text(context_id),))
    if row is None:
        await connection.execute(
            "INSERT INTO agent_context_state (context_id, created_at, updated_at)"
            " VALUES (%s, clock_timestamp(), clock_timestamp()) ON CONFLICT (context_id) DO NOTHING",
            (encode_text(context_id),),
        )
        row = await fetch_one(connection, query, (encode_text(context_id),))
    assert row is not None, "it is made above"
    return _build_state(row)


async def commit(connection: Connection, context_id: str, change: ContextChange) -> None:
    stored = await lock_context(connection, context_id)
    if change.completion is not None:
        await complete(connection, change.completion)
    if change.state is not None:
        await _replace(connection, stored, change.state, change=change)
    if change.summary is not None:
        await connection.execute(
            "UPDATE agent_context_state SET summary = %s, summarized_to = %s"
            " WHERE context_id = %s AND summarized_to < %s",
            (encode_text(change.summary.text), change.summary.upto, encode_text(context_id), change.summary.upto),
        )
    for bucket, key in change.forgotten:
        await connection.execute(
            "DELETE FROM agent_pocket_facts WHERE context_id = %s AND bucket = %s AND key = %s",
            (encode_text(context_id), encode_text(bucket), encode_text(key)),
        )
    state = change.state or stored
    for fact in change.facts:
        await _put_fact(connection, state, fact)
    if change.events:
        await _append(connection, state, change.events)


async def _replace(connection: Connection, stored: ContextState, state: ContextState, *, change: ContextChange) -> None:
    """Compare and set. The redeemed token stays valid for its message until a message is completed."""
    cursor = await connection.execute(
        "UPDATE agent_context_state SET version = version + 1, current_turn = %s, task_state = %s,"
        " agent_state_detail = %s, input_request_payload = %s::json,"
        " summary = CASE WHEN summarized_to = %s THEN %s ELSE summary END,"
        " resume_token = CASE WHEN %s THEN '' ELSE resume_token END, updated_at = clock_timestamp()"
        " WHERE context_id = %s AND version = %s",
        (
            *_changed_columns(state),
            change.completion is not None,
            encode_text(state.context_id),
            change.base_version,
        ),
    )
    if cursor.rowcount != 1:
        raise build_conflict(state.context_id, expected=change.base_version, found=stored.version)


async def replace_state(
    connection: Connection, state: ContextState, *, expected: int, commit_id: str
) -> ContextState | None:
    """A state and nothing else, in one statement: many that race for it hold the lock as short as can be.

    None when it was not the expected one, or is not there.
    """
    row = await fetch_one(
        connection,
        "WITH changed AS (UPDATE agent_context_state SET version = version + 1, current_turn = %s, task_state = %s,"
        " agent_state_detail = %s, input_request_payload = %s::json,"
        " summary = CASE WHEN summarized_to = %s THEN %s ELSE summary END, updated_at = clock_timestamp()"
        " WHERE context_id = %s AND version = %s RETURNING *), noted AS (INSERT INTO agent_commits (commit_id, at)"
        " SELECT %s, updated_at FROM changed) SELECT context_id, version, current_turn, task_state, agent_state_detail,"
        " input_request_payload::text, summary, summarized_to, created_at, updated_at FROM changed",
        (*_changed_columns(state), encode_text(state.context_id), expected, commit_id),
    )
    return None if row is None else _build_state(row)


async def is_noted(connection: Connection, commit_id: str) -> bool:
    """Did a commit count whose answer was lost?"""
    return await fetch_one(connection, "SELECT 1 FROM agent_commits WHERE commit_id = %s", (commit_id,)) is not None


def _changed_columns(state: ContextState) -> tuple[int, str, str, str, int, str]:
    return (
        state.current_turn,
        state.task_state,
        encode_text(state.agent_state_detail),
        dump_json(state.input_request),
        state.summarized_to,
        encode_text(state.summary),
    )


async def redeem(connection: Connection, context_id: str, redemption: Redemption) -> bool:
    cursor = await connection.execute(
        "UPDATE agent_context_state SET version = version + 1, resume_token = %s, updated_at = clock_timestamp()"
        " WHERE context_id = %s AND version = %s AND current_turn = %s AND task_state <> ALL(%s)",
        (redemption.digest, encode_text(context_id), redemption.version, redemption.turn, list(ENDED)),
    )
    if cursor.rowcount == 1:
        return True
    again = await fetch_one(
        connection,
        "SELECT 1 FROM agent_context_state WHERE context_id = %s AND version > %s AND resume_token = %s"
        " AND resume_token <> '' AND task_state <> ALL(%s)",
        (encode_text(context_id), redemption.version, redemption.digest, list(ENDED)),
    )
    return again is not None


async def _append(connection: Connection, state: ContextState, events: tuple[NewEvent, ...]) -> None:
    context_id = encode_text(state.context_id)
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
                encode_text(event.event_type),
                dump_json(event.payload),
                event.turn_number,
                encode_text(event.agent_id),
                encode_text(event.message_id) or None,
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
        (encode_text(context_id), after, limit),
    )
    return [
        ContextEvent(
            number=int(number),
            event_type=decode_text(event_type),
            payload=load_json(payload),
            turn_number=int(turn),
            agent_id=decode_text(agent_id),
            message_id=decode_text(message_id),
            timestamp=timestamp,
        )
        for number, event_type, payload, turn, agent_id, message_id, timestamp in reversed(rows)
    ]


async def _put_fact(connection: Connection, state: ContextState, fact: NewFact) -> None:
    place = (encode_text(state.context_id), encode_text(fact.bucket))
    await connection.execute(
        "DELETE FROM agent_pocket_facts WHERE context_id = %s AND bucket = %s AND expires_at <= clock_timestamp()",
        place,
    )
    await connection.execute(
        "INSERT INTO agent_pocket_facts (context_id, bucket, key, value, timestamp, ttl_seconds, expires_at)"
        " VALUES (%s, %s, %s, %s::json, clock_timestamp(), %s, clock_timestamp() + make_interval(secs => %s))"
        " ON CONFLICT (context_id, bucket, key) DO UPDATE SET value = excluded.value, timestamp = excluded.timestamp,"
        " ttl_seconds = excluded.ttl_seconds, expires_at = excluded.expires_at",
        (*place, encode_text(fact.key), dump_json(fact.value), fact.ttl_seconds, fact.ttl_seconds),
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
            (*place, encode_text(fact.key), over),
        )


async def find_fact(connection: Connection, context_id: str, *, bucket: str, key: str) -> Fact | None:
    row = await fetch_one(
        connection,
        f"{_SELECT_FACTS} WHERE context_id = %s AND bucket = %s AND key = %s AND {_LIVE}",
        (encode_text(context_id), encode_text(bucket), encode_text(key)),
    )
    return None if row is None else _build_fact(row)


async def find_facts(connection: Connection, context_id: str, *, bucket: str) -> list[Fact]:
    rows = await fetch_all(
        connection,
        f"{_SELECT_FACTS} WHERE context_id = %s AND (%s = '' OR bucket = %s) AND {_LIVE} ORDER BY bucket, key",
        (encode_text(context_id), encode_text(bucket), encode_text(bucket)),
    )
    return [_build_fact(row) for row in rows]


async def delete_context(connection: Connection, context_id: str) -> bool:
    """Events, facts and messages go with it."""
    cursor = await connection.execute(
        "DELETE FROM agent_context_state WHERE context_id = %s", (encode_text(context_id),)
    )
    return cursor.rowcount == 1


def _build_fact(row: tuple[str, str, str, datetime, datetime | None]) -> Fact:
    bucket, key, value, timestamp, expires_at = row
    loaded: JsonValue = load_json(value)
    return Fact(
        bucket=decode_text(bucket), key=decode_text(key), value=loaded, timestamp=timestamp, expires_at=expires_at
    )


def _build_state(row: tuple[str, int, int, str, str, str, str, int, datetime, datetime]) -> ContextState:
    return ContextState(
        context_id=decode_text(row[0]),
        version=row[1],
        current_turn=row[2],
        task_state=cast(TaskState, row[3]),  # written by `_replace` only
        agent_state_detail=decode_text(row[4]),
        input_request=load_json(row[5]),
        summary=decode_text(row[6]),
        summarized_to=row[7],
        created_at=row[8],
        updated_at=row[9],
    )


class PostgresContexts:
    def __init__(self, database: Database, machine: Machine) -> None:
        self._database = database
        self._machine = machine

    async def find_state(self, context_id: str) -> ContextState | None:
        return await self._database.run(lambda connection: find_state(connection, context_id))

    async def commit(self, context_id: str, change: ContextChange) -> ContextState:
        check_change(context_id, change)
        if change.state is not None and change == ContextChange(
            state=change.state, expected_version=change.expected_version
        ):
            replaced = await self._replace_state(change.state, expected=change.base_version)
            if replaced is not None:
                return replaced

        async def work(connection: Connection) -> ContextState:
            await commit(connection, context_id, change)
            state = await find_state(connection, context_id)
            assert state is not None, "it was made in this transaction"
            return state

        return await self._database.once(work)

    async def _replace_state(self, state: ContextState, *, expected: int) -> ContextState | None:
        """None where there is none yet. Raises `VersionConflictError`."""
        commit_id = secrets.token_hex(16)

        async def work(connection: Connection) -> ContextState | None:
            replaced = await replace_state(connection, state, expected=expected, commit_id=commit_id)
            if replaced is not None:
                return replaced
            found = await find_state(connection, state.context_id)
            if found is not None and await is_noted(connection, commit_id):
                return found
            if found is None and not expected:
                return None
            raise build_conflict(state.context_id, expected=expected, found=found.version if found else 0)

        return await self._database.run(work)

    async def list_events(
        self, context_id: str, *, after: int = 0, limit: int = MAX_EVENTS_PER_CONTEXT
    ) -> list[ContextEvent]:
        return await self._database.run(
            lambda connection: find_events(connection, context_id, after=after, limit=limit)
        )

    async def find_fact(self, context_id: str, bucket: str, key: str) -> Fact | None:
        return await self._database.run(lambda connection: find_fact(connection, context_id, bucket=bucket, key=key))

    async def list_facts(self, context_id: str, *, bucket: str = "") -> list[Fact]:
        return await self._database.run(lambda connection: find_facts(connection, context_id, bucket=bucket))

    async def claim_message(self, context_id: str, message_id: str, *, owner: str, seconds: float) -> Claim:
        check_names(context_id=context_id, message_id=message_id)
        if not owner or seconds <= 0:
            raise ValueError("A claim needs the name of its owner and a time")
        wanted = Claim(context_id=context_id, message_id=message_id, owner=owner, token=0)
        # Most duplicates come when all is done: for those one look is enough, and no lock.
        known = await self.find_message(context_id, message_id)
        if known is not None and known.is_done:
            raise build_duplicate(known)

        async def work(connection: Connection) -> int:
            await lock_context(connection, context_id)
            return await claim_message(connection, wanted, seconds=seconds, machine=self._machine)

        token = await self._database.once(work)
        return Claim(context_id=context_id, message_id=message_id, owner=owner, token=token)

    async def renew_claim(self, claim: Claim, *, seconds: float) -> None:
        await self._database.run(lambda connection: renew(connection, claim, seconds=seconds))

    async def release_claim(self, claim: Claim) -> None:
        await self._database.run(lambda connection: release(connection, claim))

    async def find_message(self, context_id: str, message_id: str) -> StoredMessage | None:
        return await self._database.run(
            lambda connection: find_message(connection, context_id, message_id, machine=self._machine)
        )

    async def redeem(self, context_id: str, redemption: Redemption) -> ContextState | None:
        async def work(connection: Connection) -> ContextState | None:
            is_redeemed = await redeem(connection, context_id, redemption)
            return await find_state(connection, context_id) if is_redeemed else None

        return await self._database.once(work)

    async def delete_context(self, context_id: str) -> bool:
        return await self._database.once(lambda connection: delete_context(connection, context_id))

    async def list_contexts(self, *, task_state: TaskState | None = None, limit: int = 100) -> list[ContextState]:
        return await self._database.run(
            lambda connection: find_states(connection, task_state=task_state or "", limit=limit)
        )
