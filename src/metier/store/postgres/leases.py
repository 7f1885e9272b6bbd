"""Leases in PostgreSQL: who drives a run, until when by the clock of the server, and the fencing token."""

from datetime import datetime

from msgspec import Struct

from metier.store.base import Lease
from metier.store.failures import LeaseHeld, LeaseLost, RunUnknown
from metier.store.machine import Machine
from metier.store.postgres.database import decode_text, encode_text, fetch_one
from metier.store.postgres.schema import Connection

_TAKE = (
    "UPDATE agent_leases SET owner = %s, token = nextval('agent_fencing'), since = clock_timestamp(),"
    " until = clock_timestamp() + make_interval(secs => %s), boot_id = %s, process = %s"
)


class Holding(Struct, frozen=True, kw_only=True):
    owner: str
    token: int
    since: datetime | None
    left_seconds: float
    """Until it is over, by the clock of the server."""
    boot_id: str
    process: str

    def is_free(self, machine: Machine) -> bool:
        """No process holds it, its time is over, or its process was one of this machine and has ended."""
        is_gone = self.boot_id == machine.boot_id() and machine.is_gone(self.process)
        return not self.owner or self.left_seconds <= 0 or is_gone


async def take(connection: Connection, run_id: str, *, owner: str, seconds: float, machine: Machine) -> Lease:
    """Runs inside the caller's transaction, so that no other process takes the lease in between."""
    holding = await find_holding(connection, run_id, is_for_update=True)
    if holding is None:
        raise RunUnknown(f"There is no run {run_id!r}", hint="List the runs with `agent runs list`")
    check_free(run_id, holding, machine)
    row = await fetch_one(
        connection,
        f"{_TAKE} WHERE run_id = %s RETURNING token",
        (encode_text(owner), seconds, machine.boot_id(), machine.process(), encode_text(run_id)),
    )
    assert row is not None, "the row is locked above"
    return Lease(run_id=run_id, owner=owner, token=int(row[0]), left_by=holding.owner)


async def claim(connection: Connection, *, queue: str, owner: str, seconds: float, machine: Machine) -> Lease | None:
    """Of the oldest run of a queue that can continue; those that others are just claiming are passed by."""
    row = await fetch_one(
        connection,
        "WITH free AS (SELECT lease.run_id, lease.owner"  # noqa: S608 (fixed text)
        " FROM agent_runs AS run JOIN agent_leases AS lease USING (run_id)"
        " WHERE run.queue = %s AND run.queue <> '' AND run.status IN ('pending', 'in_progress')"
        " AND (lease.owner = '' OR lease.until <= clock_timestamp())"
        " ORDER BY run.number LIMIT 1 FOR UPDATE OF lease SKIP LOCKED)"
        f" {_TAKE} FROM free WHERE agent_leases.run_id = free.run_id"
        " RETURNING agent_leases.run_id, agent_leases.token, free.owner",
        (encode_text(queue), encode_text(owner), seconds, machine.boot_id(), machine.process()),
    )
    if row is None:
        return None
    return Lease(run_id=decode_text(row[0]), owner=owner, token=int(row[1]), left_by=decode_text(row[2]))


async def renew(connection: Connection, lease: Lease, *, seconds: float) -> None:
    row = await fetch_one(
        connection,
        "UPDATE agent_leases SET until = clock_timestamp() + make_interval(secs => %s)"
        " WHERE run_id = %s AND owner = %s AND token = %s RETURNING 1",
        (seconds, encode_text(lease.run_id), encode_text(lease.owner), lease.token),
    )
    if row is None:
        raise await build_lost(connection, lease)


async def release(connection: Connection, lease: Lease) -> None:
    await connection.execute(
        "UPDATE agent_leases SET owner = '' WHERE run_id = %s AND owner = %s AND token = %s",
        (encode_text(lease.run_id), encode_text(lease.owner), lease.token),
    )


async def check_fence(connection: Connection, lease: Lease) -> None:
    """Raises `LeaseLost`; no other process takes over until the caller's transaction ends. See `store.base`."""
    row = await fetch_one(
        connection,
        "SELECT 1 FROM agent_leases WHERE run_id = %s AND owner = %s AND token = %s FOR SHARE",
        (encode_text(lease.run_id), encode_text(lease.owner), lease.token),
    )
    if row is None:
        raise await build_lost(connection, lease)


async def build_lost(connection: Connection, lease: Lease) -> LeaseLost:
    holding = await find_holding(connection, lease.run_id)
    now = f"{holding.owner!r} drives it now" if holding is not None and holding.owner else "no process drives it now"
    return LeaseLost(
        f"{lease.owner!r} no longer drives run {lease.run_id!r}: {now}; nothing was written",
        hint=f"Follow it with `agent runs watch {lease.run_id}`",
    )


def check_free(run_id: str, holding: Holding, machine: Machine) -> None:
    """Raises `LeaseHeld`, saying who has the run, since when, and when it would become free."""
    if holding.is_free(machine):
        return
    raise LeaseHeld(
        f"{holding.owner!r} drives run {run_id!r} since {holding.since:%Y-%m-%d %H:%M:%S} UTC;"
        f" its lease ends in {holding.left_seconds:.1f} s unless it is renewed",
        hint=f"Follow it with `agent runs watch {run_id}`, or stop it with `agent runs cancel {run_id}`",
    )


async def find_holding(connection: Connection, run_id: str, *, is_for_update: bool = False) -> Holding | None:
    query = (
        "SELECT owner, token, since, coalesce(extract(epoch FROM until - clock_timestamp()), 0)::float8, boot_id,"
        " process FROM agent_leases WHERE run_id = %s"
    )
    row = await fetch_one(connection, query + " FOR UPDATE" if is_for_update else query, (encode_text(run_id),))
    return None if row is None else build_holding(row)


def build_holding(row: tuple[str, int, datetime | None, float, str, str]) -> Holding:
    return Holding(
        owner=decode_text(row[0]), token=row[1], since=row[2], left_seconds=row[3], boot_id=row[4], process=row[5]
    )
