"""The driver of runs: one loop around the engine that holds the lease, asks the user, follows children and applies
limits.
"""

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import anyio
from anyio.to_thread import run_sync
from msgspec import DecodeError, Struct, field, json
from msgspec.structs import replace

from metier.approval.narrowed_policy import is_reading
from metier.decisions import ActionStep, TaskState
from metier.engine.decide import is_planned
from metier.engine.entries.entry import Entry
from metier.engine.entries.run import TAKEN_BY_WORKER, ModelChanged, RunFailed, RunPaused, RunResumed
from metier.engine.journal import RunLog, read_entries, store_entries
from metier.engine.loop import LEASE_SECONDS, LeaseKeeper, drive, hold_lease
from metier.engine.model.skill_selection import report_skill_problems
from metier.engine.services import MessageInbox, Services
from metier.engine.state.authority import find_authority
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.engine.stopper import Stopper
from metier.errors import ConfigError, StoreError, unwrapped
from metier.events.partial import PartialObserver
from metier.events.run import PinnedDefinitionUsed
from metier.providers.base import Delta, Observer
from metier.providers.failures import MissingKey
from metier.providers.stand_ins import UnavailableProvider
from metier.runtime.answers import (
    Addressed,
    Answer,
    ChangedCode,
    CodeAsker,
    LimitAsker,
    QuestionAsker,
    address,
    build_entries,
    build_model_change,
    check_changed_code,
    check_model_change,
    check_raise,
    list_answers,
    list_retried,
    one_at_a_time,
    record_pause,
    take_answer,
    waits_for_answer,
)
from metier.runtime.approval_questions import Asker, ask_for_approval, can_ask
from metier.runtime.build import build_services, check_budget
from metier.runtime.child_runs import borrow_sinks, follow_children, prepare_run, restore_run, use_settings
from metier.runtime.cleaning import build_host_cleaner, build_host_redactor
from metier.runtime.confinement import open_confinement
from metier.runtime.delegation.worktrees import enter_worktree, remove_ended
from metier.runtime.host import Host
from metier.runtime.model_providers import check_keys
from metier.runtime.notify.announcements import Announcer, check_notify
from metier.runtime.notify.delivery import delivering
from metier.runtime.partials import PartialFile, PartialStream
from metier.runtime.reader import RunReader
from metier.runtime.records.pins import pin
from metier.runtime.records.record import build_row, is_current, record_usage, write_record
from metier.runtime.records.run_log import LogOpening, open_run_log, report_truncated_layers
from metier.runtime.records.signatures import is_started_here, seal
from metier.runtime.requests import RunRequest, check_output_schema
from metier.runtime.run_start import adopt_run, build_adoption, build_start, check_inherited
from metier.runtime.status import (
    can_change_model,
    can_reopen,
    compute_status,
    find_limit,
    get_waiting,
    list_chain,
)
from metier.runtime.workspace.agents import ResolvedAgent, resolve_agent
from metier.runtime.workspace.prepared_run import Hooks, PreparedRun
from metier.store.base import Lease, RunRow, Store
from metier.store.failures import LeaseHeld, RunUnknown, StoreFull
from metier.telemetry.jsonl import LogPool
from metier.telemetry.sinks import Sink

POLL_SECONDS = 0.5
"""Interval at which a driver polls for a request to end its run: one row by its key."""
MAX_POLLS_PER_SECOND = 400
"""Limit for all runs of a process. Without it, 2,000 waiting runs would use half a core."""
_driven: set[object] = set()
"""One marker per run that this process drives now."""


# Attempts are recorded in the journal before anything is built or called, so that they survive the worker. A run that
# kills its worker (a hang, all memory used up) also interrupts the worker's other runs, so it gets fewer attempts.
class LeaseTerms(Struct, frozen=True, kw_only=True):
    """A worker's terms for driving a run: its lease, and how many attempts the run gets."""

    lease: Lease | None = None
    """Lease acquired by claiming the run; None acquires a new one."""
    lease_seconds: float = LEASE_SECONDS
    max_attempts: int | None = None
    """Maximum number of consecutive attempts without progress; None for a user, who may always retry."""
    max_deaths: int = 2
    """Number of workers that may die at the same point before the run waits for the user."""
    is_pooled: bool = False
    """True if the driving process delivers notifications for all of its runs."""
    queue: str = ""
    """Queue that the run is handed back to; empty keeps the current one."""


class DriveOptions(Struct, frozen=True, kw_only=True):
    """Options for driving a run: observers, limits, and the asker. Without an asker the run pauses."""

    sinks: Sequence[Sink] = ()
    observe: Observer | None = None
    """Receives the text of a reply as it arrives."""
    inbox: MessageInbox | None = None
    """Messages of the user for the next model request of this run. Child runs don't get them."""
    partials: Sequence[PartialObserver] = ()
    """Receive redacted text of replies and output of programs as they arrive, also those of child runs."""
    stopper: Stopper | None = None
    timeout_seconds: float | None = None
    """Maximum time to drive the run, including its children."""
    report: Callable[[str], None] = lambda _problem: None
    """Called if a sink fails; the run continues without it."""
    lease_terms: LeaseTerms = LeaseTerms()
    accepts_loss: bool = False
    """Drive a run although its journal lost entries that its event log or spool mention; see `records.run_log.Loss`."""
    deny_changes: Callable[[], str] = lambda: ""
    """Called before each step that changes something. Returns the reason to deny it; empty to allow it."""
    ask: Asker | None = None
    """Asks the user about a call that needs an approval."""
    ask_about_code: CodeAsker | None = None
    """Asks the user whether to continue although files of a skill changed."""
    ask_question: QuestionAsker | None = None
    ask_for_limit: LimitAsker | None = None
    """Asks whether a run that reached a limit continues with a higher one."""


UNATTENDED = DriveOptions()
"""Without observers and askers: the run pauses at its first question."""


def _join(first: Observer | None, second: Observer | None) -> Observer | None:
    if first is None or second is None:
        return first or second

    def observe(delta: Delta) -> None:
        first(delta)
        second(delta)

    return observe


class _Journal(Struct, frozen=True, kw_only=True):
    """Facts about the journal that a driver has before it opens the log."""

    known: Sequence[Entry] = ()
    """First entries of the journal, if they were already read."""
    code: Mapping[str, str] = field(default_factory=dict[str, str])
    """Changed skill code that was accepted for the parent run."""


# A request to cancel may come from another machine, so it goes through the store.
@asynccontextmanager
async def bounded(
    stopper: Stopper, store: Store, run_id: str, *, timeout_seconds: float | None, parks: bool = False
) -> AsyncGenerator[None]:
    """Stop the run if its end is requested or its timeout expires. On a timeout it fails, or pauses if it `parks`."""
    async with anyio.create_task_group() as group:
        group.start_soon(_poll_for_end, stopper, store, run_id)
        if timeout_seconds is not None:
            group.start_soon(_end_at_timeout, stopper, timeout_seconds, parks)
        yield
        group.cancel_scope.cancel()


async def find_requested_end(store: Store, run_id: str) -> RunFailed | None:
    row = await store.find_run(run_id)
    if row is None or not row.ending:
        return None
    try:
        return json.decode(row.ending, type=RunFailed)
    except DecodeError:  # written by another version; the run should end in any case
        return build_cancellation("")


def build_cancellation(by: str) -> RunFailed:
    return RunFailed(reason="canceled", message=f"Canceled by {by}" if by else "Canceled", status="canceled")


def build_timeout(seconds: float) -> RunFailed:
    return RunFailed(reason="run_timeout", message=f"The run took longer than {seconds:g} s", status="timeout")


def poll_interval(runs: int) -> float:
    """Return the seconds between two polls of one run, in a process that drives this many runs."""
    return max(POLL_SECONDS, runs / MAX_POLLS_PER_SECOND)


async def _poll_for_end(stopper: Stopper, store: Store, run_id: str) -> None:
    mark = object()
    _driven.add(mark)
    try:
        while True:
            # If the store is unavailable, the run itself finds out and reports it once.
            with suppress(StoreError):
                if (failure := await find_requested_end(store, run_id)) is not None:
                    stopper.fail(failure)
                    return
            await anyio.sleep(poll_interval(len(_driven)))
    finally:
        _driven.discard(mark)


async def _end_at_timeout(stopper: Stopper, seconds: float, parks: bool) -> None:  # noqa: FBT001 - a task has no names
    await anyio.sleep(seconds)
    failure = build_timeout(seconds)
    if parks:
        stopper.park(RunPaused(pause="limit", limit="timeout_seconds", reason=failure.message))
    else:
        stopper.fail(failure)


class LeaseHolder(Struct, frozen=True, kw_only=True):
    """A process that writes into a run without driving it."""

    store: Store
    owner: str


async def record_attempt(log: RunLog, terms: LeaseTerms) -> bool:
    """Record a worker's attempt, or that the run has had too many. Return False if nothing was recorded.

    A run that waits or has ended stays unchanged.
    """
    state, left_by = log.state, log.lease.left_by
    if terms.max_attempts is None or state.started is None or state.pause is not None or state.phase in FINAL:
        return False
    # The death of the last driver is only known from its lease so far.
    if state.deaths + bool(left_by) >= terms.max_deaths:
        await log.record(RunPaused(pause="explicit", reason=_describe_deaths(log)))
    elif state.attempts >= terms.max_attempts:
        message = f"{state.attempts} workers in a row took the run and got no further"
        await log.record(RunFailed(reason="too_many_attempts", message=message))
    else:
        resumed = RunResumed(reason=TAKEN_BY_WORKER, driver=log.lease.owner, left_by=left_by)
        await log.record(resumed)
    return True


def is_left_to_user(state: RunState, terms: LeaseTerms) -> bool:
    """Return True for a worker if only the user may resume the run."""
    return terms.max_attempts is not None and state.pause is not None and state.pause.pause == "explicit"


def _describe_deaths(log: RunLog) -> str:
    started, count = log.state.started, log.state.deaths + bool(log.lease.left_by)
    owner = (started.parent_run_id if started else "") or log.state.run_id
    died = f"{count} processes in a row died" if count > 1 else "A process died"
    return f"{died} driving the run at this point. Workers leave it alone; continue it with `agent resume {owner}`"


async def mark_claimable(log: RunLog, store: Store, *, queue: str = "") -> None:
    """Mark a handed-back run in the index as claimable, even if it waits for a child run."""
    # Workers only claim runs that are `pending` or `in_progress`.
    changes = {"status": "in_progress"} if log.state.status == "delegating" else {}
    if queue:
        changes["queue"] = queue
    if changes:
        await store.update_run(log.lease, changes)


class RunDriver(RunReader):
    """Drives the runs of one workspace. It holds the lease of a run during every change."""

    def __init__(self, host: Host, store: Store) -> None:
        super().__init__(host, store)
        self._logs = LogPool()

    async def start_as(
        self, agent: ResolvedAgent, request: RunRequest, options: DriveOptions = UNATTENDED, *, queue: str = ""
    ) -> RunState:
        """Start a run with a resolved agent, and drive it until it ends or waits for the user."""
        check_notify(self.host)
        if request.output_schema is not None:
            await run_sync(check_output_schema, request.output_schema)
        if request.mode == "live":
            # Before the run exists: a sandbox that is required and missing must not leave a failed run behind.
            await open_confinement(agent.host)
        run_id = request.run_id or self.host.ids.run_id(self.host.clock.now())
        run = await self._prepare(run_id, agent, request, host=self.host)
        # A background run needs the key in the environment of its worker, not in this one.
        if request.mode == "live" and not (options.stopper is not None and options.stopper.is_set):
            self._check_keys(run, options)
        state = await self._begin(run, request, options, queue=queue)
        return await self._continue_past_limits(state, options)

    def _check_keys(self, run: PreparedRun, options: DriveOptions) -> None:
        try:
            check_keys(run)
        except MissingKey:
            # The run won't load its skills, so report their problems together with the missing key.
            for problem in run.agent.problems:
                options.report(problem.render())
            raise

    async def start_child(self, run_id: str, request: RunRequest, options: DriveOptions = UNATTENDED) -> RunState:
        """Start a run whose ID derives from its request, with the settings of the request.

        Raises `RunExists` if it has started.
        """
        await self.delete_unstarted(run_id)
        parent_id = request.parent_run_id
        parent = find_authority(await read_entries(self.store, parent_id)) if parent_id else None
        request = check_inherited(request, parent)
        host = await use_settings(self.host, request, self.store)
        # The flags of the command that started the parent. The one that drives it now may have been given others.
        host = host if parent is None else replace(host, flags=parent.flags or ())
        if request.order is not None:
            has_own = request.order.worktree and request.mode == "live"
            host = await enter_worktree(host, run_id, has_own=has_own, parent=request.parent_worktree)
        agent = resolve_agent(host, request.agent, model=request.model)
        run = await self._prepare(run_id, agent, request, host=host, hooks=parent.hooks if parent else None)
        return await self._begin(run, request, options)

    async def resume(self, run_id: str, answer: Answer | None = None, options: DriveOptions = UNATTENDED) -> RunState:
        """Continue a run after an answer, an approval, a signal or a crash. An ended run stays unchanged.

        If a limit stops it again, the user is asked whether to raise that.
        """
        return await self._continue_past_limits(await self._resume(run_id, answer, options), options)

    async def _continue_past_limits(self, state: RunState, options: DriveOptions) -> RunState:
        """Ask the user to raise the limit that stopped the run, and continue, until they decline."""
        stopper = options.stopper
        # After a signal the user wants to stop, not to decide about a limit.
        while options.ask_for_limit is not None and not (stopper is not None and stopper.signal):
            failed = (await list_chain(self.store, state))[-1]
            raised = await options.ask_for_limit(failed) if find_limit(failed) is not None else None
            if raised is None:
                break
            # A timeout has set the stopper, so the next drive needs a new one.
            stopper, seconds = raised.stopper, raised.limits.timeout_seconds or options.timeout_seconds
            again = replace(options, stopper=stopper, timeout_seconds=seconds)
            answer = Answer(by=raised.by, raised=raised.limits, reopens=True)
            state = await self._resume(state.run_id, answer, again)
        return state

    async def _resume(
        self, run_id: str, answer: Answer | None, options: DriveOptions, *, code: Mapping[str, str] | None = None
    ) -> RunState:
        entries = await read_entries(self.store, run_id)
        if not entries:
            await self._reject_unstarted(await self.find(run_id))
        if answer is not None and (answer.reopens or answer.raised.is_any):
            is_written = await self._reopen(fold(run_id, entries), answer)
            entries = await read_entries(self.store, run_id) if is_written else entries
        started = find_authority(entries)
        assert started is not None, "a journal begins with the start of its run"
        # Anyone can write a journal. Without a valid seal its pinned settings and rules grant nothing.
        open_run = restore_run if is_started_here(self.host, run_id, entries) else adopt_run
        restore = partial(open_run, self.host, self.store, folder=self.folder(run_id), started=started)
        journal = _Journal(known=entries, code=code or {})
        try:
            return await self._drive(run_id, options, prepare=restore, answer=answer or Answer(), journal=journal)
        except StoreFull:
            # On a full disk there is no room for a lease, but the outcome of an ended run can be read without one.
            if (state := fold(run_id, entries)).phase in FINAL:
                return state
            raise

    async def _prepare(
        self, run_id: str, agent: ResolvedAgent, request: RunRequest, *, host: Host, hooks: Hooks | None = None
    ) -> PreparedRun:
        check_budget(agent.host)
        run = await prepare_run(agent, self.store, host=host, folder=self.folder(run_id), request=request)
        return replace(run, hooks=hooks)

    async def _reopen(self, state: RunState, answer: Answer) -> bool:
        """Reopen a failed run and the children that caused its failure. Raises `UsageError`."""
        is_written = False
        chain = await list_chain(self.store, state)
        if not can_reopen(chain[-1]):
            chain = await list_retried(self.store, state) or [state]
        check_model_change(chain[-1], answer.model)
        if chain[-1].phase in FINAL and not can_reopen(chain[-1]):
            return False
        check_raise(chain[-1], answer.raised, run_id=state.run_id)
        changes = [await self._find_model_change(each, answer, lowest=chain[-1]) for each in chain]
        # Deepest first: after a crash in between, the parents are still closed and the user can reopen them again.
        for each, change in reversed(list(zip(chain, changes, strict=True))):
            raised = build_entries(chain, each, answer.raised, by=answer.by)
            if not (entries := [*([change] if change is not None else []), *raised]):
                continue
            async with self.writing(each.run_id) as log:
                # An old request to end the run would end it again as soon as it is driven.
                await self.store.update_run(log.lease, {"ending": ""})
                await log.record(*entries)
                await log.update_index()
            is_written = True
        return is_written

    async def _find_model_change(self, state: RunState, answer: Answer, *, lowest: RunState) -> ModelChanged | None:
        """Return the change of model settings for a run that failed by its provider, or for a parent of such a run."""
        entries = await read_entries(self.store, state.run_id)
        if not can_change_model(lowest) or not is_started_here(self.host, state.run_id, entries):
            return None
        is_meant = state is lowest or is_planned(state)
        return await build_model_change(
            self.host,
            self.store,
            state,
            folder=self.folder(state.run_id),
            model=answer.model if is_meant else "",
            by=answer.by,
        )

    async def _reject_unstarted(self, row: RunRow) -> NoReturn:
        await self._close_unstarted(row, "canceled" if row.ending else "failed")
        raise RunUnknown(
            f"Run {row.run_id!r} was ended before it began, and what it was started with is not known",
            hint="Start it again with `agent run`",
        )

    async def _close_unstarted(self, row: RunRow, status: TaskState) -> None:
        """End a row without a journal, which only earlier versions left, so that no worker claims it."""
        lease = await self.store.take_lease(row.run_id, owner=self.host.owner, seconds=LEASE_SECONDS)
        try:
            await self.store.update_run(lease, {"status": status, "reason": "not_started"})
        finally:
            await self.store.release_lease(lease)

    async def delete_unstarted(self, run_id: str) -> None:
        """Delete a row without a journal, as earlier versions made for a run before its start."""
        if await self.store.find_run(run_id) is not None and not await self.store.read_journal(run_id, limit=1):
            await self.store.delete_run(run_id)

    async def end(self, run_id: str, failure: RunFailed) -> RunState:
        """End a run with this failure. If another process drives it, that process is asked to end it."""
        try:
            return await self._end(run_id, failure)
        except LeaseHeld:
            # The current driver polls for this, and the next one looks before it counts an attempt.
            await self.store.ask_to_end(run_id, json.encode(failure).decode())
            return await self.read(run_id)

    async def _end(self, run_id: str, failure: RunFailed) -> RunState:
        state = await self.read(run_id)
        if state.phase in FINAL:
            return state
        if state.started is None:
            if (row := await self.store.find_run(run_id)) is not None:
                await self._close_unstarted(row, failure.status)
            return dataclasses.replace(state, phase="ERROR", status=failure.status, failure=failure)
        # Children first: after a crash in between, the run itself is still open and can be canceled again. A
        # driver ends the children of its run itself.
        if (row := await self.store.find_run(run_id)) is not None and not row.driver:
            for child in state.children:
                await self.end(child.run_id, failure)
        # Lost entries don't matter for a cancellation: no step of this run will be repeated.
        async with self.writing(run_id, DriveOptions(accepts_loss=True)) as log:
            if log.state.phase not in FINAL:
                await log.record(failure)
            await self._settle(log)
            await self.approvals.close(run_id, status=log.state.status)
            return log.state

    async def _begin(
        self, run: PreparedRun, request: RunRequest, options: DriveOptions, *, queue: str = ""
    ) -> RunState:
        """Build the start entry, create the run in one transaction, then drive it."""
        terms, owner = options.lease_terms, self.host.owner
        # The services are built before the run exists, so that invalid settings, rules or tools leave no run.
        async with (
            self._streaming(run.folder, options) as stream,
            self._open_services(run, options, stream) as services,
        ):
            started = await build_start(request, run, services, pins=await pin(services, run))
            # The seal marks the run as started in this store. An archive or a copied database never has a valid one.
            started = seal(started, self.host, run.folder.name)
            row = build_row(run.folder.name, started, now=self.host.clock.now(), queue=queue)
            # One transaction: a crash leaves no run, or one that knows its pins, limits, profile and model.
            lease = await self.store.begin_run(row, store_entries([started]), owner=owner, seconds=terms.lease_seconds)
            leased = replace(options, lease_terms=replace(terms, lease=lease))
            async with self.writing(lease.run_id, leased, known=(started,), stream=stream) as log:
                report_truncated_layers(log, services)
                await self._apply_requested_end(log)
                if log.state.phase not in FINAL:
                    await self._run_loop(log, services, options, answer=None)
                return await self._release(log, options)

    async def _drive(
        self,
        run_id: str,
        options: DriveOptions,
        *,
        prepare: Callable[[], Awaitable[PreparedRun]],
        answer: Answer,
        journal: _Journal,
    ) -> RunState:
        async with (
            self._streaming(self.folder(run_id), options) as stream,
            self.writing(run_id, options, known=journal.known, stream=stream) as log,
        ):
            # Before the attempt is counted: a canceled run must not fail for too many attempts.
            await self._apply_requested_end(log)
            has_resumed = await record_attempt(log, options.lease_terms)
            if log.state.phase not in FINAL and not is_left_to_user(log.state, options.lease_terms):
                run = replace(await prepare(), max_turns=log.state.limits.max_turns)
                park = partial(self._pause_for_code, log, answer)
                code = await check_changed_code(
                    log, run, answer, ask=options.ask_about_code, accepted=journal.code, park=park
                )
                # Before the services are opened, because toolsets and servers would already run the changed code.
                if code is None:
                    return await self._release(log, options)
                async with self._open_services(run, options, stream) as services:
                    if run.is_foreign:
                        await self._adopt(log, services, run=run)
                    is_answered = await self._take_answer(log, answer, services, has_resumed=has_resumed)
                    if is_answered or can_ask(log.state, options.ask) or _can_ask_question(log.state, options):
                        await log.update_index()
                        await self._run_loop(log, services, options, answer=answer, code=code)
            return await self._release(log, options)

    @asynccontextmanager
    async def _streaming(self, folder: Path, options: DriveOptions) -> AsyncGenerator[PartialStream | None]:
        """Open the stream of partial updates, to the observers and, in a worker, to a file for other processes."""
        # Only other processes can watch a run that a worker drives.
        file = PartialFile(folder) if options.lease_terms.is_pooled else None
        observers = (*options.partials, *([PartialObserver(show=file.show)] if file is not None else []))
        if not observers:
            yield None
            return
        stream = PartialStream(folder.name, build_host_redactor(self.host), observers)
        try:
            yield stream
        finally:
            stream.close()
            if file is not None:
                file.close()

    @asynccontextmanager
    async def _open_services(
        self, run: PreparedRun, options: DriveOptions, stream: PartialStream | None
    ) -> AsyncGenerator[Services]:
        observe = _join(options.observe, stream.observe if stream is not None and stream.wants_text else None)
        async with build_services(run.agent.host, self.store, run=run, observe=observe) as services:
            # Evaluated for each step, because the user may switch to a read-only mode meanwhile.
            def get_denial(action: ActionStep) -> str:
                if denial := services.find_new_denial(action):
                    return denial
                reads = is_reading(action, services.policy.effect(action), root=str(services.workspace))
                return "" if reads else options.deny_changes()

            yield replace(
                services,
                find_new_denial=get_denial,
                inbox=options.inbox,
                show_output=None if stream is None else stream.take_output,
            )

    async def _pause_for_code(self, log: RunLog, answer: Answer, changed: ChangedCode) -> None:
        """Pause until the user accepts the changed files. The answer is recorded first, here or in the asking child."""
        waiting = await get_waiting(self.store, log.state)
        if waiting.run_id != log.state.run_id and answer.is_any:
            stopper = Stopper()
            # The child only records the answer and hands itself back, because the parent is about to pause.
            stopper.hand_back("the parent run")
            await self._resume(waiting.run_id, replace(answer, reopens=False), DriveOptions(stopper=stopper))
        # The answer is recorded with the pause, in one batch: a crash in between would lose it.
        await record_pause(log, changed, await list_answers(log.state, answer, self.approvals))

    @asynccontextmanager
    async def writing(
        self,
        run_id: str,
        options: DriveOptions = UNATTENDED,
        *,
        known: Sequence[Entry] = (),
        stream: PartialStream | None = None,
    ) -> AsyncGenerator[RunLog]:
        """Hold the lease and the log of a run."""
        holder, terms = LeaseHolder(store=self.store, owner=self.host.owner), options.lease_terms
        with unwrapped():
            async with hold_lease(run_id, holder, seconds=terms.lease_seconds, held=terms.lease) as lease:
                opening = LogOpening(
                    host=self.host,
                    folder=self.folder(run_id),
                    pool=self._logs,
                    first_sinks=() if stream is None else (stream,),
                    sinks=options.sinks,
                    report=options.report,
                    accepts_loss=options.accepts_loss,
                    known=known,
                )
                with closing(await open_run_log(lease, holder, opening)) as log:
                    log.announce = Announcer(self.host, self.store)
                    yield log

    async def _release(self, log: RunLog, options: DriveOptions) -> RunState:
        await self._settle(log)
        # After `_settle`, which writes the status of the journal to the index.
        if options.stopper is not None and options.stopper.is_handing_back:
            await mark_claimable(log, self.store, queue=options.lease_terms.queue)
        return log.state

    async def _apply_requested_end(self, log: RunLog) -> None:
        """Apply a cancellation that was requested while no driver polled for it."""
        if log.state.started is None or log.state.phase in FINAL:
            return
        failure = await find_requested_end(self.store, log.state.run_id)
        if failure is not None:
            for child in log.state.children:
                await self.end(child.run_id, failure)
            await log.record(failure)
            await self.approvals.close(log.state.run_id, status=log.state.status)

    async def _adopt(self, log: RunLog, services: Services, *, run: PreparedRun) -> None:
        """Record that the run now belongs to this store."""
        assert log.state.started is not None, "only a run that was started elsewhere is adopted"
        adopted = build_adoption(log.state.started, services, run=run, pins=await pin(services, run))
        await log.record(seal(adopted, self.host, log.state.run_id))

    async def _run_loop(
        self,
        log: RunLog,
        services: Services,
        options: DriveOptions,
        *,
        answer: Answer | None,
        code: Mapping[str, str] | None = None,
    ) -> None:
        stopper = options.stopper or Stopper(services.runtime.signal_grace_seconds)
        self._report_changes(log, services)
        if not stopper.is_set:
            await self._check_provider(log, services)
        terms = options.lease_terms
        keeper = LeaseKeeper(lease=log.lease, store=self.store, seconds=terms.lease_seconds)
        run_id, seconds, parks = log.state.run_id, options.timeout_seconds, log.state.limits.on_limit == "park"
        # In parallel to the loop, so that a timeout or a requested end also stops a hanging model call.
        async with (
            delivering(self.host, self.store, is_pooled=terms.is_pooled),
            bounded(stopper, self.store, run_id, timeout_seconds=seconds, parks=parks),
        ):
            with stopper.holding(keeper):
                await self._loop(log, services, replace(options, stopper=stopper), answer=answer, code=code or {})

    async def _loop(
        self,
        log: RunLog,
        services: Services,
        options: DriveOptions,
        *,
        answer: Answer | None,
        code: Mapping[str, str],
    ) -> None:
        """Drive the run, ask the user and follow its children, until it ends or the user doesn't answer."""
        assert options.stopper is not None
        stopper = options.stopper
        until = None if options.timeout_seconds is None else anyio.current_time() + options.timeout_seconds
        addressed = await address(answer, log.state, self.store)
        # Children are driven together, and the user reads one question at a time.
        ask, ask_question = one_at_a_time(options.ask, options.ask_question)

        async def drive_child(run_id: str, stopper: Stopper, *, request: RunRequest | None) -> RunState:
            # Only a share of the time, so that some is left for the parent to use the result.
            left = None if until is None else max(0.0, until - anyio.current_time()) * services.runtime.delegation_share
            child = replace(
                options,
                sinks=borrow_sinks(options.sinks),
                inbox=None,
                stopper=stopper,
                timeout_seconds=left,
                # The lease belongs to the parent: the child acquires its own.
                lease_terms=replace(options.lease_terms, lease=None),
                ask=ask,
                ask_question=ask_question,
                # A child fails at its limit. Only the run that the user started asks to raise one.
                ask_for_limit=None,
            )
            if request is None:
                return await self._resume(run_id, addressed.find_for(run_id), child, code=code)
            return await self.start_child(run_id, request, child)

        await drive(log, services, stopper)
        while (
            await self._ask_approvals(log, services, ask, stopper=stopper)
            or await self._ask_question(log, services, ask_question, stopper=stopper)
            or await follow_children(log, services, stopper=stopper, drive_child=drive_child)
        ):
            # The first pass has used the answer. Later questions are new.
            addressed = Addressed(answer=None)
            await drive(log, services, stopper)

    async def _check_provider(self, log: RunLog, services: Services) -> None:
        """End the run before the first request if its provider has no key."""
        if (
            isinstance(services.provider, UnavailableProvider)
            and log.state.phase not in FINAL
            and not is_planned(log.state)
        ):
            failure = services.provider.failure
            if log.state.phase == "LOAD_SKILL_CATALOG":
                # The run won't load the catalog, so report problems of skills together with the missing key.
                report_skill_problems(log, services)
            await log.record(RunFailed(reason=failure.reason, message=failure.sentence))

    async def _ask_approvals(self, log: RunLog, services: Services, ask: Asker | None, *, stopper: Stopper) -> bool:
        """Ask the user about open approvals. Return False if the run stays paused."""
        remembered = await ask_for_approval(log.state, ask, self.approvals, stopper=stopper)
        return remembered is not None and await self._take_answer(log, Answer(), services, remembered=remembered)

    async def _ask_question(
        self, log: RunLog, services: Services, ask: QuestionAsker | None, *, stopper: Stopper
    ) -> bool:
        """Ask the user a question or about an interrupted step. Return False if the run stays paused."""
        row = await self.store.find_run(log.state.run_id) if ask is not None and not stopper.is_set else None
        if ask is None or row is None or not waits_for_answer(log.state, "input", "in_doubt"):
            return False
        # Before asking, so that the index shows meanwhile that the run waits.
        await log.update_index()
        answer: Answer | None = None
        with stopper.interruptible():
            answer = await ask(compute_status(row, log.state))
        return answer is not None and await self._take_answer(log, answer, services)

    async def _take_answer(
        self,
        log: RunLog,
        answer: Answer,
        services: Services,
        *,
        remembered: frozenset[str] = frozenset(),
        has_resumed: bool = False,
    ) -> bool:
        return await take_answer(
            log, answer, services, approvals=self.approvals, remembered=remembered, has_resumed=has_resumed
        )

    def _report_changes(self, log: RunLog, services: Services) -> None:
        pins = log.state.started.pins if log.state.started else {}
        for definition in services.changed:
            log.emit(PinnedDefinitionUsed(definition=definition, pinned=pins[definition]))
        for notice in services.notices:
            log.emit(notice)

    async def _settle(self, log: RunLog) -> None:
        """Update the summary and the index, and remove worktrees that are no longer needed."""
        # Shielded: if a cancellation interrupted this, the index would show the run as interrupted.
        with anyio.CancelScope(shield=True):
            folder = self.folder(log.state.run_id)
            await self._write_summary(log, folder)
            await remove_ended(self.host, self.store, log.state, folder=folder)

    async def _write_summary(self, log: RunLog, folder: Path) -> None:
        # Usage before the index: a run that is listed as ended must be included in the totals.
        await record_usage(self.store, log.state)
        await log.update_index()
        # Resuming an ended run changes nothing, and rendering the record of a long run would take longer than the rest.
        if log.state.started is None or is_current(folder, log.state):
            return
        entries = await read_entries(self.store, log.state.run_id)
        # The record can be rebuilt from the journal. On a full disk it is written at the next pause or end instead.
        with suppress(OSError, ConfigError):
            clean = build_host_cleaner(self.host).value
            write_record(folder, entries, log.state, now=self.host.clock.now(), clean=clean)


def _can_ask_question(state: RunState, options: DriveOptions) -> bool:
    return options.ask_question is not None and waits_for_answer(state, "input", "in_doubt")
