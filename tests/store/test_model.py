"""Random operations of several owners on two handles match an in-memory model."""

import asyncio
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, initialize, invariant, multiple, rule

from metier.errors import MetierError
from metier.store.base import Lease
from metier.store.failures import ApprovalUnknown, LeaseHeld, LeaseLost, RunExists, RunUnknown, SeqTaken, StoreDamaged
from metier.store.sqlite.store import SqliteStore, open_sqlite_store
from metier.testing.fake_machine import FakeMachine
from metier.testing.store_case import build_approval, build_entries, build_run

pytestmark = pytest.mark.slow

RUNS = st.sampled_from(["r1", "r2"])
OWNERS = st.sampled_from(["ann", "bob", "eve"])
HANDLES = st.integers(0, 1)
NOTHING: MultipleResults[Lease] = multiple()
SECONDS = st.sampled_from([1.0, 10.0, 60.0])


@dataclass
class ModelRun:
    journal: list[str] = field(default_factory=list)
    token: int = 0
    until: float = 0.0
    driver: str = ""
    approvals: dict[str, str] = field(default_factory=dict)


class StoreModel(RuleBasedStateMachine):
    leases = Bundle[Lease]("leases")

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.machine = FakeMachine()
        self.loop = asyncio.Runner()
        path = Path(self.folder.name) / "state.db"
        self.handles = [
            self.loop.run(open_sqlite_store(path, clock=self.machine, machine=self.machine)) for _ in range(2)
        ]
        self.runs: dict[str, ModelRun] = {}
        self.last_token = 0

    def teardown(self) -> None:
        for store in self.handles:
            self.loop.run(store.close())
        self.loop.close()
        self.folder.cleanup()

    def outcome[T](self, call: Coroutine[None, None, T]) -> T | type[MetierError]:
        try:
            return self.loop.run(call)
        except MetierError as failure:
            return type(failure)

    def holds(self, lease: Lease) -> bool:
        run = self.runs.get(lease.run_id)
        return run is not None and run.token == lease.token and run.driver == lease.owner

    def is_held(self, run: ModelRun) -> bool:
        return bool(run.driver) and run.until > self.machine.seconds

    @rule(handle=HANDLES, run_id=RUNS)
    def create(self, handle: int, run_id: str) -> None:
        expected = RunExists if run_id in self.runs else None
        assert self.outcome(self.handles[handle].create_run(build_run(run_id))) == expected
        self.runs.setdefault(run_id, ModelRun())

    @rule(target=leases, handle=HANDLES, run_id=RUNS, owner=OWNERS, seconds=SECONDS)
    def take(self, *, handle: int, run_id: str, owner: str, seconds: float) -> Lease | MultipleResults[Lease]:
        got = self.outcome(self.handles[handle].take_lease(run_id, owner=owner, seconds=seconds))
        run = self.runs.get(run_id)
        if run is None or self.is_held(run):
            assert got is (RunUnknown if run is None else LeaseHeld)
            return NOTHING
        assert isinstance(got, Lease)
        assert got.token > self.last_token
        run.driver, run.token, run.until = owner, got.token, self.machine.seconds + seconds
        self.last_token = got.token
        return got

    @rule(handle=HANDLES, lease=leases, seconds=SECONDS)
    def renew(self, handle: int, lease: Lease, seconds: float) -> None:
        got = self.outcome(self.handles[handle].renew_lease(lease, seconds=seconds))
        assert got is (None if self.holds(lease) else LeaseLost)
        if self.holds(lease):
            self.runs[lease.run_id].until = self.machine.seconds + seconds

    @rule(handle=HANDLES, lease=leases)
    def release(self, handle: int, lease: Lease) -> None:
        assert self.outcome(self.handles[handle].release_lease(lease)) is None
        if self.holds(lease):
            self.runs[lease.run_id].driver = ""

    @rule(handle=HANDLES, lease=leases, ahead=st.integers(-2, 1), count=st.integers(1, 3), durable=st.booleans())
    def append(self, *, handle: int, lease: Lease, ahead: int, count: int, durable: bool) -> None:
        run = self.runs.get(lease.run_id, ModelRun())
        first = max(1, len(run.journal) + 1 + ahead)
        entries = build_entries(first, count, text=f"{lease.owner}-{lease.token}")
        expected: type[MetierError] | None = None
        if not self.holds(lease):
            expected = LeaseLost
        elif first != len(run.journal) + 1:
            expected = SeqTaken if first <= len(run.journal) else StoreDamaged

        assert self.outcome(self.handles[handle].append(lease, first, entries, durable=durable)) is expected
        if expected is None:
            run.journal += [entry.data.decode() for entry in entries]

    @rule(handle=HANDLES, lease=leases, number=st.integers(1, 2))
    def ask(self, handle: int, lease: Lease, number: int) -> None:
        row = build_approval(f"{lease.run_id}-a{number}", lease.run_id)
        got = self.outcome(self.handles[handle].put_approval(lease, row))
        assert got is (None if self.holds(lease) else LeaseLost)
        if self.holds(lease):
            self.runs[lease.run_id].approvals.setdefault(row.approval_id, "open")

    @rule(handle=HANDLES, run_id=RUNS, number=st.integers(1, 2), yes=st.booleans())
    def decide(self, *, handle: int, run_id: str, number: int, yes: bool) -> None:
        status: Literal["approved", "denied"] = "approved" if yes else "denied"
        approval_id = f"{run_id}-a{number}"
        got = self.outcome(self.handles[handle].decide_approval(approval_id, status=status, decided_by="pat"))
        known = self.runs.get(run_id, ModelRun()).approvals
        if approval_id not in known:
            assert got is ApprovalUnknown
            return
        assert got is (known[approval_id] == "open")
        if got:
            known[approval_id] = status

    @rule(handle=HANDLES, run_id=RUNS)
    def delete(self, handle: int, run_id: str) -> None:
        got = self.outcome(self.handles[handle].delete_run(run_id))
        run = self.runs.get(run_id)
        if run is None or self.is_held(run):
            assert got is (RunUnknown if run is None else LeaseHeld)
            return
        assert got is None
        del self.runs[run_id]

    @rule(seconds=st.sampled_from([0.5, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.loop.run(self.machine.pass_seconds(seconds))

    @rule()
    def the_machine_restarts(self) -> None:
        self.machine.restart()
        for run in self.runs.values():
            run.until = 0.0

    @rule(handle=HANDLES)
    def reopen(self, handle: int) -> None:
        path = Path(self.folder.name) / "state.db"
        self.loop.run(self.handles[handle].close())
        self.handles[handle] = self.loop.run(open_sqlite_store(path, clock=self.machine, machine=self.machine))

    @invariant()
    def both_handles_see_the_model(self) -> None:
        for store in self.handles:
            self.loop.run(self.check(store))

    async def check(self, store: SqliteStore) -> None:
        assert {row.run_id: row.driver for row in await store.list_runs()} == {
            run_id: run.driver if self.is_held(run) else "" for run_id, run in self.runs.items()
        }
        for run_id, run in self.runs.items():
            assert [entry.data.decode() for entry in await store.read_journal(run_id)] == run.journal
            approvals = {row.approval_id: row.status for row in await store.list_approvals(run_id=run_id)}
            assert approvals == run.approvals


StoreModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_store_does_what_the_model_does = StoreModel.TestCase
