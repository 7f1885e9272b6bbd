"""A short run on the real engine and on deliberately broken ones, which the suite must detect."""

import copy
import dataclasses
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace
from pydantic import JsonValue
from reference_scenario import AskFor, Call, Narrator

from metier.engine.entries.entry import Entry, render_entry
from metier.engine.entries.step import StepRetried
from metier.engine.journal import RunLog
from metier.engine.projection import project
from metier.engine.services import Services
from metier.engine.state.fold import apply
from metier.runtime.answers import Answer
from metier.runtime.driver import UNATTENDED, DriveOptions
from metier.runtime.host import Host
from metier.runtime.partials import PartialStream
from metier.runtime.runs import Runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.store.backend import DATABASE
from metier.store.base import Lease, Store, StoredEntry
from metier.store.machine import Machine
from metier.store.wrapper import StoreWrapper
from metier.testing.crash_kit import record_effect
from metier.testing.crash_points import Points
from metier.testing.crash_scenario import OpenStore, Reach, Scenario, open_pointed_sqlite
from metier.testing.recorded_effect import RecordedEffect, build_settle
from metier.tools.base import ToolContext, ToolResult

LINES: list[list[Call]] = [
    [("look", {}), ("look", {"at": "b"})],
    [("post", {})],
    [("launch", {})],
    [("ask_user", {"question": "Go on?"})],
    [("pay", {})],
    [("finish", {"result": "done"})],
]


def build(folder: Path, reach: Reach) -> Scenario:
    effects = folder / "effects.jsonl"
    tools = (
        RecordedEffect("look", "read", effects, reach),
        RecordedEffect("post", "keyed", effects, reach),
        RecordedEffect("launch", "opaque", effects, reach),
        RecordedEffect("pay", "opaque", effects, reach),
    )
    host = Host(
        trust=MADE_HERE,
        settings=Settings(),
        workspace=folder,
        home=folder / "home",
        environ={},
        provider=Narrator(LINES),
        tools=tools,
        narrow=lambda policy: AskFor(policy, "pay"),
    )
    return Scenario(
        host=host, task="A short run", effects=effects, settle=build_settle(effects), answer=lambda _question: {}
    )


def open_with(wrap: Callable[[Store], Store]) -> OpenStore:
    async def open_store(host: Host, points: Points, *, machine: Machine | None) -> Store:
        return wrap(await open_pointed_sqlite(host, points, machine=machine))

    return open_store


class LateIntents(StoreWrapper):
    """An engine that starts the effect before recording its intent: both are written at the end."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self._held: list[StoredEntry] = []

    async def append(
        self,
        lease: Lease,
        first_seq: int,
        entries: Sequence[StoredEntry],
        *,
        durable: bool = True,
    ) -> None:
        self._held += entries
        if entries[-1].kind == "step_started":
            return
        held, self._held = self._held, []
        await super().append(lease, held[0].seq, held, durable=durable)


def build_late_intents(folder: Path, reach: Reach) -> Scenario:
    return dataclasses.replace(build(folder, reach), open_store=open_with(LateIntents))


@dataclass
class Backlog:
    """Effects that were reported as done but not executed yet."""

    left: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def work_off(self) -> None:
        while self.left:
            self.left.pop()()


@dataclass(frozen=True, slots=True)
class LaterDeed(RecordedEffect):
    """A tool that reports success and has its effect only after the result is recorded."""

    backlog: Backlog

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        key = context.idempotency_key
        self.backlog.left.append(lambda: record_effect(self.effects, effect=self.effect, name=self.name, key=key))
        return ToolResult(ok=True, output="done")


class EarlyResults(StoreWrapper):
    """An engine that records the result before the effect."""

    def __init__(self, inner: Store, backlog: Backlog) -> None:
        super().__init__(inner)
        self._backlog = backlog

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        await super().append(lease, first_seq, entries, durable=durable)
        if any(entry.kind == "step_finished" for entry in entries):
            self._backlog.work_off()


def build_early_results(folder: Path, reach: Reach) -> Scenario:
    whole = build(folder, reach)
    backlog = Backlog()
    tools = tuple(
        LaterDeed(tool.name, tool.effect, tool.effects, tool.reach, backlog)
        if isinstance(tool, RecordedEffect) and tool.name != "look"
        else tool
        for tool in whole.host.tools
    )
    host = replace(whole.host, tools=tools)
    return dataclasses.replace(whole, host=host, open_store=open_with(lambda store: EarlyResults(store, backlog)))


class TalkativeLog(RunLog):
    """An event log that reports an entry before it is written."""

    async def record(self, *entries: Entry) -> None:
        await super().record()
        if not entries:
            return
        ahead = copy.deepcopy(self.state)
        for entry in entries:
            apply(ahead, entry)
            for payload in project(entry, ahead):
                self._writer.emit(payload, entry=ahead.seq)
        first = self.state.seq + 1
        stored = [StoredEntry(first + i, entry.kind, render_entry(entry)) for i, entry in enumerate(entries)]
        await self._store.append(self._lease, first, stored)
        for entry in entries:
            apply(self.state, entry)


class TalkativeRuntime(Runtime):
    @asynccontextmanager
    async def writing(
        self,
        run_id: str,
        options: DriveOptions = UNATTENDED,
        *,
        known: Sequence[Entry] = (),
        stream: PartialStream | None = None,
    ) -> AsyncGenerator[RunLog]:
        async with super().writing(run_id, options, known=known, stream=stream) as log:
            talkative = TalkativeLog(log.state, store=log._store, lease=log._lease, writer=log._writer)  # pyright: ignore[reportPrivateUsage]
            talkative.announce = log.announce
            yield talkative


def build_early_events(folder: Path, reach: Reach) -> Scenario:
    return dataclasses.replace(build(folder, reach), open_runtime=TalkativeRuntime)


class RashRuntime(Runtime):
    """A driver that repeats interrupted steps, like most other engines."""

    async def _take_answer(
        self,
        log: RunLog,
        answer: Answer,
        services: Services,
        *,
        remembered: frozenset[str] = frozenset(),
        has_resumed: bool = False,
    ) -> bool:
        taken = await super()._take_answer(log, answer, services, remembered=remembered, has_resumed=has_resumed)
        running = [step for step in log.state.steps if step.phase == "running"] if taken else []
        for step in running:
            await log.record(StepRetried(step_id=step.step_id, reason="it was under way"))
        return taken


def build_rash_recovery(folder: Path, reach: Reach) -> Scenario:
    return dataclasses.replace(build(folder, reach), open_runtime=RashRuntime)


class NaiveStore(StoreWrapper):
    """A store without fencing that appends at the journal's end for any driver."""

    def __init__(self, inner: Store, database: Path) -> None:
        super().__init__(inner)
        self._database = database

    async def append(
        self,
        lease: Lease,
        first_seq: int,
        entries: Sequence[StoredEntry],
        *,
        durable: bool = True,
    ) -> None:
        last = len(await self.inner.read_journal(lease.run_id))
        moved = [replace(entry, seq=last + 1 + index) for index, entry in enumerate(entries)]
        await super().append(self._find_current(lease), last + 1, moved, durable=durable)

    async def renew_lease(self, lease: Lease, *, seconds: float) -> None:
        await super().renew_lease(self._find_current(lease), seconds=seconds)

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        await super().update_run(self._find_current(lease), changes)

    def _find_current(self, lease: Lease) -> Lease:
        connection = sqlite3.connect(self._database)
        query = "SELECT owner, token FROM leases WHERE run_id = ?"
        owner, token = connection.execute(query, (lease.run_id,)).fetchone()
        connection.close()
        return dataclasses.replace(lease, owner=owner, token=token)


def build_naive_store(folder: Path, reach: Reach) -> Scenario:
    whole = build(folder, reach)
    return dataclasses.replace(whole, open_store=open_with(lambda store: NaiveStore(store, whole.host.runs / DATABASE)))
