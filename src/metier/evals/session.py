"""An eval that runs cases live: a set of runs in its own folder, with a plan that another process can continue.

<runs>/evals/<id>/plan.json    what is run: written before the first run begins
<runs>/evals/<id>/runs/        journals and store of the runs
<runs>/evals/<id>/bench/       the folder of each run
<runs>/evals/<id>/result.json  what came of it
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from msgspec.structs import replace
from pydantic import Field, ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.errors import MetierError, UsageError
from metier.evals.bench import Variant, list_moved
from metier.evals.cases import Sentence
from metier.evals.drive import Bench, Driven, Slot, drive_slot
from metier.evals.evaluation import begin_row, evaluate, open_evidence
from metier.evals.judge import JudgeRun
from metier.evals.recordings import CaseRecording, Judged, RecordingNote, write_recording
from metier.evals.results import RunRow
from metier.evals.targets import SourcedCase, Target
from metier.messages import Value
from metier.runtime.history.transfer import relocate_run
from metier.runtime.host import Host
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.status import BUDGET, PROVIDER, exit_code

_LEAST = 1e-6

FOLDER = "evals"
PLAN, RESULT = "plan.json", "result.json"


@dataclass(slots=True)
class Purse:
    """Runs of one process share one. Without a limit it gives everything and counts."""

    limit_usd: float | None
    jobs: int = 1
    spent_usd: float = 0.0
    set_aside_usd: float = 0.0
    is_used_up: bool = False

    def reserve(self, *, remaining: int) -> float | None:
        """What the next of `remaining` runs may cost; None where there is no limit. Check `is_used_up` first."""
        if self.limit_usd is None:
            return None
        available = self.limit_usd - self.spent_usd - self.set_aside_usd
        if available < _LEAST:
            self.is_used_up = True
            return 0.0
        share = available / max(1, min(self.jobs, remaining))
        self.set_aside_usd += share
        return share

    def settle(self, reserved: float | None, *, spent_usd: float) -> None:
        self.set_aside_usd -= reserved or 0.0
        self.spent_usd += spent_usd


class Plan(Value):
    """What an eval runs, in words that another process understands."""

    id: str
    target: str
    record: bool = False
    repeat: int = 1
    against: str = ""
    cases: tuple[str, ...] = ()
    """Ids; empty for all."""
    judge: str = ""
    jobs: int = Field(default=4, ge=1)
    max_cost_usd: float | None = None
    provider: str = ""
    model: str = ""
    triggers: bool = False
    """The cases are the trigger queries of the skill."""
    started_at: str = ""


def write_plan(folder: Path, plan: Plan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / PLAN, plan.model_dump_json(indent=2).encode() + b"\n", durable=True)


def load_plan(runs: Path, eval_id: str) -> Plan:
    """By id, its beginning, or `latest`. Raises `UsageError`."""
    folders = sorted(path.parent for path in (runs / FOLDER).glob(f"*/{PLAN}"))
    found = folders[-1:] if eval_id == "latest" else [path for path in folders if path.name.startswith(eval_id)]
    if len(found) != 1:
        known = ", ".join(path.name for path in folders[-3:]) or "none"
        raise UsageError(f"There is no live eval {eval_id!r}, or more than one", hint=f"The newest: {known}")
    try:
        return Plan.model_validate_json((found[0] / PLAN).read_bytes())
    except (OSError, ValidationError) as error:
        raise UsageError(f"The plan of eval {found[0].name!r} cannot be read", hint="Start it again") from error


@dataclass(slots=True)
class Session:
    """Drives the runs of one eval. One process at a time: the leases of the runs keep two from doing the same."""

    target: Target
    plan: Plan
    folder: Path
    purse: Purse
    report: Callable[[RunRow], None] = lambda _: None
    rows: dict[str, RunRow] = field(default_factory=dict[str, RunRow])
    _runtime: Runtime | None = None

    async def run(self, variants: Sequence[Variant], cases: Sequence[SourcedCase]) -> tuple[RunRow, ...]:
        """A row for each slot, cases in order, variants beside each other."""
        self.target.check_trusted()
        slots = [
            Slot(variant=variant, sourced=sourced, repetition=number)
            for number in range(1, self.plan.repeat + 1)
            for sourced in cases
            for variant in variants
        ]
        async with self._open_runtime() as runtime:
            self._runtime = runtime
            bench = Bench(folder=self.folder, store=runtime.store)
            judge = self._open_judge(runtime)
            await self._count_spent(slots, bench)
            limiter = anyio.CapacityLimiter(self.plan.jobs)
            remaining = [len(slots)]
            async with anyio.create_task_group() as tasks:

                async def work(slot: Slot) -> None:
                    async with limiter:
                        self.rows[slot.key] = await self._run_slot(slot, bench, judge, remaining=remaining)
                        self.report(self.rows[slot.key])

                for slot in slots:
                    tasks.start_soon(work, slot)
        return tuple(self.rows[slot.key] for slot in slots)

    def _open_runtime(self) -> AbstractAsyncContextManager[Runtime]:
        host = self.target.host
        logging = host.settings.logging.model_copy(update={"jsonl_dir": str(self.folder / "runs"), "shard": "off"})
        store = type(host.settings.store)()
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = host.settings.model_copy(update={"logging": logging, "store": store})
        return open_runtime(replace(host, settings=settings, workspace=self.folder))

    def _open_judge(self, runtime: Runtime) -> JudgeRun | None:
        if not self.plan.judge:
            return None
        return JudgeRun(self.target.host, runtime.store, folder=self.folder, model=self.plan.judge)

    async def _count_spent(self, slots: Sequence[Slot], bench: Bench) -> None:
        """What an earlier process spent counts."""
        for slot in slots:
            state = await Runtime(self.target.host, bench.store).read(f"eval-{slot.key}-1")
            self.purse.spent_usd += state.cost_usd

    async def _run_slot(self, slot: Slot, bench: Bench, judge: JudgeRun | None, *, remaining: list[int]) -> RunRow:
        row = begin_row(slot.sourced, variant=slot.variant.name, repetition=slot.repetition)
        before = (await Runtime(self.target.host, bench.store).read(f"eval-{slot.key}-1")).cost_usd
        reserved = self.purse.reserve(remaining=max(1, remaining[0]))
        remaining[0] -= 1
        if self.purse.is_used_up:
            return row.model_copy(update={"reasons": ("the budget was used up before",)})
        spent = 0.0
        try:
            # The limit of a run holds for all of it, also for what it cost before it was cut short.
            limit = None if reserved is None else reserved + before
            driven = await drive_slot(self.target, slot, bench, max_cost_usd=limit)
            spent = driven.state.cost_usd - before
            row, judged_cost = await self._grade(driven, row, judge)
            spent += judged_cost
        except MetierError as error:
            row = row.model_copy(update={"status": "error", "reasons": (error.sentence,)})
        finally:
            self.purse.settle(reserved, spent_usd=spent)
        return row

    async def _grade(self, driven: Driven, row: RunRow, judge: JudgeRun | None) -> tuple[RunRow, float]:
        sourced = driven.slot.sourced
        evidence = open_evidence(driven.archive, sourced)
        judged: Mapping[str, Judged] = {}
        cost = 0.0
        sentences = [check for check in sourced.case.checks if isinstance(check, Sentence)]
        if judge is not None and sentences:
            judged, cost = await judge.ask(driven.slot.key, sentences, evidence)
        row = await evaluate(
            row, evidence, target=self.target, sourced=sourced, host=driven.runtime.host, judged=judged
        )
        row = row.model_copy(update={"judge_cost_usd": cost})
        code = exit_code(driven.state)
        if code == PROVIDER:
            row = row.model_copy(update={"status": "error", "reasons": (evidence.result,)})
        elif code == BUDGET and self.purse.limit_usd is not None:
            self.purse.is_used_up = True
            row = row.model_copy(update={"status": "not_run", "reasons": ("the budget was used up during the run",)})
        elif self.plan.record:
            await self._record(driven, judged)
        return row, cost

    async def _record(self, driven: Driven, judged: Mapping[str, Judged]) -> None:
        moved = list_moved(driven.root, self.folder / "runs", self.target.host)
        base = str(self.target.host.workspace.parent)
        archive = await relocate_run(driven.archive, driven.runtime, moved=moved, base=base)
        sourced = driven.slot.sourced
        note = RecordingNote(case=sourced.case.digest, files=self.target.digest_files(), judged=dict(judged))
        write_recording(sourced, CaseRecording(archive, note))


def open_session(target: Target, plan: Plan, host: Host, *, report: Callable[[RunRow], None]) -> Session:
    folder = host.runs / FOLDER / plan.id
    purse = Purse(limit_usd=plan.max_cost_usd, jobs=plan.jobs)
    return Session(target=target, plan=plan, folder=folder, purse=purse, report=report)
