"""Conversations: `store.contexts.ContextStore` in SQL. Each method is one transaction."""

from metier.decisions import TaskState
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
from metier.store.queries.leases import Holding, next_token
from metier.store.queries.session import Database, Session, SqlRow, SqlValue, parse_optional_time, parse_time

# JSON columns are read as text because PostgreSQL's driver would parse them.
_SELECT_STATE = (
    "SELECT context_id, version, current_turn, task_state, agent_state_detail, CAST(input_request_payload AS TEXT),"
    " summary, summarized_to, created_at, updated_at FROM context_state"
)
_HAS_NOT_ENDED = f"task_state NOT IN ({', '.join(f"'{state}'" for state in ENDED)})"
_ANY_TURN = 2**31 - 1


class SqlContexts:
    def __init__(self, database: Database, machine: Machine) -> None:
        self._database = database
        self._machine = machine

    async def find_state(self, context_id: str) -> ContextState | None:
        return await self._database.read(lambda db: _find_state(db, context_id))

    async def commit(self, context_id: str, change: ContextChange) -> ContextState:
        check_change(context_id, change)
        return await self._database.write(lambda db: _commit(db, context_id, change), durable=change.is_durable)

    async def list_events(
        self, context_id: str, *, after: int = 0, limit: int = MAX_EVENTS_PER_CONTEXT
    ) -> list[ContextEvent]:
        async def query(db: Session) -> list[ContextEvent]:
            rows = await db.fetch_all(
                "SELECT number, event_type, CAST(payload AS TEXT), turn_number, agent_id, coalesce(message_id, ''),"
                " timestamp FROM conversation_events WHERE context_id = ? AND number > ? ORDER BY number DESC LIMIT ?",
                (context_id, after, limit),
            )
            return [_build_event(row) for row in reversed(rows)]

        return await self._database.read(query)

    async def find_fact(self, context_id: str, bucket: str, key: str) -> Fact | None:
        found = await self._database.read(lambda db: _list_facts(db, context_id, bucket=bucket, key=key))
        return found[0] if found else None

    async def list_facts(self, context_id: str, *, bucket: str = "") -> list[Fact]:
        return await self._database.read(lambda db: _list_facts(db, context_id, bucket=bucket))

    async def claim_message(self, context_id: str, message_id: str, *, owner: str, seconds: float) -> Claim:
        check_names(context_id=context_id, message_id=message_id)
        if not owner or seconds <= 0:
            raise ValueError("A claim needs the name of its owner and a time")
        # Most duplicates arrive when the message is already done. These only take one read and no lock.
        known = await self.find_message(context_id, message_id)
        if known is not None and known.is_done:
            raise build_duplicate(known)

        async def change(db: Session) -> Claim:
            await _lock_context(db, context_id)
            known = await _find_message(db, context_id, message_id, machine=self._machine)
            if known is not None and (known.is_done or known.owner):
                raise build_duplicate(known)
            claim = Claim(context_id=context_id, message_id=message_id, owner=owner, token=await next_token(db))
            await _put_claim(db, claim, seconds=seconds, machine=self._machine)
            return claim

        return await self._database.write(change, durable=True)

    async def renew_claim(self, claim: Claim, *, seconds: float) -> None:
        async def change(db: Session) -> None:
            change = f"until = {db.dialect.lease_end}, boot_id = ?"
            await _change_claimed(db, claim, change, values=(seconds, self._machine.boot_id()))

        await self._database.write(change, repeatable=True)

    async def release_claim(self, claim: Claim) -> None:
        async def change(db: Session) -> None:
            await db.execute(
                "UPDATE messages SET owner = '' WHERE context_id = ? AND message_id = ? AND token = ?"
                f" AND is_done {db.dialect.is_false}",
                (claim.context_id, claim.message_id, claim.token),
            )

        await self._database.write(change, repeatable=True)

    async def find_message(self, context_id: str, message_id: str) -> StoredMessage | None:
        return await self._database.read(lambda db: _find_message(db, context_id, message_id, machine=self._machine))

    async def redeem(self, context_id: str, redemption: Redemption) -> ContextState | None:
        return await self._database.write(lambda db: _redeem(db, context_id, redemption), durable=True)

    async def delete_context(self, context_id: str) -> bool:
        async def change(db: Session) -> bool:
            # SQLite's tables have no foreign keys that would do this.
            for table in ("conversation_events", "pocket_facts", "messages"):
                await db.execute(f"DELETE FROM {table} WHERE context_id = ?", (context_id,))
            return await db.execute("DELETE FROM context_state WHERE context_id = ?", (context_id,)) == 1

        return await self._database.write(change, slow=True)

    async def list_contexts(self, *, task_state: TaskState | None = None, limit: int = 100) -> list[ContextState]:
        async def query(db: Session) -> list[ContextState]:
            where, values = ("WHERE task_state = ?", [task_state]) if task_state else ("", [])
            rows = await db.fetch_all(
                f"{_SELECT_STATE} {where} ORDER BY updated_at DESC, context_id LIMIT ?", (*values, limit)
            )
            return [_build_state(row) for row in rows]

        return await self._database.read(query)


async def _find_state(db: Session, context_id: str) -> ContextState | None:
    row = await db.fetch_one(f"{_SELECT_STATE} WHERE context_id = ?", (context_id,))
    return None if row is None else _build_state(row)


async def _lock_context(db: Session, context_id: str) -> ContextState:
    """Lock a context, and create it if it is missing. The lock gives its events an order."""
    query = f"{_SELECT_STATE} WHERE context_id = ? FOR UPDATE"
    row = await db.fetch_one(query, (context_id,))
    if row is None:
        now = db.dialect.seconds_from_now
        await db.execute(
            "INSERT INTO context_state (context_id, current_turn, task_state, summary, summarized_to, last_event,"
            " version, resume_token, agent_state_detail, input_request_payload, created_at, updated_at)"
            f" VALUES (?, 1, 'pending', '', 0, 0, 0, '', '', 'null', {now}, {now}) ON CONFLICT (context_id) DO NOTHING",
            (context_id, 0, 0),
        )
        row = await db.fetch_one(query, (context_id,))
    assert row is not None, "it is created above"
    return _build_state(row)


async def _commit(db: Session, context_id: str, change: ContextChange) -> ContextState:
    stored = await _lock_context(db, context_id)
    if change.completion is not None:
        await _complete(db, context_id, change.completion)
    if change.state is not None:
        await _replace(db, change.state, change, stored=stored)
    if change.summary is not None:
        await db.execute(
            "UPDATE context_state SET summary = ?, summarized_to = ? WHERE context_id = ? AND summarized_to < ?",
            (change.summary.text, change.summary.upto, context_id, change.summary.upto),
        )
    for bucket, key in change.forgotten:
        await db.execute(
            "DELETE FROM pocket_facts WHERE context_id = ? AND bucket = ? AND key = ?", (context_id, bucket, key)
        )
    state = change.state or stored
    for fact in change.facts:
        await _put_fact(db, state, fact)
    if change.events:
        await _append_events(db, state, change.events)
    after = await _find_state(db, context_id)
    assert after is not None, "it was created in this transaction"
    return after


async def _replace(db: Session, state: ContextState, change: ContextChange, *, stored: ContextState) -> None:
    """Replace the state if its version is the expected one."""
    # `resume_token` is only cleared when a message is completed: until then, its message can redeem the token again.
    replaced = await db.execute(
        "UPDATE context_state SET version = version + 1, current_turn = ?, task_state = ?, agent_state_detail = ?,"
        " input_request_payload = ?, summary = CASE WHEN summarized_to = ? THEN ? ELSE summary END,"
        f" resume_token = CASE WHEN ? THEN '' ELSE resume_token END, updated_at = {db.dialect.seconds_from_now}"
        " WHERE context_id = ? AND version = ?",
        (
            *(state.current_turn, state.task_state, state.agent_state_detail, dump_json(state.input_request)),
            *(state.summarized_to, state.summary, change.completion is not None, 0),
            *(state.context_id, change.base_version),
        ),
    )
    if not replaced:
        raise build_conflict(state.context_id, expected=change.base_version, found=stored.version)


async def _redeem(db: Session, context_id: str, redemption: Redemption) -> ContextState | None:
    redeemed = await db.execute(
        f"UPDATE context_state SET version = version + 1, resume_token = ?, updated_at = {db.dialect.seconds_from_now}"
        f" WHERE context_id = ? AND version = ? AND current_turn = ? AND {_HAS_NOT_ENDED}",
        (redemption.digest, 0, context_id, redemption.version, redemption.turn),
    )
    again = None
    if not redeemed:
        # The version has grown since: the same message may have consumed the token before a crash.
        again = await db.fetch_one(
            "SELECT 1 FROM context_state WHERE context_id = ? AND version > ? AND resume_token = ?"
            f" AND resume_token <> '' AND {_HAS_NOT_ENDED}",
            (context_id, redemption.version, redemption.digest),
        )
    return await _find_state(db, context_id) if redeemed or again is not None else None


async def _append_events(db: Session, state: ContextState, events: tuple[NewEvent, ...]) -> None:
    row = await db.fetch_one("SELECT last_event FROM context_state WHERE context_id = ?", (state.context_id,))
    number = int(row[0]) if row else 0
    for event in events:
        # An event of a repeated message isn't inserted, so that numbers stay consecutive.
        number += await db.execute(
            "INSERT INTO conversation_events"
            " (context_id, number, event_type, payload, timestamp, turn_number, agent_id, message_id)"
            f" VALUES (?, ?, ?, ?, {db.dialect.seconds_from_now}, ?, ?, ?)"
            " ON CONFLICT (context_id, message_id) DO NOTHING",
            (
                *(state.context_id, number + 1, event.event_type, dump_json(event.payload), 0),
                *(event.turn_number, event.agent_id, event.message_id or None),
            ),
        )
    await db.execute("UPDATE context_state SET last_event = ? WHERE context_id = ?", (number, state.context_id))
    # A context that waits for an answer keeps all events of its turn, however many there are.
    await db.execute(
        "DELETE FROM conversation_events WHERE context_id = ? AND number <= ? AND turn_number < ?",
        (state.context_id, number - MAX_EVENTS_PER_CONTEXT, state.current_turn if state.is_resumable else _ANY_TURN),
    )


async def _put_fact(db: Session, state: ContextState, fact: NewFact) -> None:
    """Store a fact and drop the oldest ones of a full bucket. Raises `BucketFull` if the context is waiting."""
    bucket = (state.context_id, fact.bucket)
    now = db.dialect.seconds_from_now
    await db.execute(
        # Expired facts must neither fill a bucket nor displace live ones.
        f"DELETE FROM pocket_facts WHERE context_id = ? AND bucket = ? AND expires_at <= {now}",
        (*bucket, 0),
    )
    await db.execute(
        "INSERT INTO pocket_facts (context_id, bucket, key, value, timestamp, ttl_seconds, expires_at)"
        f" VALUES (?, ?, ?, ?, {now}, ?, {now}) ON CONFLICT (context_id, bucket, key) DO UPDATE SET"
        " value = excluded.value, timestamp = excluded.timestamp, ttl_seconds = excluded.ttl_seconds,"
        " expires_at = excluded.expires_at",
        (*bucket, fact.key, dump_json(fact.value), 0, fact.ttl_seconds, fact.ttl_seconds),
    )
    row = await db.fetch_one("SELECT count(*) FROM pocket_facts WHERE context_id = ? AND bucket = ?", bucket)
    excess = (int(row[0]) if row else 0) - MAX_POCKET_FACTS_PER_BUCKET
    if excess > 0 and state.is_resumable:
        raise build_full_bucket(*bucket)
    if excess > 0:
        await db.execute(
            "DELETE FROM pocket_facts WHERE context_id = ? AND bucket = ? AND key IN (SELECT key FROM pocket_facts"
            " WHERE context_id = ? AND bucket = ? AND key <> ? ORDER BY timestamp, key LIMIT ?)",
            (*bucket, *bucket, fact.key, excess),
        )


async def _list_facts(db: Session, context_id: str, *, bucket: str = "", key: str = "") -> list[Fact]:
    """List the facts that have not expired, by bucket and key."""
    where, values = "context_id = ?", [context_id]
    for column, value in (("bucket", bucket), ("key", key)):
        if value:
            where += f" AND {column} = ?"
            values.append(value)
    rows = await db.fetch_all(
        # Expired facts stay stored until the next fact of their bucket is put.
        "SELECT bucket, key, CAST(value AS TEXT), timestamp, expires_at FROM pocket_facts"
        f" WHERE {where} AND (expires_at IS NULL OR expires_at > {db.dialect.seconds_from_now}) ORDER BY bucket, key",
        (*values, 0),
    )
    return [
        Fact(
            bucket=bucket,
            key=key,
            value=load_json(value),
            timestamp=parse_time(timestamp),
            expires_at=parse_optional_time(expires_at),
        )
        for bucket, key, value, timestamp, expires_at in rows
    ]


async def _put_claim(db: Session, claim: Claim, *, seconds: float, machine: Machine) -> None:
    await db.execute(
        "INSERT INTO messages (context_id, message_id, is_done, result, owner, token, until, boot_id, process)"
        f" VALUES (?, ?, FALSE, 'null', ?, ?, {db.dialect.lease_end}, ?, ?)"
        " ON CONFLICT (context_id, message_id) DO UPDATE SET owner = excluded.owner, token = excluded.token,"
        " until = excluded.until, boot_id = excluded.boot_id, process = excluded.process",
        (
            *(claim.context_id, claim.message_id, claim.owner, claim.token),
            *(seconds, machine.boot_id(), machine.process()),
        ),
    )


async def _complete(db: Session, context_id: str, completion: Completion) -> None:
    """Complete a message. An expired claim is still valid as long as no other worker has claimed the message."""
    result = dump_json(completion.result)
    if completion.claim is not None:
        await _change_claimed(db, completion.claim, "is_done = TRUE, owner = '', result = ?", values=(result,))
        return
    await db.execute(
        "INSERT INTO messages (context_id, message_id, is_done, result, owner, token, until, boot_id, process)"
        f" VALUES (?, ?, TRUE, ?, '', 0, {db.dialect.lease_end}, '', '')"
        " ON CONFLICT (context_id, message_id) DO UPDATE SET is_done = TRUE, owner = '', result = excluded.result",
        (context_id, completion.message_id, result, 0),
    )


async def _change_claimed(db: Session, claim: Claim, change: str, *, values: tuple[SqlValue, ...]) -> None:
    """Change a claimed message. Raises `ClaimLost`."""
    changed = await db.execute(
        f"UPDATE messages SET {change} WHERE context_id = ? AND message_id = ? AND token = ? AND owner = ?"
        f" AND is_done {db.dialect.is_false}",
        (*values, claim.context_id, claim.message_id, claim.token, claim.owner),
    )
    if not changed:
        raise build_lost_claim(claim)


async def _find_message(db: Session, context_id: str, message_id: str, *, machine: Machine) -> StoredMessage | None:
    row = await db.fetch_one(
        f"SELECT is_done, CAST(result AS TEXT), owner, {db.dialect.lease_seconds_left}, boot_id, process FROM messages"
        " WHERE context_id = ? AND message_id = ?",
        (context_id, message_id),
    )
    if row is None:
        return None
    is_done, result, owner, left, boot_id, process = row
    holding = Holding(owner=owner, since=None, left_seconds=left, boot_id=boot_id, process=process)
    driver = "" if holding.is_free(machine) else owner
    return StoredMessage(message_id=message_id, is_done=bool(is_done), result=load_json(result), owner=driver)


def _build_state(row: SqlRow) -> ContextState:
    return ContextState(
        context_id=row[0],
        version=row[1],
        current_turn=row[2],
        task_state=row[3],
        agent_state_detail=row[4],
        input_request=load_json(row[5]),
        summary=row[6],
        summarized_to=row[7],
        created_at=parse_time(row[8]),
        updated_at=parse_time(row[9]),
    )


def _build_event(row: SqlRow) -> ContextEvent:
    number, event_type, payload, turn, agent_id, message_id, timestamp = row
    return ContextEvent(
        number=number,
        event_type=event_type,
        payload=load_json(payload),
        turn_number=turn,
        agent_id=agent_id,
        message_id=message_id,
        timestamp=parse_time(timestamp),
    )
