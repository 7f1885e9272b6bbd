"""Conversations in SQLite: `store.contexts.ContextStore`, rows, and messages with their workers.

Each method is one transaction.
"""

import sqlite3
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import cast

from msgspec import Struct

from metier.ids import Clock
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
from metier.store.sqlite.database import Database
from metier.store.sqlite.leases import Holding
from metier.store.sqlite.run_index import render_time
from metier.task_state import TaskState


def claim_message(connection: sqlite3.Connection, claim: Claim, *, seconds: float, machine: Machine) -> Claim:
    """`claim` says what is wanted; its token is given here."""
    known = find_message(connection, claim.context_id, claim.message_id, machine=machine)
    if known is not None and (known.is_done or known.owner):
        raise build_duplicate(known)
    # One counter for leases and claims: a token that was given once is never given again, even after a deletion.
    connection.execute("UPDATE fencing SET last_token = last_token + 1")
    token = int(connection.execute("SELECT last_token FROM fencing").fetchone()[0])
    holding = (claim.owner, token, machine.boot_id(), machine.uptime() + seconds, machine.process())
    connection.execute(
        "INSERT OR REPLACE INTO messages VALUES (?, ?, 0, 'null', ?, ?, ?, ?, ?)",
        (claim.context_id, claim.message_id, *holding),
    )
    return Claim(context_id=claim.context_id, message_id=claim.message_id, owner=claim.owner, token=token)


def renew(connection: sqlite3.Connection, claim: Claim, *, seconds: float, machine: Machine) -> None:
    _change(connection, claim, {"boot_id": machine.boot_id(), "until": machine.uptime() + seconds})


def release(connection: sqlite3.Connection, claim: Claim) -> None:
    connection.execute(
        "UPDATE messages SET owner = '' WHERE context_id = ? AND message_id = ? AND token = ? AND is_done = 0",
        (claim.context_id, claim.message_id, claim.token),
    )


def complete(connection: sqlite3.Connection, completion: Completion) -> None:
    """Completing with an expired claim is fine as long as no other worker claimed the message."""
    _change(connection, completion.claim, {"is_done": 1, "result": dump_json(completion.result), "owner": ""})


def find_message(
    connection: sqlite3.Connection, context_id: str, message_id: str, *, machine: Machine
) -> StoredMessage | None:
    row = connection.execute(
        "SELECT is_done, result, owner, token, boot_id, until, process FROM messages"
        " WHERE context_id = ? AND message_id = ?",
        (context_id, message_id),
    ).fetchone()
    if row is None:
        return None
    is_done, result, owner, token, boot_id, until, process = row
    holding = Holding(owner=owner, token=token, since="", boot_id=boot_id, until=until, process=process)
    driver = "" if holding.is_free(machine) else owner
    return StoredMessage(message_id=message_id, is_done=bool(is_done), result=load_json(result), owner=driver)


def _change(connection: sqlite3.Connection, claim: Claim, values: dict[str, str | int | float]) -> None:
    names = ", ".join(f"{name} = ?" for name in values)
    cursor = connection.execute(
        f"UPDATE messages SET {names}"  # noqa: S608 (fixed names)
        " WHERE context_id = ? AND message_id = ? AND token = ? AND owner = ? AND is_done = 0",
        (*values.values(), claim.context_id, claim.message_id, claim.token, claim.owner),
    )
    if cursor.rowcount != 1:
        raise build_lost_claim(claim)


_STATE = (
    "context_id, version, current_turn, task_state, agent_state_detail, input_request_payload, summary, summarized_to,"
    " created_at, updated_at"
)


class Times(Struct, frozen=True):
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
    """Compare and set. The redeemed token stays valid for its message until a message is completed."""
    cursor = connection.execute(
        "UPDATE context_state SET version = version + 1, current_turn = ?, task_state = ?, agent_state_detail = ?,"
        " input_request_payload = ?, summary = iif(summarized_to = ?, ?, summary),"
        " resume_token = iif(?, '', resume_token), updated_at = ?"
        " WHERE context_id = ? AND version = ?",
        (
            state.current_turn,
            state.task_state,
            state.agent_state_detail,
            dump_json(state.input_request),
            state.summarized_to,
            state.summary,
            change.completion is not None,
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
        "SELECT 1 FROM context_state WHERE context_id = ? AND version > ? AND resume_token = ? AND resume_token != ''"
        " AND task_state NOT IN (?, ?, ?, ?)",
        (context_id, redemption.version, redemption.digest, *ENDED),
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


class SqliteContexts:
    def __init__(self, database: Database, times: Times) -> None:
        self._database = database
        self._times = times

    async def find_state(self, context_id: str) -> ContextState | None:
        return await self._database.read(partial(find_state, context_id=context_id))

    async def commit(self, context_id: str, change: ContextChange) -> ContextState:
        check_change(context_id, change)
        work = partial(commit, context_id=context_id, change=change, times=self._times)
        return await self._database.write(work, durable=change.is_durable)

    async def list_events(
        self, context_id: str, *, after: int = 0, limit: int = MAX_EVENTS_PER_CONTEXT
    ) -> list[ContextEvent]:
        return await self._database.read(partial(find_events, context_id=context_id, after=after, limit=limit))

    async def find_fact(self, context_id: str, bucket: str, key: str) -> Fact | None:
        where = {"context_id = ?": context_id, "bucket = ?": bucket, "key = ?": key}
        found = await self._database.read(partial(find_facts, where=where, now=self._times.now()))
        return found[0] if found else None

    async def list_facts(self, context_id: str, *, bucket: str = "") -> list[Fact]:
        where = {"context_id = ?": context_id} | ({"bucket = ?": bucket} if bucket else {})
        return await self._database.read(partial(find_facts, where=where, now=self._times.now()))

    async def claim_message(self, context_id: str, message_id: str, *, owner: str, seconds: float) -> Claim:
        check_names(context_id=context_id, message_id=message_id)
        if not owner or seconds <= 0:
            raise ValueError("A claim needs the name of its owner and a time")
        wanted = Claim(context_id=context_id, message_id=message_id, owner=owner, token=0)

        def change(connection: sqlite3.Connection) -> Claim:
            ensure_context(connection, context_id, self._times)
            return claim_message(connection, wanted, seconds=seconds, machine=self._times.machine)

        return await self._database.write(change, durable=True)

    async def renew_claim(self, claim: Claim, *, seconds: float) -> None:
        await self._database.write(partial(renew, claim=claim, seconds=seconds, machine=self._times.machine))

    async def release_claim(self, claim: Claim) -> None:
        await self._database.write(partial(release, claim=claim))

    async def find_message(self, context_id: str, message_id: str) -> StoredMessage | None:
        return await self._database.read(
            partial(find_message, context_id=context_id, message_id=message_id, machine=self._times.machine)
        )

    async def redeem(self, context_id: str, redemption: Redemption) -> ContextState | None:
        work = partial(redeem, context_id=context_id, redemption=redemption, times=self._times)
        return await self._database.write(work, durable=True)

    async def delete_context(self, context_id: str) -> bool:
        return await self._database.write(partial(delete_context, context_id=context_id), slow=True)

    async def list_contexts(self, *, task_state: TaskState | None = None, limit: int = 100) -> list[ContextState]:
        where = {"task_state = ?": str(task_state)} if task_state else {}
        return await self._database.read(partial(find_states, where=where, limit=limit))
