"""Checks of the store contract: journals and the leases that guard them, the run index, approvals and blobs."""

import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any

import anyio

from metier.store.base import RunRow, RunSearch, StoredEntry
from metier.store.failures import (
    ApprovalUnknown,
    BlobUnknown,
    LeaseHeld,
    LeaseLost,
    RunExists,
    RunUnknown,
    SeqTaken,
    StoreDamaged,
    StoreUnavailable,
)
from metier.testing.store_case import (
    NOON,
    Case,
    build_approval,
    build_entries,
    build_run,
    outcomes_of,
    refused,
)


async def check_entries_are_read_as_written(case: Case) -> None:
    lease = await case.start()
    odd = [b"", b"\x00\xff\n", "ünïcode ✓".encode(), b"x" * 3_000_000]
    entries = [StoredEntry(seq, f"kind-{seq}", data) for seq, data in enumerate(odd, start=1)]

    await case.first.append(lease, 1, entries[:3])
    await case.first.append(lease, 4, entries[3:], durable=False)

    assert await case.first.read_journal("r1") == entries
    assert await case.second.read_journal("r1") == entries
    assert await case.second.read_journal("unknown") == []


async def check_a_journal_can_be_read_in_parts(case: Case) -> None:
    lease = await case.start()
    await case.first.append(lease, 1, build_entries(1, 1000), durable=False)

    assert [entry.seq for entry in await case.second.read_journal("r1", after=998)] == [999, 1000]
    assert [entry.seq for entry in await case.second.read_journal("r1", after=3, limit=2)] == [4, 5]
    assert [entry.seq for entry in await case.second.read_journal("r1", limit=600)] == list(range(1, 601))
    assert await case.second.read_journal("r1", limit=0) == []
    assert await case.second.read_journal("r1", after=1000) == []
    assert len(await case.second.read_journal("r1")) == 1000


async def check_journals_of_runs_are_separate(case: Case) -> None:
    one = await case.start("r1")
    two = await case.start("r11")
    await case.first.append(one, 1, build_entries(1, text="one"))
    await case.first.append(two, 1, build_entries(1, text="two"))

    assert await case.first.read_journal("r1") == build_entries(1, text="one")
    assert await case.first.read_journal("r11") == build_entries(1, text="two")


async def check_a_taken_position_is_rejected_and_nothing_is_written(case: Case) -> None:
    lease = await case.start()
    await case.first.append(lease, 1, build_entries(1, 3))

    # In PostgreSQL, an append that need not be durable takes another path.
    for durable in (True, False):
        await refused(SeqTaken, case.second.append(lease, 1, build_entries(1, text="late"), durable=durable))
        await refused(SeqTaken, case.second.append(lease, 3, build_entries(3, 5, text="late"), durable=durable))

    assert await case.first.read_journal("r1") == build_entries(1, 3)


async def check_a_run_starts_with_entries_and_driver_or_not_at_all(case: Case) -> None:
    entries = build_entries(1, 2)
    lease = await case.first.begin_run(build_run("r1"), entries, owner="ann", seconds=case.subject.lease_seconds)

    assert await case.second.read_journal("r1") == entries
    await refused(LeaseHeld, case.second.take_lease("r1", owner="bob", seconds=5))
    await refused(RunExists, case.second.begin_run(build_run("r1"), build_entries(1), owner="bob", seconds=5))
    await case.first.append(lease, 3, build_entries(3))
    await case.first.create_run(build_run("r2"), entries)
    await refused(RunExists, case.second.create_run(build_run("r2"), entries))
    assert await case.second.read_journal("r2") == entries
    assert await case.second.read_journal("r1") == [*entries, *build_entries(3)]


async def check_a_gap_is_rejected(case: Case) -> None:
    lease = await case.start()
    await case.first.append(lease, 1, build_entries(1))

    await refused(StoreDamaged, case.first.append(lease, 3, build_entries(3)))

    assert await case.first.read_journal("r1") == build_entries(1)


async def check_one_of_several_concurrent_writers_wins(case: Case) -> None:
    lease = await case.start()
    for seq in range(1, 21):
        writers = [
            (case.first if number % 2 else case.second).append(
                lease, seq, build_entries(seq, text=f"w{number}"), durable=number == 0
            )
            for number in range(8)
        ]
        assert (await outcomes_of(writers)).count(None) == 1

    assert [entry.seq for entry in await case.first.read_journal("r1")] == list(range(1, 21))


async def check_a_driver_that_lost_its_lease_writes_nothing(case: Case) -> None:
    old = await case.start(owner="ann")
    await case.let_lease_end()
    new = await case.take(owner="bob")

    for durable in (True, False):
        await refused(LeaseLost, case.first.append(old, 1, build_entries(1), durable=durable))
    await refused(LeaseLost, case.first.update_run(old, {"status": "failed"}))
    await refused(LeaseLost, case.first.put_approval(old, build_approval("a1")))
    await refused(LeaseLost, case.first.renew_lease(old, seconds=1000))
    # No error, because a driver releases its lease on every way out. The new lease must stay.
    await case.first.release_lease(old)

    await case.second.append(new, 1, build_entries(1, text="new"))
    assert await case.first.read_journal("r1") == build_entries(1, text="new")
    assert await case.first.list_approvals() == []
    run = await case.first.find_run("r1")
    assert run is not None
    assert (run.status, run.driver) == ("pending", "bob")


# Tokens fence a driver, not the clock: one that was suspended continues if no other process took the run.
async def check_an_expired_lease_that_was_not_taken_over_can_write(case: Case) -> None:
    lease = await case.start()
    await case.let_lease_end()

    await case.first.append(lease, 1, build_entries(1))
    await case.first.renew_lease(lease, seconds=case.subject.lease_seconds)

    await refused(LeaseHeld, case.second.take_lease("r1", owner="bob", seconds=1))


async def check_a_released_lease_cannot_write(case: Case) -> None:
    lease = await case.start()
    await case.first.release_lease(lease)

    await refused(LeaseLost, case.first.append(lease, 1, build_entries(1)))
    await refused(LeaseLost, case.first.renew_lease(lease, seconds=1))
    assert (await case.second.take_lease("r1", owner="bob", seconds=1)).left_by == ""


async def check_an_error_about_a_held_lease_names_its_holder(case: Case) -> None:
    await case.start(owner="ann@host")

    failure = await refused(LeaseHeld, case.second.take_lease("r1", owner="bob", seconds=1))
    # An owner with the same name is refused too: in containers, drivers can share host name and process ID.
    await refused(LeaseHeld, case.second.take_lease("r1", owner="ann@host", seconds=1))

    assert "ann@host" in failure.message
    run = await case.second.find_run("r1")
    assert run is not None
    assert run.driver == "ann@host"


async def check_a_heartbeat_renews_the_lease(case: Case) -> None:
    lease = await case.start()
    seconds = case.subject.lease_seconds
    for _ in range(3):
        await case.subject.pass_seconds(seconds * 0.5)
        await case.first.renew_lease(lease, seconds=seconds)

    await refused(LeaseHeld, case.second.take_lease("r1", owner="bob", seconds=1))
    await case.let_lease_end()
    run = await case.second.find_run("r1")
    assert run is not None
    assert run.driver == ""
    assert (await case.second.take_lease("r1", owner="bob", seconds=1)).left_by == lease.owner


async def check_lease_tokens_only_increase(case: Case) -> None:
    tokens = [(await case.start()).token]
    for _ in range(3):
        await case.let_lease_end()
        lease = await case.take()
        tokens.append(lease.token)
        await case.first.release_lease(lease)
        tokens.append((await case.take(owner="bob")).token)

    assert tokens == sorted(set(tokens))


async def check_a_driver_of_a_deleted_run_cannot_write_to_a_run_of_the_same_id(case: Case) -> None:
    old = await case.start()
    await case.let_lease_end()
    await case.second.delete_run("r1")
    await refused(LeaseLost, case.first.append(old, 1, build_entries(1)))

    # IDs come back: those of child runs and of scheduled runs are derived and not random.
    new = await case.start()

    await refused(LeaseLost, case.first.append(old, 1, build_entries(1)))
    assert new.token > old.token


async def check_one_of_several_concurrent_requests_gets_the_lease(case: Case) -> None:
    for number in range(20):
        run_id = f"r{number}"
        await case.first.create_run(build_run(run_id))
        takers = [
            (case.first if taker % 2 else case.second).take_lease(run_id, owner=f"o{taker}", seconds=1000)
            for taker in range(8)
        ]
        outcomes = await outcomes_of(takers)
        assert outcomes.count(None) == 1
        assert outcomes.count(LeaseHeld) == 7


async def check_a_run_with_a_long_journal_is_created_at_once(case: Case) -> None:
    # More values than the 32,766 of one SQLite statement. An imported run has its whole journal at its start.
    entries = build_entries(1, 9000)

    await case.first.create_run(build_run("r1"), entries)

    assert await case.second.read_journal("r1") == entries


async def check_a_run_is_created_once_and_must_exist_for_a_lease(case: Case) -> None:
    await case.first.create_run(build_run("r1"))

    await refused(RunExists, case.second.create_run(build_run("r1")))
    await refused(RunUnknown, case.second.take_lease("r2", owner="ann", seconds=1))
    await refused(RunUnknown, case.second.delete_run("r2"))
    assert await case.first.find_run("r2") is None
    assert await case.first.find_run("r") is None
    assert await case.first.find_run("") is None


async def check_the_index_stores_every_field(case: Case) -> None:
    row = RunRow(
        run_id="r1",
        context_id="c1",
        status="in_progress",
        task="多 lines\nand 'quotes' \x00",
        agent="writer",
        model="m",
        parent_run_id="r0",
        created_at=NOON,
        updated_at=NOON + timedelta(microseconds=1),
        turns=3,
        cost_usd=0.1,
        tokens=1_200,
        reason="why",
        task_id="review",
    )
    await case.first.create_run(row)
    assert await case.second.find_run("r1") == row

    lease = await case.take(owner="ann")
    await case.first.update_run(
        lease,
        {
            "status": "failed",
            "turns": 4,
            "cost_usd": 1.5,
            # More than 32 bits, which PostgreSQL's INTEGER cannot hold.
            "tokens": 3_000_000_000,
            "reason": "late",
            "model": "n",
            "skill": "s",
            "queue": "q",
        },
    )
    changed = await case.second.find_run("r1")
    assert changed is not None
    assert changed == replace(
        row,
        status="failed",
        turns=4,
        cost_usd=1.5,
        tokens=3_000_000_000,
        reason="late",
        model="n",
        skill="s",
        queue="q",
        driver="ann",
        updated_at=changed.updated_at,
    )


async def check_runs_are_found_by_each_field_and_by_combinations(case: Case) -> None:
    for number in range(8):
        row = replace(
            build_run(f"2026-{number}"),
            agent=("ann", "ben")[number % 2],
            model=("m", "n", "o")[number % 3],
            task=f"Write 100% of note_{number}",
            task_id="review" if number < 2 else "",
            cost_usd=number / 10,
            created_at=NOON + timedelta(hours=number),
            status="completed" if number % 4 else "failed",
        )
        await case.first.create_run(row)
    await case.first.create_run(replace(build_run("child-0a"), task="below"))

    async def find(**wanted: Any) -> list[str]:  # noqa: ANN401 (any field)
        return [row.run_id for row in await case.second.search_runs(RunSearch(**wanted))]

    assert await find(agents=("ann",)) == ["2026-6", "2026-4", "2026-2", "2026-0"]
    assert await find(agents=("ann",), models=("m", "n"), statuses=("completed",)) == ["2026-6"]
    assert await find(not_agents=("ann", ""), not_statuses=("failed",)) == ["2026-7", "2026-5", "2026-3", "2026-1"]
    assert await find(tasks=("review",)) == ["2026-1", "2026-0"]
    assert await find(words=("NOTE_3",)) == await find(words=("2026-3",)) == ["2026-3"]
    assert await find(words=("100%", "write"), not_words=("note_1",), created_before=NOON + timedelta(hours=3)) == [
        "2026-2",
        "2026-0",
    ]
    assert await find(words=("n%3",)) == []
    assert await find(min_cost=0.45, max_cost=0.65) == ["2026-6", "2026-5"]
    assert await find(created_since=NOON + timedelta(hours=6), without_children=True) == ["2026-7", "2026-6"]
    first = await case.first.search_runs(RunSearch(without_children=True), limit=3)
    second = await case.first.search_runs(RunSearch(without_children=True), before=first[-1].number, limit=3)
    assert [row.run_id for row in (*first, *second)] == [f"2026-{number}" for number in (7, 6, 5, 4, 3, 2)]


async def check_invalid_unicode_is_stored_safely(case: Case) -> None:
    # Arguments and file names that are not UTF-8 have lone surrogates in Python, which databases reject.
    await case.first.create_run(replace(build_run("r1"), task="odd \udcff name"))

    run = await case.first.find_run("r1")
    assert run is not None
    assert run.task == "odd ? name"


async def check_runs_are_listed_newest_first_and_filtered(case: Case) -> None:
    for number, run_id in enumerate(["a_1", "a%2", "ab3", "b4"]):
        earlier = replace(build_run(run_id, context_id=f"c{number % 2}"), created_at=NOON - timedelta(days=number))
        await case.first.create_run(earlier)  # the clock jumps back, but the last run is still the newest
    lease = await case.take("ab3")
    await case.first.update_run(lease, {"status": "completed"})

    async def listed(**options: str) -> list[str]:
        return [row.run_id for row in await case.second.list_runs(**options)]  # pyright: ignore[reportArgumentType]

    assert await listed() == ["b4", "ab3", "a%2", "a_1"]
    assert await listed(prefix="a") == ["ab3", "a%2", "a_1"]
    # `%` and `_` are wildcards of LIKE, and in a prefix they are plain characters.
    assert await listed(prefix="a%") == ["a%2"]
    assert await listed(prefix="a_") == ["a_1"]
    assert await listed(prefix="c") == []
    assert await listed(status="completed") == ["ab3"]
    assert await listed(context_id="c1", prefix="a") == ["a%2"]
    assert [row.run_id for row in await case.second.list_runs(limit=2)] == ["b4", "ab3"]
    assert [row.driver for row in await case.second.list_runs(prefix="a")] == ["ann", "", ""]


async def check_a_page_continues_after_the_last_row_of_the_previous_one(case: Case) -> None:
    for number in range(7):
        queue = "odd" if number % 2 else ""
        await case.first.create_run(replace(build_run(f"r{number}"), queue=queue))
    lease = await case.start("r7")
    for number in range(5):
        await case.first.put_approval(lease, build_approval(f"a{number}", "r7"))

    seen: list[str] = []
    page = await case.second.list_runs(limit=3)
    while page:
        seen += [row.run_id for row in page]
        page = await case.second.list_runs(before=page[-1].number, limit=3)
    asked: list[str] = []
    approvals = await case.second.list_approvals(status="open", limit=2)
    while approvals:
        asked += [row.approval_id for row in approvals]
        approvals = await case.second.list_approvals(status="open", after=approvals[-1].number, limit=2)

    assert seen == [f"r{number}" for number in (7, 6, 5, 4, 3, 2, 1, 0)]
    assert asked == ["a0", "a1", "a2", "a3", "a4"]
    assert [row.run_id for row in await case.second.list_runs(queue="odd", status="pending")] == ["r5", "r3", "r1"]


async def check_approvals_are_found_by_a_prefix_of_their_id(case: Case) -> None:
    lease = await case.start()
    for approval_id in ("a%1", "a_2", "ab3", "b4"):
        await case.first.put_approval(lease, build_approval(approval_id))

    async def found(prefix: str, limit: int = 2) -> list[str]:
        return [row.approval_id for row in await case.second.find_approvals(prefix, limit=limit)]

    assert await found("a", 5) == ["a%1", "a_2", "ab3"]
    assert await found("a") == ["a%1", "a_2"]
    assert await found("a_") == ["a_2"]
    assert await found("b4") == ["b4"]
    assert await found("c") == []


async def check_ended_runs_are_found_and_deleted_in_batches(case: Case) -> None:
    for number in range(5):
        lease = await case.start(f"r{number}")
        await case.first.append(lease, 1, build_entries(1, 2))
        await case.first.update_run(lease, {"status": "completed" if number != 2 else "paused"})
        if number != 3:
            await case.first.release_lease(lease)
    for run_id, parent in (("child-1", "r2"), ("child-2", "r1")):
        await case.first.create_run(replace(build_run(run_id), parent_run_id=parent))
        lease = await case.take(run_id)
        await case.first.update_run(lease, {"status": "failed"})
        await case.first.release_lease(lease)
    later = NOON + timedelta(days=365)

    first = await case.second.list_ended(updated_before=later, limit=2)
    rest = await case.second.list_ended(updated_before=later, after=first[-1])
    below = await case.second.list_ended(updated_before=later, number_below=first[1].number)
    deleted = await case.second.delete_runs([row.run_id for row in (*first, *rest)] + ["unknown"])
    await case.second.reclaim()

    # r2 continues, child-1 belongs to it, and r3 is being driven.
    assert [row.run_id for row in (*first, *rest)] == ["r0", "r1", "r3", "r4", "child-2"]
    assert [row.run_id for row in below] == ["r0"]
    assert sorted(deleted) == ["child-2", "r0", "r1", "r4"]
    assert [row.run_id for row in await case.first.list_runs()] == ["child-1", "r3", "r2"]
    assert await case.first.read_journal("r0") == []
    assert await case.second.list_ended(updated_before=NOON - timedelta(days=365)) == []


async def check_the_first_decision_counts(case: Case) -> None:
    lease = await case.start()
    row = build_approval("a1")
    await case.first.put_approval(lease, row)
    assert await case.second.list_approvals(run_id="r1", status="open") == [row]

    decided = await case.second.decide_approval(
        "a1", status="approved", decided_by="bob", reason="fine", edited_payload=b"{}"
    )
    again = await case.first.decide_approval("a1", status="denied", decided_by="eve")
    # A step that is repeated after a kill asks again, which must not reopen its approval.
    await case.first.put_approval(lease, row)

    assert (decided, again) == (True, False)
    expected = replace(row, status="approved", decided_by="bob", reason="fine", edited_payload=b"{}")
    assert await case.first.list_approvals() == [expected]
    assert await case.first.list_approvals(status="open") == []
    attempts = [(one.decided_by, one.status, one.counted) for one in await case.second.list_attempts("a1")]
    assert attempts == [("bob", "approved", True), ("eve", "denied", False)]
    decisions = await case.second.list_decisions()
    assert [(one.attempt.decided_by, one.run_id, one.payload) for one in decisions] == [
        ("eve", "r1", row.payload),
        ("bob", "r1", row.payload),
    ]
    assert await case.first.list_decisions(before=decisions[0].number) == decisions[1:]
    assert await case.first.list_decisions(status="denied") == decisions[:1]
    assert await case.first.list_decisions(decided_by="bob", limit=1) == decisions[1:]
    assert await case.first.list_approvals(run_id="r2") == []
    await refused(ApprovalUnknown, case.first.decide_approval("a2", status="denied", decided_by="eve"))


async def check_one_of_several_concurrent_decisions_counts(case: Case) -> None:
    lease = await case.start()
    winners: list[str] = []

    async def decide(number: int) -> None:
        store = case.first if number % 2 else case.second
        if await store.decide_approval(approval_id, status="approved", decided_by=f"p{number}"):
            winners.append(f"p{number}")

    for round_number in range(10):
        approval_id = f"a{round_number}"
        await case.first.put_approval(lease, build_approval(approval_id))
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(decide, number)

    assert [row.decided_by for row in await case.first.list_approvals()] == winners


async def check_blobs_are_read_as_written_and_stored_once(case: Case) -> None:
    for data in (b"", b"small", b"\x00" * 70_000, bytes(range(256)) * 20_000):
        digest = await case.first.put_blob(data)
        assert digest == hashlib.sha256(data).hexdigest()
        assert await case.second.put_blob(data) == digest
        assert await case.second.get_blob(digest) == data

    for unknown in ("0" * 64, "", "not a digest"):
        await refused(BlobUnknown, case.first.get_blob(unknown))


async def check_the_same_large_blob_can_be_stored_concurrently(case: Case) -> None:
    data = bytes(range(256)) * 12_000
    digest = hashlib.sha256(data).hexdigest()

    outcomes = await outcomes_of([store.put_blob(data) for store in (case.first, case.second, case.first, case.second)])

    assert outcomes == [None] * 4
    assert await case.first.get_blob(digest) == data


async def check_deleting_a_run_removes_all_its_data(case: Case) -> None:
    lease = await case.start()
    await case.first.append(lease, 1, build_entries(1, 5))
    await case.first.put_approval(lease, build_approval("a1"))
    await refused(LeaseHeld, case.second.delete_run("r1"))
    await case.first.release_lease(lease)

    await case.second.delete_run("r1")

    assert await case.first.find_run("r1") is None
    assert await case.first.read_journal("r1") == []
    assert await case.first.list_approvals() == []
    await refused(RunUnknown, case.first.delete_run("r1"))


async def check_blobs_are_deleted_with_the_last_run_that_refers_to_them(case: Case) -> None:
    shared, own, fresh = [await case.first.put_blob(text) for text in (b"shared", b"own" * 50_000, b"fresh")]
    one, two = await case.start("r1"), await case.start("r2")
    await case.first.append(one, 1, [StoredEntry(1, "note", f'["{shared}", "sha256:{own}"]'.encode())])
    await case.first.append(two, 1, [StoredEntry(1, "note", f'{{"pin": "{shared}"}}'.encode())])
    await case.subject.pass_seconds(case.subject.blob_grace_seconds * 1.01)
    assert await case.first.put_blob(b"fresh") == fresh  # stored again, and about to be referenced
    await case.first.release_lease(one)

    await case.first.delete_run("r1")

    assert await case.second.get_blob(shared) == b"shared"
    assert await case.second.get_blob(fresh) == b"fresh"
    await refused(BlobUnknown, case.second.get_blob(own))


async def check_a_blob_stays_if_the_reason_of_a_new_run_refers_to_it(case: Case) -> None:
    wanted = await case.first.put_blob(b"wanted")
    await case.first.create_run(replace(build_run("r1"), reason=f"request:{wanted}"))
    await case.start("r2")
    await case.first.update_run(await case.take("r1"), {"reason": ""})
    await case.subject.pass_seconds(case.subject.blob_grace_seconds * 1.01)

    await case.first.delete_run("r2")

    assert await case.second.get_blob(wanted) == b"wanted"


async def check_two_hundred_runs_at_once(case: Case) -> None:
    async def drive(number: int) -> None:
        store = case.first if number % 2 else case.second
        run_id = f"run-{number:03}"
        await store.create_run(build_run(run_id))
        lease = await store.take_lease(run_id, owner=f"o{number}", seconds=1000)
        for seq in range(1, 11):
            await store.append(lease, seq, build_entries(seq), durable=seq == 10 and number % 10 == 0)
            await store.renew_lease(lease, seconds=1000)
        await store.update_run(lease, {"status": "completed", "turns": 10})
        await store.release_lease(lease)

    async with anyio.create_task_group() as tasks:
        for number in range(200):
            tasks.start_soon(drive, number)

    runs = await case.first.list_runs(limit=500, status="completed")
    assert len(runs) == 200
    for run in runs:
        assert await case.first.read_journal(run.run_id) == build_entries(1, 10)


async def check_a_closed_store_raises_an_error(case: Case) -> None:
    lease = await case.start()
    await case.first.close()
    await case.first.close()

    await refused(StoreUnavailable, case.first.append(lease, 1, build_entries(1)))
    await refused(StoreUnavailable, case.first.read_journal("r1"))
    await refused(StoreUnavailable, case.first.find_run("r1"))
    await refused(StoreUnavailable, case.first.put_blob(b"x"))
    assert await case.second.find_run("r1") is not None
