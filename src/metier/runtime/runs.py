"""The door to runs: start, resume, answer, cancel, find. Every interface comes through here; it delegates."""

import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from metier.engine import entries as e
from metier.engine.journal import RunLog, read_entries
from metier.engine.loop import drive, hold_lease, open_log
from metier.engine.services import Services
from metier.engine.state import RunState, fold
from metier.engine.stopping import Stopper
from metier.errors import ApprovalClosed, UsageError
from metier.events import PinnedDefinitionUsed
from metier.providers.absent import AbsentProvider
from metier.providers.base import Observer
from metier.runtime.approvals import Approvals, Question, Reply
from metier.runtime.build import build_place_cleaner, build_services
from metier.runtime.pins import pin
from metier.runtime.place import Place
from metier.runtime.policy import read_policy_file
from metier.runtime.record import write_record
from metier.store.base import Lease, RunRow, Store
from metier.store.failures import RunUnknown
from metier.store.sqlite import open_sqlite_store
from metier.telemetry.jsonl import FILE_NAME, JsonlSink, read_events
from metier.telemetry.sinks import EventWriter, FanOut, RunScope, Sink, get_redaction_mode

DATABASE = "state.db"

type Asker = Callable[[Question], Awaitable[Reply | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    task: str
    mode: Literal["live", "dry_run"] = "live"
    extra_context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Who looks on: sinks get every event, `observe` the text of a reply while it grows, `stopper` can end it."""

    sinks: Sequence[Sink] = ()
    observe: Observer | None = None
    stopper: Stopper | None = None
    ask: Asker | None = None
    """Whom to ask in place when an approval is needed; without it, or if it answers nothing, the run parks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person says to a run that waits."""

    values: dict[str, JsonValue] | None = None
    doubt: Literal["done", "retry", "skip", "abort"] | None = None
    by: str = ""


class Runtime:
    """Runs of one workspace."""

    def __init__(self, place: Place, store: Store) -> None:
        self.place = place
        self.store = store
        self.approvals = Approvals(store, place.clock)

    def folder(self, run_id: str) -> Path:
        return self.place.runs / run_id

    async def start(self, request: RunRequest, watch: Watch | None = None) -> RunState:
        """Begin a run and drive it until it ends or waits for somebody."""
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
        )
        await self.store.create_run(row)
        return await self._drive(run_id, watch or Watch(), request=request)

    async def resume(self, run_id: str, answer: Answer | None = None, watch: Watch | None = None) -> RunState:
        """Go on with a run: after an answer, an approval, a signal or a crash. An ended run is left as it is."""
        return await self._drive(run_id, watch or Watch(), answer=answer or Answer())

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
        self, run_id: str, watch: Watch, *, request: RunRequest | None = None, answer: Answer | None = None
    ) -> RunState:
        folder = self.folder(run_id)
        pins = await self._read_pins(run_id)
        stopper = watch.stopper or Stopper(self.place.settings.runtime.signal_grace_seconds)
        async with (
            build_services(self.place, self.store, run_folder=folder, pins=pins, observe=watch.observe) as services,
            hold_lease(run_id, services) as lease,
        ):
            log = await self._open_log(lease, services, watch)
            if request is not None:
                packages = tuple(services.shelf.packages.values())
                policy = read_policy_file(self.place.workspace)
                pins = await pin(packages, self.place.settings, self.store, policy=policy)
                await log.record(build_start(request, self.place, services, pins=pins), durable=True)
            if answer is None or await self._take_answer(log, answer, services):
                self._tell_of_changes(log, services)
                await self._check_provider(log, services)
                await drive(log, services, stopper)
                while await self._ask_person(log, services, watch.ask, stopper=stopper):
                    await drive(log, services, stopper)
            await self._settle(log)
            return log.state

    async def _read_pins(self, run_id: str) -> dict[str, str]:
        state = await self.read(run_id)
        return state.started.pins if state.started else {}

    async def _check_provider(self, log: RunLog, services: Services) -> None:
        """A key that is missing ends the run before anything is sent."""
        if isinstance(services.provider, AbsentProvider):
            failure = services.provider.failure
            await log.record(e.RunFailed(reason=failure.reason, message=failure.message), durable=True)

    async def _open_log(self, lease: Lease, services: Services, watch: Watch) -> RunLog:
        path = self.folder(lease.run_id) / FILE_NAME
        told = sum(1 for record in read_events(path) if record.entry) if path.exists() else 0
        jsonl = JsonlSink.open(path, clock=self.place.clock)
        problems: list[str] = []
        fan_out = FanOut([jsonl, *watch.sinks], report=problems.append)
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
        return await open_log(lease, services, writer, told=told)

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
        self, log: RunLog, answer: Answer, services: Services, *, remembered: frozenset[str] = frozenset()
    ) -> bool:
        """Record what was answered meanwhile; False when the run still waits, or has ended."""
        state = log.state
        if state.phase in ("DONE", "ERROR"):
            return False
        entries = [*await self._decided(state, remembered), *_given(state, answer)]
        waits_for_someone = state.pause is not None and state.pause.pause in ("approval", "input", "in_doubt")
        if waits_for_someone and not entries:
            return False
        reason = state.pause.reason if state.pause else "after an interruption"
        disabled = tuple(sorted(services.read_access()))
        await log.record(e.RunResumed(reason=reason, driver=log.lease.owner, disabled_tools=disabled), *entries)
        return True

    def _tell_of_changes(self, log: RunLog, services: Services) -> None:
        pins = log.state.started.pins if log.state.started else {}
        for definition in services.changed:
            log.emit(PinnedDefinitionUsed(definition=definition, pinned=pins[definition]))

    async def _decided(self, state: RunState, remembered: frozenset[str]) -> list[e.Entry]:
        asking = {step.approval_id: step.step_id for step in state.steps if step.phase == "asking"}
        found = await self.approvals.find_decisions(state.run_id, asking) if asking else []
        return [entry.model_copy(update={"remember": entry.approval_id in remembered}) for entry in found]

    async def _settle(self, log: RunLog) -> None:
        await log.update_index()
        entries = await read_entries(self.store, log.state.run_id)
        write_record(self.folder(log.state.run_id), entries, log.state, now=self.place.clock.now())
        log.close()


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
    place.runs.mkdir(parents=True, exist_ok=True)
    store = await open_sqlite_store(place.runs / DATABASE, clock=place.clock)
    try:
        yield Runtime(place, store)
    finally:
        await store.close()
