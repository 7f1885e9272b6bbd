"""Leases: the process that drives a run, the end of its right to do so, and the fencing token that every write needs.

All functions run in the caller's transaction.
"""

from datetime import datetime

from msgspec import Struct

from metier.store.base import Lease
from metier.store.failures import LeaseHeld, LeaseLost, RunUnknown
from metier.store.machine import Machine
from metier.store.queries.session import Dialect, Session, SqlRow, parse_optional_time


class Holding(Struct, frozen=True, kw_only=True):
    """A stored lease."""

    owner: str
    since: datetime | None
    left_seconds: float
    boot_id: str
    process: str

    def is_free(self, machine: Machine) -> bool:
        """Return True if no process holds it, it has expired, or its process ran on this machine and has ended."""
        is_gone = self.boot_id == machine.boot_id() and machine.is_gone(self.process)
        return not self.owner or self.left_seconds <= 0 or is_gone


def holding_columns(dialect: Dialect) -> str:
    """Return the columns that `build_holding` reads. Imported runs may not have a lease yet."""
    return (
        f"coalesce(owner, ''), since, coalesce({dialect.lease_seconds_left}, 0.0), coalesce(boot_id, ''),"
        " coalesce(process, '')"
    )


def build_holding(row: SqlRow) -> Holding:
    owner, since, left, boot_id, process = row
    return Holding(owner=owner, since=parse_optional_time(since), left_seconds=left, boot_id=boot_id, process=process)


async def insert_free(db: Session, run_id: str) -> Lease:
    """Insert the lease of a new run, held by no process. Writers lock this row to prevent a takeover."""
    await db.execute(
        "INSERT INTO leases (run_id, owner, token, since, until, boot_id, process)"
        f" VALUES (?, '', 0, {db.dialect.seconds_from_now}, {db.dialect.lease_end}, '', '')",
        (run_id, 0, 0),
    )
    return Lease(run_id=run_id, owner="", token=0)


async def take(db: Session, run_id: str, *, owner: str, seconds: float, machine: Machine) -> Lease:
    """Acquire a free lease. Raises `RunUnknown` and `LeaseHeld`."""
    left_by = await check_free(db, run_id, machine)
    return await _hold(
        db, Lease(run_id=run_id, owner=owner, token=0, left_by=left_by), seconds=seconds, machine=machine
    )


async def claim(db: Session, *, queue: str, owner: str, seconds: float, machine: Machine) -> Lease | None:
    """Acquire the lease of a queue's oldest free run, skipping runs that other processes are claiming."""
    # The conditions repeat the text of the index `runs_to_claim`, because SQLite only uses it then.
    found = await db.fetch_one(
        "SELECT run.run_id, owner FROM runs AS run JOIN leases AS lease ON lease.run_id = run.run_id"
        " WHERE queue = ? AND queue <> '' AND status IN ('pending', 'in_progress')"
        f" AND {db.dialect.lease_is_over} ORDER BY number LIMIT 1 FOR UPDATE OF lease SKIP LOCKED",
        (queue,),
    )
    if found is None:
        return None
    run_id, left_by = found
    return await _hold(
        db, Lease(run_id=run_id, owner=owner, token=0, left_by=left_by), seconds=seconds, machine=machine
    )


async def _hold(db: Session, lease: Lease, *, seconds: float, machine: Machine) -> Lease:
    token = await next_token(db)
    await db.execute(
        f"UPDATE leases SET owner = ?, token = ?, since = {db.dialect.seconds_from_now},"
        f" until = {db.dialect.lease_end}, boot_id = ?, process = ? WHERE run_id = ?",
        (lease.owner, token, 0, seconds, machine.boot_id(), machine.process(), lease.run_id),
    )
    return Lease(run_id=lease.run_id, owner=lease.owner, token=token, left_by=lease.left_by)


async def next_token(db: Session) -> int:
    row = await db.fetch_one(db.dialect.next_token)
    assert row is not None, "the statement always returns a token"
    return int(row[0])


async def renew(db: Session, lease: Lease, *, seconds: float, machine: Machine) -> None:
    """Extend a lease. Raises `LeaseLost`."""
    renewed = await db.execute(
        f"UPDATE leases SET until = {db.dialect.lease_end}, boot_id = ? WHERE run_id = ? AND owner = ? AND token = ?",
        (seconds, machine.boot_id(), lease.run_id, lease.owner, lease.token),
    )
    if not renewed:
        raise await build_lost(db, lease)


async def release(db: Session, lease: Lease) -> None:
    """Release a lease. A lost lease is not changed."""
    await db.execute(
        "UPDATE leases SET owner = '' WHERE run_id = ? AND owner = ? AND token = ?",
        (lease.run_id, lease.owner, lease.token),
    )


async def check_fence(db: Session, lease: Lease) -> None:
    """Raise `LeaseLost` if another process took over. Until then, even an expired lease is valid."""
    # FOR SHARE: a process that takes over the lease waits until this transaction ends.
    held = await db.fetch_one(
        "SELECT 1 FROM leases WHERE run_id = ? AND owner = ? AND token = ? FOR SHARE",
        (lease.run_id, lease.owner, lease.token),
    )
    if held is None:
        raise await build_lost(db, lease)


async def build_lost(db: Session, lease: Lease) -> LeaseLost:
    row = await db.fetch_one("SELECT owner FROM leases WHERE run_id = ?", (lease.run_id,))
    now = f"{row[0]!r} drives it now" if row is not None and row[0] else "no process drives it now"
    return LeaseLost(
        f"{lease.owner!r} no longer drives run {lease.run_id!r}: {now}; nothing was written",
        hint=f"Follow it with `agent runs watch {lease.run_id}`",
    )


async def check_free(db: Session, run_id: str, machine: Machine) -> str:
    """Lock a free lease and return the holder that did not release it. Raises `RunUnknown` and `LeaseHeld`."""
    row = await db.fetch_one(
        f"SELECT {holding_columns(db.dialect)} FROM leases WHERE run_id = ? FOR UPDATE",
        (run_id,),
    )
    if row is None:
        raise build_unknown_run(run_id)
    holding = build_holding(row)
    if holding.is_free(machine):
        return holding.owner
    raise LeaseHeld(
        f"{holding.owner!r} drives run {run_id!r} since {holding.since:%Y-%m-%d %H:%M:%S} UTC;"
        f" its lease ends in {holding.left_seconds:.1f} s unless it is renewed",
        hint=f"Follow it with `agent runs watch {run_id}`, or stop it with `agent runs cancel {run_id}`",
    )


def build_unknown_run(run_id: str) -> RunUnknown:
    return RunUnknown(f"There is no run {run_id!r}", hint="Run `agent runs list` to list the runs of this workspace")
