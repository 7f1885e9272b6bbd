"""Messages in SQLite: who works on one, until when, and what came of it. All inside the caller's transaction."""

import sqlite3

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
from metier.store.sqlite.leases import Holding


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
