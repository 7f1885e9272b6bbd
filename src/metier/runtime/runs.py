"""The door to runs: start, resume, answer, cancel, find. Every interface comes through here; it delegates."""

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio
from pydantic import JsonValue

from metier.engine import entries as e
from metier.engine.journal import RunLog, read_entries
from metier.engine.loop import Driver as LogDriver
from metier.engine.loop import drive, hold_lease, open_log
from metier.engine.phases import FINAL
from metier.engine.services import Services
from metier.engine.state import RunState, fold
from metier.engine.stopping import Stopper
from metier.engine.unwrapping import unwrapped
from metier.errors import ApprovalClosed, UsageError
from metier.events import PinnedDefinitionUsed
from metier.providers.absent import AbsentProvider
from metier.providers.base import Observer
from metier.runtime.approvals import Approvals, Question, Reply
from metier.runtime.bounds import ask_to_cancel, bounded, build_cancellation, build_timeout, forget_cancellation
from metier.runtime.build import build_services, check_budget
from metier.runtime.cleaning import build_place_cleaner
from metier.runtime.kind import RunKind
from metier.runtime.pins import pin, use_pinned_settings
from metier.runtime.place import Place
from metier.runtime.record import write_record
from metier.runtime.shift import Shift, begin_shift
from metier.store.base import Lease, RunRow, Store
from metier.store.failures import LeaseHeld, RunUnknown, StoreUnavailable
from metier.store.opening import open_store
from metier.telemetry.jsonl import FILE_NAME, JsonlSink, read_events
from metier.telemetry.sinks import EventWriter, FanOut, RunScope, Sink, get_redaction_mode

DRY_RUN = "dry_run"
"""The reason in the index of a dry run that has not begun."""

type Asker = Callable[[Question], Awaitable[Reply | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    task: str
    mode: Literal["live", "dry_run"] = "live"
    extra_context: str = ""


def _ignore(_problem: str) -> None:
    return None


_BY_HAND = Shift()


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who looks on: sinks get every event, `observe` the text of a reply while it grows, `stopper` can end it."""

    sinks: Sequence[Sink] = ()
    observe: Observer | None = None
    stopper: Stopper | None = None
    ask: Asker | None = None
    """Whom to ask in place when an approval is needed; without it, or if it answers nothing, the run parks."""
    timeout_seconds: float | None = None
    """How long the run may be driven, all in all."""
    report: Callable[[str], None] = _ignore
    """Told when a sink breaks; the run goes on without it."""
    shift: Shift = _BY_HAND
    """On what terms the run is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person says to a run that waits."""

    values: dict[str, JsonValue] | None = None
    doubt: Literal["done", "retry", "skip", "abort"] | None = None
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Whoever writes into a run without driving it."""

    store: Store
    owner: str


class Runtime:
    """Runs of one workspace."""

    def __init__(self, place: Place, store: Store) -> None:
        self.place = place
        self.store = store
        self.approvals = Approvals(store, place.clock)

    def folder(self, run_id: str) -> Path:
        return self.place.runs / run_id

    async def start(self, request: RunRequest, watch: Watch | None = None, *, queue: str = "") -> RunState:
        """Begin a run and drive it until it ends or waits for somebody. Raises `UsageError` before it begins.

        With a `queue`, workers may claim it when it is handed back.
        """
        check_budget(self.place)
        now = self.place.clock.now()
        run_id = self.place.ids.run_id(now)
        row = RunRow(
            run_id=run_id,
            context_id=run_id,
            status="pending",
            task=request.task,
            model=self.place.settings.model.name,
            created_at=now,
            updated_at=now,
            reason=DRY_RUN if request.mode == "dry_run" else "",
            queue=queue,
        )
        await self.store.create_run(row)
        return await self._drive(run_id, watch or Watch(), request=request)

    async def resume(self, run_id: str, answer: Answer | None = None, watch: Watch | None = None) -> RunState:
        """Go on with a run: after an answer, an approval, a signal or a crash. An ended run is left as it is."""
        entries = await read_entries(self.store, run_id)
        if not entries:
            # Killed before its first entry: nothing was done, and the index knows what was wanted.
            row = await self.find(run_id)
            request = RunRequest(task=row.task, mode="dry_run" if row.reason == DRY_RUN else "live")
            return await self._drive(run_id, watch or Watch(), request=request)
        started = entries[0]
        assert isinstance(started, e.RunStarted), "a journal begins with the start of its run"
        return await self._drive(run_id, watch or Watch(), answer=answer or Answer(), started=started)

    async def cancel(self, run_id: str, *, by: str) -> RunState:
        """End a run for good. One that somebody drives is ended by its driver, which is only asked: see `read`."""
        try:
            return await self._end(run_id, build_cancellation(by))
        except LeaseHeld:
            ask_to_cancel(self.folder(run_id), by=by)
            return await self.read(run_id)

    async def time_out(self, run_id: str, *, seconds: float) -> RunState:
        """End a run whose driver did not end it in time. Raises `LeaseHeld` while that driver is still there."""
        return await self._end(run_id, build_timeout(seconds))

    async def _end(self, run_id: str, failure: e.RunFailed) -> RunState:
        state = await self.read(run_id)
        if state.phase in FINAL or state.started is None:
            return state
        driver = Driver(store=self.store, owner=self.place.owner)
        with unwrapped():
            async with hold_lease(run_id, driver) as lease:
                with closing(await self._open_log(lease, driver, Watch())) as log:
                    if log.state.phase not in FINAL:
                        await log.record(failure, durable=True)
                    await self._settle(log)
                    return log.state
        raise AssertionError("the block above returns or raises")

    async def read(self, run_id: str) -> RunState:
        """The state of a run, without driving it."""
        return fold(run_id, await read_entries(self.store, run_id))

    async def find(self, name: str) -> RunRow:
        """A run by its id, the beginning of its id, or `latest`. Raises `RunUnknown`, or `UsageError` if not clear."""
        prefix = "" if name == "latest" else name
        rows = await self.store.list_runs(prefix=prefix, limit=2)
        if not rows:
            raise RunUnknown(f"There is no run {name!r}", hint="`agent runs list` shows the runs of this workspace")
        if len(rows) > 1 and name != "latest" and rows[0].run_id != name:
            raise UsageError(f"More than one run begins with {name!r}", hint="Write more of the id")
        return rows[0]

    async def _drive(
        self,
        run_id: str,
        watch: Watch,
        *,
        request: RunRequest | None = None,
        answer: Answer | None = None,
        started: e.RunStarted | None = None,
    ) -> RunState:
        mode = started.mode if started else request.mode if request else "live"
        pins = started.pins if started else {}
        run = RunKind(folder=self.folder(run_id), is_dry=mode == "dry_run", pins=pins)
        shift = watch.shift
        holder = Driver(store=self.store, owner=self.place.owner)
        with unwrapped():
            async with hold_lease(run_id, holder, seconds=shift.lease_seconds, held=shift.lease) as lease:
                with closing(await self._open_log(lease, holder, watch)) as log:
                    is_told = await begin_shift(log, shift)
                    if log.state.phase not in FINAL:
                        place = await use_pinned_settings(self.place, pins, self.store)
                        async with build_services(place, self.store, run=run, observe=watch.observe) as services:
                            if request is not None and log.state.started is None:
                                pins = await pin(services, place.settings)
                                await log.record(build_start(request, place, services, pins=pins), durable=True)
                            if answer is None or await self._take_answer(log, answer, services, is_told=is_told):
                                await self._go_on(log, services, watch)
                    await self._settle(log)
                    return log.state
        raise AssertionError("the block above returns or raises")

    async def _go_on(self, log: RunLog, services: Services, watch: Watch) -> None:
        """Drive, and ask whoever sits at the terminal, until nobody there has an answer."""
        stopper = watch.stopper or Stopper(services.runtime.signal_grace_seconds)
        self._tell_of_changes(log, services)
        if not stopper.is_set:
            await self._check_provider(log, services)
        await log.update_index()
        async with bounded(stopper, services.run_folder, timeout_seconds=watch.timeout_seconds):
            await drive(log, services, stopper)
            while await self._ask_person(log, services, watch.ask, stopper=stopper):
                await drive(log, services, stopper)

    async def _check_provider(self, log: RunLog, services: Services) -> None:
        """A key that is missing ends the run before anything is sent."""
        if isinstance(services.provider, AbsentProvider) and log.state.phase not in FINAL:
            failure = services.provider.failure
            await log.record(e.RunFailed(reason=failure.reason, message=failure.sentence), durable=True)

    async def _open_log(self, lease: Lease, services: LogDriver, watch: Watch) -> RunLog:
        path = self.folder(lease.run_id) / FILE_NAME
        # Whoever has the lease writes the log, even if another process hangs with its hand on it.
        jsonl = JsonlSink.open(path, clock=self.place.clock, take_over=True)
        told = sum(1 for record in read_events(path) if record.entry)
        fan_out = FanOut([jsonl, *self.place.sinks, *watch.sinks], report=watch.report)
        trace_id = hashlib.sha256(lease.run_id.encode()).hexdigest()[:32]
        mode = get_redaction_mode(self.place.settings.logging)
        writer = EventWriter(
            fan_out,
            build_place_cleaner(self.place),
            scope=RunScope(run_id=lease.run_id, trace_id=trace_id, redaction_mode=mode),
            clock=self.place.clock,
            ids=self.place.ids,
            next_seq=jsonl.next_seq,
        )
        try:
            return await open_log(lease, services, writer, told=told)
        except BaseException:
            writer.close()
            raise

    async def _ask_person(self, log: RunLog, services: Services, ask: Asker | None, *, stopper: Stopper) -> bool:
        """Put an open approval before whoever sits at the terminal; False when the run stays parked."""
        pause = log.state.pause
        if ask is None or stopper.is_set or pause is None or pause.pause != "approval":
            return False
        asking = next(step for step in log.state.steps if step.phase == "asking")
        question = await self.approvals.get(asking.approval_id)
        reply: Reply | None = None
        with stopper.interruptible():
            reply = await ask(question)
        if reply is None:
            return False
        remembered: frozenset[str] = frozenset()
        # Who was faster elsewhere has decided; the run goes on with that.
        with suppress(ApprovalClosed):
            await self.approvals.decide(question, reply)
            remembered = frozenset({asking.approval_id} if reply.remember else ())
        return await self._take_answer(log, Answer(), services, remembered=remembered)

    async def _take_answer(
        self,
        log: RunLog,
        answer: Answer,
        services: Services,
        *,
        remembered: frozenset[str] = frozenset(),
        is_told: bool = False,
    ) -> bool:
        """Record what was answered meanwhile; False when the run still waits, or has ended.

        `is_told` where the journal says already that this driver goes on with the run.
        """
        state = log.state
        if state.phase in FINAL:
            return False
        entries = [*await self._decided(state, remembered), *_given(state, answer)]
        waits_for_someone = state.pause is not None and state.pause.pause in ("approval", "input", "in_doubt")
        if waits_for_someone and not entries:
            return False
        reason = state.pause.reason if state.pause else _reason_to_go_on(state)
        disabled = tuple(sorted(services.read_access()))
        if is_told and not entries and state.disabled == frozenset(disabled):
            return True
        await log.record(e.RunResumed(reason=reason, driver=log.lease.owner, disabled_tools=disabled), *entries)
        return True

    def _tell_of_changes(self, log: RunLog, services: Services) -> None:
        pins = log.state.started.pins if log.state.started else {}
        for definition in services.changed:
            log.emit(PinnedDefinitionUsed(definition=definition, pinned=pins[definition]))
        for notice in services.notices:
            log.emit(notice)

    async def _decided(self, state: RunState, remembered: frozenset[str]) -> list[e.Entry]:
        asking = {step.approval_id: step.step_id for step in state.steps if step.phase == "asking"}
        found = await self.approvals.find_decisions(state.run_id, asking) if asking else []
        return [entry.model_copy(update={"remember": entry.approval_id in remembered}) for entry in found]

    async def _settle(self, log: RunLog) -> None:
        """Whatever reads a run without its journal gets to know how it stands; cancelling does not interrupt it."""
        with anyio.CancelScope(shield=True):
            await self._write_summary(log)
        if log.state.phase in FINAL:
            forget_cancellation(self.folder(log.state.run_id))

    async def _write_summary(self, log: RunLog) -> None:
        await log.update_index()
        if log.state.started is None:
            return
        entries = await read_entries(self.store, log.state.run_id)
        # The journal is the run: where there is no room for its record, that is written when it next comes to rest.
        with suppress(OSError):
            write_record(self.folder(log.state.run_id), entries, log.state, now=self.place.clock.now())


def build_start(request: RunRequest, place: Place, services: Services, *, pins: dict[str, str]) -> e.RunStarted:
    settings = place.settings
    runtime = settings.runtime
    run_id = services.run_folder.name
    return e.RunStarted(
        task=request.task,
        mode=request.mode,
        provider=services.provider.name,
        model=settings.model.name if services.provider.name != "offline" else "offline",
        profile=runtime.profile,
        context_id=run_id,
        trace_id=hashlib.sha256(run_id.encode()).hexdigest()[:32],
        workspace=str(place.workspace),
        limits=e.Limits(
            max_turns=runtime.max_turns, max_cost_usd=runtime.max_cost_usd, on_step_failure=runtime.on_step_failure
        ),
        pins=pins,
        extra_context=request.extra_context,
    )


def _reason_to_go_on(state: RunState) -> str:
    started = state.started
    if started is not None and started.forked_at == state.seq:
        return f"forked from run {started.parent_run_id} at entry {started.forked_at}"
    return "after an interruption"


def _given(state: RunState, answer: Answer) -> list[e.Entry]:
    if answer.values is not None and state.question is not None:
        return [e.InputGiven(request_id=state.question.request_id, values=answer.values, answered_by=answer.by)]
    doubtful = next((step for step in state.steps if step.phase == "in_doubt"), None)
    if answer.doubt is not None and doubtful is not None:
        return [e.DoubtResolved(step_id=doubtful.step_id, answer=answer.doubt, answered_by=answer.by)]
    return []


@asynccontextmanager
async def open_runtime(place: Place) -> AsyncGenerator[Runtime]:
    """The runs of a workspace, for as long as the block lasts."""
    try:
        place.runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(
            f"The runs folder {str(place.runs)!r} cannot be made: {error.strerror}",
            hint="Choose a folder that you may write to with `logging.jsonl_dir`",
        ) from error
    store = await open_store(place.settings.store, runs=place.runs, environ=place.environ, clock=place.clock)
    try:
        yield Runtime(place, store)
    finally:
        await store.close()
