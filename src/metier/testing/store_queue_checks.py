"""Checks of the store contract: runs that workers claim, and waiting for what another process writes."""

from dataclasses import replace

import anyio

from metier.decisions import TaskState
from metier.store.base import Lease
from metier.store.failures import LeaseHeld, LeaseLost, RunUnknown
from metier.testing.store_case import Case, Check, build_entries, build_run, refused


async def _queue(case: Case, run_id: str, *, queue: str = "q", status: TaskState = "pending") -> None:
    await case.first.create_run(replace(build_run(run_id), queue=queue, status=status))


async def _claim(case: Case, owner: str = "w", *, queue: str = "q") -> str:
    lease = await case.second.claim_run(queue=queue, owner=owner, seconds=case.subject.lease_seconds)
    return lease.run_id if lease else ""


async def runs_of_a_queue_are_claimed_oldest_first(case: Case) -> None:
    for run_id in ("r2", "r1", "r3"):
        await _queue(case, run_id)
    await _queue(case, "other", queue="elsewhere")
    await _queue(case, "mine", queue="")
    stale = await case.first.list_stale(queue="q")
    assert [(row.run_id, row.queue) for row in stale] == [("r2", "q"), ("r1", "q"), ("r3", "q")]
    assert [row.run_id for row in await case.first.list_stale(queue="q", limit=1)] == ["r2"]

    assert [await _claim(case) for _ in range(4)] == ["r2", "r1", "r3", ""]

    assert await case.first.list_stale(queue="q") == []
    assert await case.first.list_stale(queue="") == []
    await refused(LeaseHeld, case.first.take_lease("r1", owner="me", seconds=1))


async def only_runs_that_can_go_on_are_claimed(case: Case) -> None:
    for status in ("completed", "failed", "paused", "input_required", "delegating", "canceled"):
        await _queue(case, f"r-{status}", status=status)
    assert await _claim(case) == ""
    await _queue(case, "r1", status="in_progress")

    lease = await case.second.claim_run(queue="q", owner="w", seconds=1000)
    assert lease is not None
    await case.second.update_run(lease, {"status": "paused"})
    await case.second.release_lease(lease)

    assert await _claim(case) == ""


async def a_run_whose_worker_is_gone_is_claimed_by_another(case: Case) -> None:
    await _queue(case, "r1")
    old = await case.first.claim_run(queue="q", owner="old", seconds=case.subject.lease_seconds)
    assert old is not None
    await case.first.append(old, 1, build_entries(1))
    assert await _claim(case) == ""

    await case.let_lease_end()
    assert [row.run_id for row in await case.first.list_stale(queue="q")] == ["r1"]
    new = await case.second.claim_run(queue="q", owner="new", seconds=1000)

    assert new is not None
    assert new.token > old.token
    assert (old.left_by, new.left_by) == ("", "old")
    await refused(LeaseLost, case.first.append(old, 2, build_entries(2)))
    await case.second.append(new, 2, build_entries(2))


async def of_many_that_claim_each_gets_another_run(case: Case) -> None:
    for number in range(20):
        await _queue(case, f"r{number:02}")
    claimed: list[Lease] = []

    async def work(number: int) -> None:
        store = case.first if number % 2 else case.second
        while (lease := await store.claim_run(queue="q", owner=f"w{number}", seconds=1000)) is not None:
            claimed.append(lease)

    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(work, number)

    assert sorted(lease.run_id for lease in claimed) == [f"r{number:02}" for number in range(20)]
    assert len({lease.token for lease in claimed}) == 20


async def whoever_waits_for_entries_hears_of_them(case: Case) -> None:
    lease = await case.start()
    heard: list[bool] = []

    async def listen() -> None:
        heard.append(await case.second.wait_for_entries("r1", after=1, seconds=60))

    await case.first.append(lease, 1, build_entries(1))
    with anyio.fail_after(60):
        assert await case.second.wait_for_entries("r1", after=0, seconds=60)
        assert not await case.second.wait_for_entries("r1", after=1, seconds=0.05)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            await case.first.append(lease, 2, build_entries(2), durable=False)

    assert heard == [True] * 3


async def word_for_whoever_drives_is_kept_the_first_one(case: Case) -> None:
    await refused(RunUnknown, case.second.ask_to_end("r1", "soon"))
    lease = await case.start()
    row = await case.first.find_run("r1")
    assert row is not None
    assert row.ending == ""

    await case.second.ask_to_end("r1", 'at once, "please" 多 \x00')
    await case.second.ask_to_end("r1", "never mind")

    await case.first.append(lease, 1, build_entries(1))  # the driver still has it
    await case.first.update_run(lease, {"status": "paused"})
    for store in (case.first, case.second):
        assert [row.ending for row in await store.list_runs()] == ['at once, "please" 多 \x00']


QUEUE_CHECKS: tuple[Check, ...] = (
    runs_of_a_queue_are_claimed_oldest_first,
    only_runs_that_can_go_on_are_claimed,
    a_run_whose_worker_is_gone_is_claimed_by_another,
    of_many_that_claim_each_gets_another_run,
    whoever_waits_for_entries_hears_of_them,
    word_for_whoever_drives_is_kept_the_first_one,
)
