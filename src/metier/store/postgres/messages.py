"""Messages in PostgreSQL: who works on one, until when, and what came of it. All inside the caller's transaction."""

from metier.store.contexts import (
    Claim,
    Completion,
    StoredMessage,
    build_duplicate,
    build_lost_claim,
    dump_json,
    load_json,
)
from metier.store.machine import Machine
from metier.store.postgres.database import fetch_one
from metier.store.postgres.leases import Holding
from metier.store.postgres.schema import Connection
from metier.store.postgres.text import decode, encode


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
            encode(claim.context_id),
            encode(claim.message_id),
            encode(claim.owner),
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
        (encode(context_id), encode(message_id)),
    )
    if row is None:
        return None
    is_done, result, owner, token, since, left, boot_id, process = row
    holding = Holding(owner=owner, token=token, since=since, left_seconds=left, boot_id=boot_id, process=process)
    driver = "" if holding.is_free(machine) else decode(owner)
    return StoredMessage(message_id=message_id, is_done=is_done, result=load_json(result), owner=driver)


def _key(claim: Claim) -> tuple[str, str, int, str]:
    return encode(claim.context_id), encode(claim.message_id), claim.token, encode(claim.owner)
