"""The door to runs: start, resume, answer, cancel, find. Every interface comes through here; it delegates."""

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio
from anyio.to_thread import run_sync
from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import ValidationError

from metier.approval.reading import is_reading
from metier.decisions import ActionStep, TaskState
from metier.engine.decide import is_planned
from metier.engine.entries.entry import Entry
from metier.engine.entries.run import ModelChanged, RunFailed, RunPaused
from metier.engine.journal import RunLog, read_entries, store_entries
from metier.engine.loop import LEASE_SECONDS, Driver, LeaseKeeper, drive, hold_lease
from metier.engine.model.skill_selection import report_skill_problems
from metier.engine.services import Services
from metier.engine.state.authority import find_authority
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import ConfigError, StoreError, UsageError, unwrapped
from metier.events.run import PinnedDefinitionUsed
from metier.ids import CHILD
from metier.providers.base import Observer
from metier.providers.connection import SharedClients
from metier.providers.stand_ins import AbsentProvider
from metier.runtime.adoption import adopt_run, build_adoption, check_commission
from metier.runtime.build import build_services, check_budget
from metier.runtime.checks.present_policy import look_at_call, refuse_edited
from metier.runtime.child_runs import (
    ChildRunStart,
    find_all_waiting,
    find_waiting,
    follow_children,
    lend,
    prepare_run,
    restore_run,
    use_settings,
)
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.confinement import open_confinement
from metier.runtime.delegation.worktrees import enter_worktree, remove_ended
from metier.runtime.first_entry import build_start
from metier.runtime.host import Host
from metier.runtime.lease_terms import LeaseHolder, LeaseTerms, begin_attempt, is_left_alone, keep_claimable
from metier.runtime.notify.announcements import Announcer, check_notify
from metier.runtime.notify.delivery import delivering
from metier.runtime.questions.answers import (
    Addressed,
    Answer,
    ChangedCode,
    CodeAsker,
    address,
    list_answers,
    one_at_a_time,
    record_pause,
    settle_code,
    take_answer,
)
from metier.runtime.questions.approval_questions import Approvals, Asker, ask_person, can_ask
from metier.runtime.questions.resumption import (
    build_entries,
    build_model_change,
    can_change_model,
    can_reopen,
    check_model_change,
    check_raise,
    find_chain,
    find_retried,
)
from metier.runtime.records.pins import pin
from metier.runtime.records.record import build_row, is_current, write_record
from metier.runtime.records.run_folders import find_folder
from metier.runtime.records.run_log import LogOpening, describe_lost_run, find_lost_run, open_run_log, tell_of_cuts
from metier.runtime.records.signatures import is_started_here, seal
from metier.runtime.records.usage import record_usage
from metier.runtime.requests import RunRequest, check_output_schema, order_run
from metier.runtime.run_store import open_runs
from metier.runtime.traces import open_live_exporter
from metier.runtime.workspace.agents import BUILT_IN, AgentInForce, resolve_agent
from metier.runtime.workspace.prepared_run import Hooks, PreparedRun
from metier.store.base import Lease, RunRow, Store
from metier.store.failures import LeaseHeld, RunUnknown, StoreFull
from metier.telemetry.jsonl import LogPool
from metier.telemetry.sinks import Sink

LOOK_SECONDS = 0.5
"""How often a driver looks for a request to end the run: one row by its key."""
MOST_LOOKS = 400
"""That a process takes in a second for all its runs; 2,000 runs that wait would else keep half a core busy."""
_driven: set[object] = set()
"""One mark for each run that this process drives now."""

_BY_HAND = LeaseTerms()


# A request to cancel may come from another machine, so it goes through the store.
@asynccontextmanager
async def bounded(
    stopper: Stopper, store: Store, run_id: str, *, timeout_seconds: float | None, parks: bool = False
) -> AsyncGenerator[None]:
    """Inside this block the stopper is told of a requested end, or that time ran out; then the run fails or `parks`."""
    async with anyio.create_task_group() as group:
        group.start_soon(_obey, stopper, store, run_id)
        if timeout_seconds is not None:
            group.start_soon(_end_in_time, stopper, timeout_seconds, parks)
        yield
        group.cancel_scope.cancel()


async def ask_to_end(store: Store, run_id: str, failure: RunFailed) -> None:
    """Ask the present or next driver of the run to end it with this failure."""
    await store.ask_to_end(run_id, failure.model_dump_json())


async def find_wanted_end(store: Store, run_id: str) -> RunFailed | None:
    row = await store.find_run(run_id)
    if row is None or not row.ending:
        return None
    try:
        return RunFailed.model_validate_json(row.ending)
    except ValidationError:  # a request of another version: that the run should end is certain
        return build_cancellation("")


def build_cancellation(by: str) -> RunFailed:
    return RunFailed(reason="canceled", message=f"Canceled by {by}" if by else "Canceled", status="canceled")


def build_timeout(seconds: float) -> RunFailed:
    return RunFailed(reason="run_timeout", message=f"The run took longer than {seconds:g} s", status="timeout")


def find_pause(runs: int) -> float:
    """Seconds between two looks for one run, where a process drives so many."""
    return max(LOOK_SECONDS, runs / MOST_LOOKS)


async def _obey(stopper: Stopper, store: Store, run_id: str) -> None:
    mark = object()
    _driven.add(mark)
    try:
        while True:
            # Where the store is away, the run itself finds out, and is told once.
            with suppress(StoreError):
                if (failure := await find_wanted_end(store, run_id)) is not None:
                    stopper.fail(failure)
                    return
            await anyio.sleep(find_pause(len(_driven)))
    finally:
        _driven.discard(mark)


async def _end_in_time(stopper: Stopper, seconds: float, parks: bool) -> None:  # noqa: FBT001 - a task has no names
    await anyio.sleep(seconds)
    failure = build_timeout(seconds)
    if parks:
        stopper.park(RunPaused(pause="limit", limit="timeout_seconds", reason=failure.message))
    else:
        stopper.fail(failure)


class Watch(Struct, frozen=True, kw_only=True):
    """Who looks on: sinks get every event, `observe` the text of a reply while it grows, `stopper` can end it."""

    sinks: Sequence[Sink] = ()
    observe: Observer | None = None
    stopper: Stopper | None = None
    ask: Asker | None = None
    """Whom to ask in place when an approval is needed; without it, or if it answers nothing, the run parks."""
    timeout_seconds: float | None = None
    """How long the run may be driven, all in all."""
    report: Callable[[str], None] = lambda _problem: None
    """Told when a sink breaks; the run continues without it."""
    shift: LeaseTerms = _BY_HAND
    """On what terms the run is held."""
    ask_about_code: CodeAsker | None = None
    """Whom to ask when files of skills changed since the run began; without it the run parks."""
    code: Mapping[str, str] = field(default_factory=dict[str, str])
    """The code that the run above continues with."""
    deny_changes: Callable[[], str] = lambda: ""
    """Asked before each step: why only reading is allowed now, whatever rules say; empty if more is allowed."""
    accepts_loss: bool = False
    """Continue with a run whose journal lost entries that its event log or its spool tell of; see `losses`."""
    known: Sequence[Entry] = ()
    """The beginning of the journal of the run itself, where it was read already."""


class Runtime:
    """Runs of one workspace."""

    def __init__(self, place: Host, store: Store) -> None:
        self.place = place
        self.store = store
        self._logs = LogPool()
        refuse = partial(refuse_edited, place=place, store=store)
        self.approvals = Approvals(store, place.clock, look=partial(look_at_call, place), refuse=refuse)

    def folder(self, run_id: str) -> Path:
        return find_folder(self.place.runs, run_id, shard=self.place.settings.logging.shard)

    async def start(self, request: RunRequest, watch: Watch | None = None, *, queue: str = "") -> RunState:
        """Begin a run and drive it until it ends or waits for a user. Raises `UsageError` before it begins.

        With a `queue`, workers may claim it when it is handed back.
        """
        wanted = request.agent or self.place.settings.runtime.agent or BUILT_IN
        agent = resolve_agent(self.place, BUILT_IN if request.commission else wanted, model=request.model)
        return await self.start_as(agent, request, watch, queue=queue)

    async def start_as(
        self, agent: AgentInForce, request: RunRequest, watch: Watch | None = None, *, queue: str = ""
    ) -> RunState:
        """The same for an agent that was resolved before."""
        check_notify(self.place)
        if request.output_schema is not None:
            await run_sync(check_output_schema, request.output_schema)
        if request.mode == "live":
            await open_confinement(agent.place)
        run_id = request.run_id or self.place.ids.run_id(self.place.clock.now())
        run = await self._prepare(run_id, agent, request, host=self.place)
        return await self._begin(run, request, watch or Watch(), queue=queue)

    async def start_ordered(self, run_id: str, request: RunRequest, watch: Watch | None = None) -> RunState:
        """Begin a run whose id follows from what orders it, with the settings that the order names.

        Raises `RunExists` where it has started.
        """
        await self.drop_unbegun(run_id)
        parent = request.commission.parent_run_id if request.commission else ""
        above = find_authority(await read_entries(self.store, parent)) if parent else None
        request = replace(request, commission=check_commission(request.commission, above))
        host = await use_settings(self.place, request.commission, self.store)
        host = host if above is None else replace(host, flags=above.flags or ())
        if (given := request.commission) is not None:
            has_own = given.order.worktree and given.mode == "live"
            host = await enter_worktree(host, run_id, has_own=has_own, above=given.worktree)
        agent = resolve_agent(host, request.agent, model=request.model)
        run = await self._prepare(run_id, agent, request, host=host, hooks=above.hooks if above else None)
        return await self._begin(run, request, watch or Watch())

    async def _prepare(
        self, run_id: str, agent: AgentInForce, request: RunRequest, *, host: Host, hooks: Hooks | None = None
    ) -> PreparedRun:
        check_budget(agent.place)
        run = await prepare_run(
            agent,
            self.store,
            host=host,
            folder=self.folder(run_id),
            commission=request.commission,
            is_dry=request.mode == "dry_run",
        )
        return replace(run, said=request.said, hooks=hooks)

    async def resume(self, run_id: str, answer: Answer | None = None, watch: Watch | None = None) -> RunState:
        """Continue with a run: after an answer, an approval, a signal or a crash. An ended run is left as it is."""
        entries = await read_entries(self.store, run_id)
        if not entries:
            await self._refuse_unbegun(await self.find(run_id))
        if answer is not None and (answer.reopens or answer.raised.is_any):
            is_written = await self._reopen(fold(run_id, entries), answer)
            entries = await read_entries(self.store, run_id) if is_written else entries
        started = find_authority(entries)
        assert started is not None, "a journal begins with the start of its run"
        open_run = restore_run if is_started_here(self.place, run_id, entries) else adopt_run
        restore = partial(open_run, self.place, self.store, folder=self.folder(run_id), started=started)
        watch = replace(watch or Watch(), known=entries)
        try:
            return await self._drive(run_id, watch, prepare=restore, answer=answer or Answer())
        except StoreFull:
            # What came of a run that has ended can be told without room for a lease.
            if (state := fold(run_id, entries)).phase in FINAL:
                return state
            raise

    async def _reopen(self, state: RunState, answer: Answer) -> bool:
        """From below, so that a kill in between leaves a run that can be reopened again; False without a change.

        Raises `UsageError`.
        """
        is_written = False
        chain = await find_chain(self.store, state)
        if not can_reopen(chain[-1]):
            chain = await find_retried(self.store, state) or [state]
        check_model_change(chain[-1], answer.model)
        if chain[-1].phase in FINAL and not can_reopen(chain[-1]):
            return False
        check_raise(chain[-1], answer.raised, run_id=state.run_id)
        changes = [await self._find_model_change(below, answer, lowest=chain[-1]) for below in chain]
        for below, change in reversed(list(zip(chain, changes, strict=True))):
            raised = build_entries(chain, below, answer.raised, by=answer.by)
            if not (entries := [*([change] if change is not None else []), *raised]):
                continue
            async with self.writing(below.run_id, Watch()) as log:
                await self.store.update_run(log.lease, {"ending": ""})
                await log.record(*entries, durable=True)
                await log.update_index()
            is_written = True
        return is_written

    async def _find_model_change(self, state: RunState, answer: Answer, *, lowest: RunState) -> ModelChanged | None:
        """The change of the model settings of a run that failed by its provider, or waits for one that did."""
        entries = await read_entries(self.store, state.run_id)
        if not can_change_model(lowest) or not is_started_here(self.place, state.run_id, entries):
            return None
        is_meant = state is lowest or is_planned(state)
        return await build_model_change(
            self.place,
            self.store,
            state,
            folder=self.folder(state.run_id),
            model=answer.model if is_meant else "",
            by=answer.by,
        )

    async def _refuse_unbegun(self, row: RunRow) -> NoReturn:
        await self._close_unbegun(row, "canceled" if row.ending else "failed")
        raise RunUnknown(
            f"Run {row.run_id!r} was ended before it began, and what it was started with is not known",
            hint="Start it again with `agent run`",
        )

    async def _close_unbegun(self, row: RunRow, status: TaskState) -> None:
        """End a row without a journal, which only earlier versions left, so that no worker claims it again."""
        lease = await self.store.take_lease(row.run_id, owner=self.place.owner, seconds=LEASE_SECONDS)
        try:
            await self.store.update_run(lease, {"status": status, "reason": "not_started"})
        finally:
            await self.store.release_lease(lease)

    async def drop_unbegun(self, run_id: str) -> None:
        """Delete a row without a journal, as earlier versions made for an ordered or imported run before it began."""
        if await self.store.find_run(run_id) is not None and not await self.store.read_journal(run_id, limit=1):
            await self.store.delete_run(run_id)

    async def cancel(self, run_id: str, *, by: str) -> RunState:
        """End a run for good. A run that another process drives is ended by that process, which is asked to."""
        return await self._end_or_ask(run_id, build_cancellation(by))

    async def time_out(self, run_id: str, *, seconds: float) -> RunState:
        """End a run whose driver did not end it in time; where a process drives it, that one or the next ends it."""
        return await self._end_or_ask(run_id, build_timeout(seconds))

    async def _end_or_ask(self, run_id: str, failure: RunFailed) -> RunState:
        try:
            return await self._end(run_id, failure)
        except LeaseHeld:
            await ask_to_end(self.store, run_id, failure)
            return await self.read(run_id)

    async def _end(self, run_id: str, failure: RunFailed) -> RunState:
        state = await self.read(run_id)
        if state.phase in FINAL:
            return state
        if state.started is None:
            if (row := await self.store.find_run(run_id)) is not None:
                await self._close_unbegun(row, failure.status)
            return dataclasses.replace(state, phase="ERROR", status=failure.status, failure=failure)
        # From below: where this is cut short, the run itself is still there to be canceled again.
        if (row := await self.store.find_run(run_id)) is not None and not row.driver:
            for child in state.children:
                await self._end_or_ask(child.run_id, failure)
        driver = LeaseHolder(store=self.store, owner=self.place.owner)
        with unwrapped():
            async with hold_lease(run_id, driver) as lease:
                with closing(await self._open_log(lease, driver, Watch(accepts_loss=True))) as log:
                    if log.state.phase not in FINAL:
                        await log.record(failure, durable=True)
                    await self._settle(log)
                    await self.approvals.close(run_id, status=log.state.status)
                    return log.state
        raise AssertionError("the block above returns or raises")

    async def read(self, run_id: str) -> RunState:
        """The state of a run, without driving it."""
        return fold(run_id, await read_entries(self.store, run_id))

    async def find(self, name: str) -> RunRow:
        """A run by its id, the beginning of its id, or `latest`. Raises `RunUnknown`, or `UsageError` if not clear."""
        prefix = "" if name == "latest" else name
        # No name is the beginning of all: an unset shell variable must not cancel or delete a run.
        rows = await self.store.list_runs(prefix=prefix, limit=2) if name and name.isascii() else []
        await self._check_folders(name, rows)
        if not rows:
            raise RunUnknown(f"There is no run {name!r}", hint="`agent runs list` shows the runs of this workspace")
        if name == "latest":
            return await self._climb(rows[0])
        if len(rows) > 1 and rows[0].run_id != name:
            raise UsageError(f"More than one run begins with {name!r}", hint="Write more of the id")
        return rows[0]

    async def _check_folders(self, name: str, rows: Sequence[RunRow]) -> None:
        """Raises `StoreDamaged` for a run that has a folder and is not in the store, where its name asks for it."""
        # Of a database server other machines may delete runs; a file of this machine loses them only with its end.
        may_lack = not rows or (name == "latest" and self.place.settings.store.backend == "sqlite")
        if not name or not name.isascii() or not may_lack:
            return
        lost = find_lost_run(self.place.runs, name, shard=self.place.settings.logging.shard)
        if lost is None or (rows and (lost.name < rows[0].run_id or lost.name.startswith(CHILD))):
            return
        # Of two runs that began in one second the older may have the greater id.
        if await self.store.find_run(lost.name) is None:
            raise describe_lost_run(lost)

    async def find_started(self, run_id: str) -> RunRow:
        """The run that a user started: this one, or the one that ordered it. Raises `RunUnknown`."""
        return await self._climb(await self.find(run_id))

    async def _climb(self, row: RunRow) -> RunRow:
        while row.run_id.startswith(CHILD) and (above := await self.store.find_run(row.parent_run_id)) is not None:
            row = above
        return row

    async def find_waiting(self, state: RunState) -> RunState:
        """Who is really waited for: the run itself, or the lowest of those it handed work to."""
        return await find_waiting(self.store, state)

    async def find_all_waiting(self, state: RunState) -> list[RunState]:
        """All of them, where several runs that work for it wait at the same time."""
        return await find_all_waiting(self.store, state)

    async def _begin(self, run: PreparedRun, request: RunRequest, watch: Watch, *, queue: str = "") -> RunState:
        """Put together everything that the run is started with, then make it exist with that, then drive it."""
        shift, owner = watch.shift, self.place.owner
        async with self._open_services(run, watch) as services:
            started = await build_start(request, run, services, pins=await pin(services, run))
            started = seal(started, self.place, run.folder.name)
            row = build_row(run.folder.name, started, now=self.place.clock.now(), queue=queue)
            # One transaction: a kill leaves no run, or one that knows its pins, limits, profile and model.
            lease = await self.store.begin_run(row, store_entries([started]), owner=owner, seconds=shift.lease_seconds)
            begun = replace(watch, known=(started,), shift=replace(shift, lease=lease))
            async with self.writing(lease.run_id, begun) as log:
                tell_of_cuts(log, services)
                await self._apply_requested_end(log)
                if log.state.phase not in FINAL:
                    await self._go_on(log, services, watch, answer=None)
                return await self._come_to_rest(log, watch)

    async def _drive(
        self, run_id: str, watch: Watch, *, prepare: Callable[[], Awaitable[PreparedRun]], answer: Answer
    ) -> RunState:
        async with self.writing(run_id, watch) as log:
            await self._apply_requested_end(log)
            is_told = await begin_attempt(log, watch.shift)
            if log.state.phase not in FINAL and not is_left_alone(log.state, watch.shift):
                run = replace(await prepare(), max_turns=log.state.limits.max_turns)
                park = partial(self._park_for_code, log, answer)
                code = await settle_code(log, run, answer, ask=watch.ask_about_code, above=watch.code, park=park)
                if code is None:
                    return await self._come_to_rest(log, watch)
                watch = replace(watch, code=code)
                async with self._open_services(run, watch) as services:
                    if run.is_foreign:
                        await self._adopt(log, services, run=run)
                    if await self._take_answer(log, answer, services, is_told=is_told) or can_ask(log.state, watch.ask):
                        await log.update_index()
                        await self._go_on(log, services, watch, answer=answer)
            return await self._come_to_rest(log, watch)

    @asynccontextmanager
    async def _open_services(self, run: PreparedRun, watch: Watch) -> AsyncGenerator[Services]:
        async with build_services(run.agent.place, self.store, run=run, observe=watch.observe) as services:

            def find_denial(action: ActionStep) -> str:
                if denial := services.find_new_denial(action):
                    return denial
                reads = is_reading(action, services.policy.effect(action), root=str(services.workspace))
                return "" if reads else watch.deny_changes()

            yield replace(services, find_new_denial=find_denial)

    async def _park_for_code(self, log: RunLog, answer: Answer, changed: ChangedCode) -> None:
        """Pause until the changed files are accepted; first record the answer, here or in the child that asks."""
        waiting = await find_waiting(self.store, log.state)
        if waiting.run_id != log.state.run_id and answer.is_any:
            stopper = Stopper()
            stopper.hand_back("the run above")
            await self.resume(waiting.run_id, replace(answer, reopens=False), Watch(stopper=stopper))
        await record_pause(log, changed, await list_answers(log.state, answer, self.approvals))

    @asynccontextmanager
    async def writing(self, run_id: str, watch: Watch) -> AsyncGenerator[RunLog]:
        """Hold the lease of a run and its log."""
        holder, shift = LeaseHolder(store=self.store, owner=self.place.owner), watch.shift
        with unwrapped():
            async with hold_lease(run_id, holder, seconds=shift.lease_seconds, held=shift.lease) as lease:
                with closing(await self._open_log(lease, holder, watch)) as log:
                    yield log

    async def _come_to_rest(self, log: RunLog, watch: Watch) -> RunState:
        await self._settle(log)
        if watch.stopper is not None and watch.stopper.is_handing_back:
            await keep_claimable(log, self.store, queue=watch.shift.queue)
        return log.state

    async def _apply_requested_end(self, log: RunLog) -> None:
        """Apply a cancellation requested while no process held the lease, or while the holder had stopped polling."""
        if log.state.started is None or log.state.phase in FINAL:
            return
        failure = await find_wanted_end(self.store, log.state.run_id)
        if failure is not None:
            for child in log.state.children:
                await self._end_or_ask(child.run_id, failure)
            await log.record(failure, durable=True)
            await self.approvals.close(log.state.run_id, status=log.state.status)

    async def _adopt(self, log: RunLog, services: Services, *, run: PreparedRun) -> None:
        """From here on the run is one of this store."""
        assert log.state.started is not None, "only a run that was started elsewhere is adopted"
        adopted = build_adoption(log.state.started, services, run=run, pins=await pin(services, run))
        await log.record(seal(adopted, self.place, log.state.run_id), durable=True)

    async def _go_on(self, log: RunLog, services: Services, watch: Watch, *, answer: Answer | None) -> None:
        stopper = watch.stopper or Stopper(services.runtime.signal_grace_seconds)
        self._tell_of_changes(log, services)
        if not stopper.is_set:
            await self._check_provider(log, services)
        shift = watch.shift
        keeper = LeaseKeeper(lease=log.lease, store=self.store, seconds=shift.lease_seconds)
        run_id, seconds, parks = log.state.run_id, watch.timeout_seconds, log.state.limits.on_limit == "park"
        async with (
            delivering(self.place, self.store, is_pooled=shift.is_pooled),
            bounded(stopper, self.store, run_id, timeout_seconds=seconds, parks=parks),
        ):
            with stopper.holding(keeper):
                await self._work(log, services, watch, stopper=stopper, answer=answer)

    async def _work(
        self, log: RunLog, services: Services, watch: Watch, *, stopper: Stopper, answer: Answer | None
    ) -> None:
        """Drive the run, put approvals to the user, see its children through, until a user must be waited for."""
        until = None if watch.timeout_seconds is None else anyio.current_time() + watch.timeout_seconds
        addressed, ask = await address(answer, log.state, self.store), one_at_a_time(watch.ask)

        async def go_on(run_id: str, stopper: Stopper, *, commission: ChildRunStart | None) -> RunState:
            left = None if until is None else max(0.0, until - anyio.current_time()) * services.runtime.delegation_share
            shift = replace(watch.shift, lease=None)
            below = replace(
                watch, known=(), sinks=lend(watch.sinks), stopper=stopper, timeout_seconds=left, shift=shift, ask=ask
            )
            if commission is None:
                return await self.resume(run_id, addressed.find_for(run_id), below)
            return await self.start_ordered(run_id, order_run(commission), below)

        await drive(log, services, stopper)
        while await self._ask_person(log, services, watch.ask, stopper=stopper) or await follow_children(
            log, services, stopper=stopper, go_on=go_on
        ):
            addressed = Addressed(answer=None)
            await drive(log, services, stopper)

    async def _check_provider(self, log: RunLog, services: Services) -> None:
        """A key that is missing ends the run before anything is sent."""
        if isinstance(services.provider, AbsentProvider) and log.state.phase not in FINAL and not is_planned(log.state):
            failure = services.provider.failure
            if log.state.phase == "LOAD_SKILL_CATALOG":
                # The catalog will not be loaded: report a misspelled skill together with the missing key.
                report_skill_problems(log, services)
            await log.record(RunFailed(reason=failure.reason, message=failure.sentence), durable=True)

    async def _open_log(self, lease: Lease, services: Driver, watch: Watch) -> RunLog:
        opening = LogOpening(
            place=self.place,
            folder=self.folder(lease.run_id),
            pool=self._logs,
            sinks=watch.sinks,
            report=watch.report,
            accepts_loss=watch.accepts_loss,
            known=watch.known,
        )
        log = await open_run_log(lease, services, opening)
        log.announce = Announcer(self.place, self.store)
        return log

    async def _ask_person(self, log: RunLog, services: Services, ask: Asker | None, *, stopper: Stopper) -> bool:
        """Put open approvals to the user at the terminal; False when the run stays parked."""
        remembered = await ask_person(log.state, ask, self.approvals, stopper=stopper)
        return remembered is not None and await self._take_answer(log, Answer(), services, remembered=remembered)

    async def _take_answer(
        self,
        log: RunLog,
        answer: Answer,
        services: Services,
        *,
        remembered: frozenset[str] = frozenset(),
        is_told: bool = False,
    ) -> bool:
        return await take_answer(
            log, answer, services, approvals=self.approvals, remembered=remembered, is_told=is_told
        )

    def _tell_of_changes(self, log: RunLog, services: Services) -> None:
        pins = log.state.started.pins if log.state.started else {}
        for definition in services.changed:
            log.emit(PinnedDefinitionUsed(definition=definition, pinned=pins[definition]))
        for notice in services.notices:
            log.emit(notice)

    async def _settle(self, log: RunLog) -> None:
        """Whatever reads a run without its journal gets to know how it stands; cancelling does not interrupt it."""
        with anyio.CancelScope(shield=True):
            folder = self.folder(log.state.run_id)
            await self._write_summary(log, folder)
            await remove_ended(self.place, self.store, log.state, folder=folder)

    async def _write_summary(self, log: RunLog, folder: Path) -> None:
        # Before the index: a run that is shown as ended is in the totals.
        await record_usage(self.store, log.state)
        await log.update_index()
        if log.state.started is None or is_current(folder, log.state):
            return
        entries = await read_entries(self.store, log.state.run_id)
        # The journal is the run: where there is no room for its record, that is written when it next pauses or ends.
        with suppress(OSError, ConfigError):
            clean = build_place_cleaner(self.place).value
            write_record(folder, entries, log.state, now=self.place.clock.now(), clean=clean)


@asynccontextmanager
async def open_runtime(place: Host) -> AsyncGenerator[Runtime]:
    """The runs of a workspace, for as long as the block lasts."""
    async with open_runs(place) as store:
        clients, traces = SharedClients(), open_live_exporter(place)
        try:
            yield Runtime(replace(place, clients=clients, traces=traces), store)
        finally:
            with anyio.CancelScope(shield=True):
                await clients.aclose()
                if traces is not None:
                    await run_sync(traces.close)
