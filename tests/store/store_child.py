"""A process that works on a store: one JSON command and one JSON answer per line."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import anyio

from metier.errors import MetierError
from metier.store.base import Lease, StoredEntry
from metier.store.sqlite.store import SqliteStore, open_sqlite_store
from metier.testing.store_case import build_run


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


async def act(store: SqliteStore, command: dict[str, Any]) -> dict[str, object]:
    match command:
        case {"do": "take", "run": str(run), "owner": str(owner)}:
            lease = await store.take_lease(run, owner=owner, seconds=600)
            return {"token": lease.token}
        case {"do": "append", "run": str(run), "owner": str(owner), "token": int(token), "seq": int(seq)}:
            lease = Lease(run_id=run, owner=owner, token=token)
            entry = StoredEntry(seq, "note", command.get("text", "x").encode() * int(command.get("times", 1)))
            await store.append(lease, seq, [entry], durable=bool(command.get("durable")))
            return {"seq": seq}
        case _:
            raise AssertionError(command)


async def answer_commands(path: Path) -> None:
    store = await open_sqlite_store(path)
    say(ready=True)
    for line in sys.stdin:
        try:
            answer = await act(store, json.loads(line))
        except MetierError as failure:
            answer = {"failed": type(failure).__name__, "message": failure.message}
        say(**answer)
    await store.close()


async def append_for_ever(path: Path, run: str) -> None:
    """Append entries and acknowledge each after `append` returns; every third one is synced."""
    store = await open_sqlite_store(path)
    lease = await store.take_lease(run, owner="child", seconds=600)
    seq = len(await store.read_journal(run))
    while True:
        seq += 1
        await store.append(lease, seq, [StoredEntry(seq, "note", f"entry {seq} ".encode() * 50)], durable=seq % 3 == 0)
        say(seq=seq)


async def fill(path: Path, filler: Path) -> None:
    """Append until the disk is full, record it, free space, continue."""
    store = await open_sqlite_store(path)
    ballast = path.with_name("state.db.ballast")
    had_ballast = ballast.exists()
    await store.create_run(build_run("r1"))
    await store.create_run(build_run("old"))
    old = await store.take_lease("old", owner="child", seconds=600)
    await store.append(old, 1, [StoredEntry(seq, "note", b"x" * 30_000) for seq in range(1, 31)])
    await store.release_lease(old)
    lease = await store.take_lease("r1", owner="child", seconds=600)
    seq, failure = 0, ""
    while not failure and seq < 2000:
        try:
            await store.append(lease, seq + 1, [StoredEntry(seq + 1, "note", b"x" * 48_000)], durable=seq % 2 == 0)
            seq += 1
        except MetierError as error:
            failure = f"{type(error).__name__}: {error.hint}"
    kept = len(await store.read_journal("r1"))
    released = not ballast.exists()
    await store.append(lease, seq + 1, [StoredEntry(seq + 1, "paused", b"{}")])
    await store.delete_run("old")
    await anyio.Path(filler).unlink()
    await store.append(lease, seq + 2, [StoredEntry(seq + 2, "note", b"x" * 500_000)])
    await store.release_lease(lease)
    await store.take_lease("r1", owner="again", seconds=1)
    total = len(await store.read_journal("r1"))
    say(
        had_ballast=had_ballast,
        failure=failure,
        lost=seq - kept,
        deleted_while_full=await store.find_run("old") is None,
        released=released,
        total_matches=total == seq + 2,
        restored=ballast.exists(),
    )


async def hit_the_size_limit(path: Path) -> None:
    """Write to a file that cannot grow, like with a quota."""
    store = await open_sqlite_store(path)
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="child", seconds=600)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
    seq, failure = 0, ""
    while not failure and seq < 2000:
        try:
            await store.append(lease, seq + 1, [StoredEntry(seq + 1, "note", b"x" * 16_000)], durable=False)
            seq += 1
        except MetierError as error:
            failure = type(error).__name__
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.append(lease, seq + 1, [StoredEntry(seq + 1, "note", b"x" * 500_000)])
    say(failure=failure, entries=seq, total_matches=len(await store.read_journal("r1")) == seq + 1)


async def open_only(path: Path) -> None:
    try:
        await open_sqlite_store(path)
    except MetierError as failure:
        say(failed=type(failure).__name__, message=failure.message, hint=failure.hint)
    else:
        say(ready=True)


def main() -> None:
    what, path, *rest = sys.argv[1:]
    match what:
        case "commands":
            anyio.run(answer_commands, Path(path))
        case "append":
            anyio.run(append_for_ever, Path(path), rest[0])
        case "fill":
            anyio.run(fill, Path(path), Path(rest[0]))
        case "limit":
            anyio.run(hit_the_size_limit, Path(path))
        case "open":
            anyio.run(open_only, Path(path))
        case _:
            raise AssertionError(what)


if __name__ == "__main__":
    main()
