"""Leases in SQLite: who drives a run, until when, and the fencing token that every write must carry.

Every function runs inside the caller's transaction.
"""

import sqlite3
from datetime import UTC, datetime

from msgspec import Struct

from metier.ids import Clock
from metier.store.base import Lease
from metier.store.failures import LeaseHeld, LeaseLost, RunUnknown
from metier.store.machine import Machine

_SELECT_FENCE_AND_END = (
    "SELECT owner, token, (SELECT coalesce(max(seq), 0) FROM journal WHERE journal.run_id = leases.run_id)"
    " FROM leases WHERE run_id = ?"
)


class Holding(Struct, frozen=True, kw_only=True):
    """A lease as it is stored."""

    owner: str
    token: int
    since: str
    boot_id: str
    until: float
    process: str

    def is_free(self, machine: Machine) -> bool:
        """No process holds it, its time is over, the machine was restarted, or its process has ended."""
        return (
            not self.owner
            or self.boot_id != machine.boot_id()
            or self.until <= machine.uptime()
            or machine.is_gone(self.process)
        )


def take(
    connection: sqlite3.Connection, run_id: str, *, owner: str, seconds: float, machine: Machine, clock: Clock
) -> Lease:
    if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone() is None:
        raise RunUnknown(f"There is no run {run_id!r}", hint="List the runs with `agent runs list`")
    left_by = check_free(connection, run_id, machine)
    connection.execute("UPDATE fencing SET last_token = last_token + 1")
    token = int(connection.execute("SELECT last_token FROM fencing").fetchone()[0])
    since = clock.now().astimezone(UTC).isoformat(timespec="seconds")
    connection.execute(
        "INSERT OR REPLACE INTO leases (run_id, owner, token, since, boot_id, until, process)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (run_id, owner, token, since, machine.boot_id(), machine.uptime() + seconds, machine.process()),
    )
    return Lease(run_id=run_id, owner=owner, token=token, left_by=left_by)


def renew(connection: sqlite3.Connection, lease: Lease, *, seconds: float, machine: Machine) -> None:
    check_fence(connection, lease)
    connection.execute(
        "UPDATE leases SET boot_id = ?, until = ? WHERE run_id = ?",
        (machine.boot_id(), machine.uptime() + seconds, lease.run_id),
    )


def release(connection: sqlite3.Connection, lease: Lease) -> None:
    connection.execute(
        "UPDATE leases SET owner = '' WHERE run_id = ? AND token = ? AND owner = ?",
        (lease.run_id, lease.token, lease.owner),
    )


def check_fence(connection: sqlite3.Connection, lease: Lease) -> None:
    """Raises `LeaseLost`. An expired lease is still valid while no other process took it: there is no second writer."""
    row = connection.execute("SELECT owner, token FROM leases WHERE run_id = ?", (lease.run_id,)).fetchone()
    if row != (lease.owner, lease.token):
        raise _build_lost(lease, row)


def check_fence_and_end(connection: sqlite3.Connection, lease: Lease) -> int:
    """The same, and where the journal of the run ends: one statement of the two that every append would need."""
    row = connection.execute(_SELECT_FENCE_AND_END, (lease.run_id,)).fetchone()
    if row is None or row[:2] != (lease.owner, lease.token):
        raise _build_lost(lease, row)
    return int(row[2])


def _build_lost(lease: Lease, row: tuple[object, ...] | None) -> LeaseLost:
    now = f"{row[0]!r} drives it now" if row is not None and row[0] else "no process drives it now"
    return LeaseLost(
        f"{lease.owner!r} no longer drives run {lease.run_id!r}: {now}; nothing was written",
        hint=f"Follow it with `agent runs watch {lease.run_id}`",
    )


def check_free(connection: sqlite3.Connection, run_id: str, machine: Machine) -> str:
    """Return the holder that did not release it. Raises `LeaseHeld`, saying who has the run and until when."""
    holding = find_holding(connection, run_id)
    if holding is None or holding.is_free(machine):
        return holding.owner if holding is not None else ""
    since = datetime.fromisoformat(holding.since)
    left = holding.until - machine.uptime()
    raise LeaseHeld(
        f"{holding.owner!r} drives run {run_id!r} since {since:%Y-%m-%d %H:%M:%S} UTC;"
        f" its lease ends in {left:.1f} s unless it is renewed",
        hint=f"Follow it with `agent runs watch {run_id}`, or stop it with `agent runs cancel {run_id}`",
    )


def find_holding(connection: sqlite3.Connection, run_id: str) -> Holding | None:
    row = connection.execute(
        "SELECT owner, token, since, boot_id, until, process FROM leases WHERE run_id = ?", (run_id,)
    ).fetchone()
    return None if row is None else build_holding(row)


def build_holding(row: tuple[str, int, str, str, float, str]) -> Holding:
    owner, token, since, boot_id, until, process = row
    return Holding(owner=owner, token=token, since=since, boot_id=boot_id, until=until, process=process)
