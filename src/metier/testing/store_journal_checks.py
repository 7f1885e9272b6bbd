"""Checks of the store contract: the journal, and leases that say who may write it."""

from metier.store.base import StoredEntry
from metier.store.failures import LeaseHeld, LeaseLost, RunExists, SeqTaken, StoreDamaged
from metier.testing.store_case import Case, Check, build_approval, build_entries, build_run, outcomes_of, refused


async def entries_come_back_exactly(case: Case) -> None:
    lease = await case.start()
    odd = [b"", b"\x00\xff\n", "ünïcode ✓".encode(), b"x" * 3_000_000]
    entries = [StoredEntry(seq, f"kind-{seq}", data) for seq, data in enumerate(odd, start=1)]

    await case.first.append(lease, 1, entries[:3])
    await case.first.append(lease, 4, entries[3:], durable=False)

    assert await case.first.read_journal("r1") == entries
    assert await case.second.read_journal("r1") == entries
    assert await case.second.read_journal("unknown") == []


async def reading_starts_and_stops_where_it_is_told(case: Case) -> None:
    lease = await case.start()
    await case.first.append(lease, 1, build_entries(1, 1000), durable=False)

    assert [entry.seq for entry in await case.second.read_journal("r1", after=998)] == [999, 1000]
    assert [entry.seq for entry in await case.second.read_journal("r1", after=3, limit=2)] == [4, 5]
    assert [entry.seq for entry in await case.second.read_journal("r1", limit=600)] == list(range(1, 601))
    assert await case.second.read_journal("r1", limit=0) == []
    assert await case.second.read_journal("r1", after=1000) == []
    assert len(await case.second.read_journal("r1")) == 1000


async def journals_of_runs_do_not_mix(case: Case) -> None:
    one = await case.start("r1")
    two = await case.start("r11")
    await case.first.append(one, 1, build_entries(1, text="one"))
    await case.first.append(two, 1, build_entries(1, text="two"))

    assert await case.first.read_journal("r1") == build_entries(1, text="one")
    assert await case.first.read_journal("r11") == build_entries(1, text="two")


async def a_taken_place_is_refused_and_nothing_is_written(case: Case) -> None:
    lease = await case.start()
    await case.first.append(lease, 1, build_entries(1, 3))

    for durable in (True, False):
        await refused(SeqTaken, case.second.append(lease, 1, build_entries(1, text="late"), durable=durable))
        await refused(SeqTaken, case.second.append(lease, 3, build_entries(3, 5, text="late"), durable=durable))

    assert await case.first.read_journal("r1") == build_entries(1, 3)


async def a_run_begins_with_its_entries_and_a_driver_or_not_at_all(case: Case) -> None:
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


async def a_gap_is_refused(case: Case) -> None:
    lease = await case.start()
    await case.first.append(lease, 1, build_entries(1))

    await refused(StoreDamaged, case.first.append(lease, 3, build_entries(3)))

    assert await case.first.read_journal("r1") == build_entries(1)


async def of_many_writers_at_one_place_one_wins(case: Case) -> None:
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


async def a_driver_whose_lease_was_taken_writes_nothing(case: Case) -> None:
    old = await case.start(owner="ann")
    await case.let_lease_end()
    new = await case.take(owner="bob")

    for durable in (True, False):
        await refused(LeaseLost, case.first.append(old, 1, build_entries(1), durable=durable))
    await refused(LeaseLost, case.first.update_run(old, {"status": "failed"}))
    await refused(LeaseLost, case.first.put_approval(old, build_approval("a1")))
    await refused(LeaseLost, case.first.renew_lease(old, seconds=1000))
    await case.first.release_lease(old)

    await case.second.append(new, 1, build_entries(1, text="new"))
    assert await case.first.read_journal("r1") == build_entries(1, text="new")
    assert await case.first.list_approvals() == []
    run = await case.first.find_run("r1")
    assert run is not None
    assert (run.status, run.driver) == ("pending", "bob")


async def a_lease_that_ended_but_that_nobody_took_still_writes(case: Case) -> None:
    lease = await case.start()
    await case.let_lease_end()

    await case.first.append(lease, 1, build_entries(1))
    await case.first.renew_lease(lease, seconds=case.subject.lease_seconds)

    await refused(LeaseHeld, case.second.take_lease("r1", owner="bob", seconds=1))


async def a_lease_given_back_writes_no_more(case: Case) -> None:
    lease = await case.start()
    await case.first.release_lease(lease)

    await refused(LeaseLost, case.first.append(lease, 1, build_entries(1)))
    await refused(LeaseLost, case.first.renew_lease(lease, seconds=1))
    assert (await case.second.take_lease("r1", owner="bob", seconds=1)).left_by == ""


async def a_held_lease_names_its_holder(case: Case) -> None:
    await case.start(owner="ann@host")

    failure = await refused(LeaseHeld, case.second.take_lease("r1", owner="bob", seconds=1))
    await refused(LeaseHeld, case.second.take_lease("r1", owner="ann@host", seconds=1))

    assert "ann@host" in failure.message
    run = await case.second.find_run("r1")
    assert run is not None
    assert run.driver == "ann@host"


async def a_heartbeat_keeps_the_lease(case: Case) -> None:
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


async def tokens_only_grow(case: Case) -> None:
    tokens = [(await case.start()).token]
    for _ in range(3):
        await case.let_lease_end()
        lease = await case.take()
        tokens.append(lease.token)
        await case.first.release_lease(lease)
        tokens.append((await case.take(owner="bob")).token)

    assert tokens == sorted(set(tokens))


async def a_driver_of_a_deleted_run_cannot_write_into_its_namesake(case: Case) -> None:
    old = await case.start()
    await case.let_lease_end()
    await case.second.delete_run("r1")
    await refused(LeaseLost, case.first.append(old, 1, build_entries(1)))

    new = await case.start()

    await refused(LeaseLost, case.first.append(old, 1, build_entries(1)))
    assert new.token > old.token


async def of_many_that_want_a_lease_one_gets_it(case: Case) -> None:
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


async def a_run_with_a_long_journal_is_created_at_once(case: Case) -> None:
    """As an import does it."""
    entries = build_entries(1, 9000)

    await case.first.create_run(build_run("r1"), entries)

    assert await case.second.read_journal("r1") == entries


JOURNAL_CHECKS: tuple[Check, ...] = (
    a_run_with_a_long_journal_is_created_at_once,
    entries_come_back_exactly,
    reading_starts_and_stops_where_it_is_told,
    journals_of_runs_do_not_mix,
    a_taken_place_is_refused_and_nothing_is_written,
    a_run_begins_with_its_entries_and_a_driver_or_not_at_all,
    a_gap_is_refused,
    of_many_writers_at_one_place_one_wins,
    a_driver_whose_lease_was_taken_writes_nothing,
    a_lease_that_ended_but_that_nobody_took_still_writes,
    a_lease_given_back_writes_no_more,
    a_held_lease_names_its_holder,
    a_heartbeat_keeps_the_lease,
    tokens_only_grow,
    a_driver_of_a_deleted_run_cannot_write_into_its_namesake,
    of_many_that_want_a_lease_one_gets_it,
)
