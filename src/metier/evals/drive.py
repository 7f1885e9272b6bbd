"""Run a case live: in a folder of its own, under an id that follows from what is run, so that it is started once.

Killed at any moment, the next call with the same id continues with what is recorded: a reply that was paid for is not
asked for again.
"""

import hashlib
import shutil
from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.engine.state.run_state import RunState
from metier.evals.bench import Variant, build_bench, open_bench
from metier.evals.cases import EvalCase
from metier.evals.targets import SourcedCase, Target
from metier.ids import Ids
from metier.runtime.child_runs import request_task
from metier.runtime.driver import DriveOptions
from metier.runtime.history.archive import Archive
from metier.runtime.history.transfer import export_run
from metier.runtime.questions.answers import Answer
from metier.runtime.questions.approval_questions import ApprovalQuestion, Reply
from metier.runtime.questions.resumption import RaisedLimits
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.runtime.status import BUDGET, PROVIDER, exit_code
from metier.store.base import Store

BY = "eval"
_MAX_ATTEMPTS = 100


class Slot(Struct, frozen=True, kw_only=True):
    """One run of an eval."""

    variant: Variant
    sourced: SourcedCase
    repetition: int = 1

    @property
    def key(self) -> str:
        """The same for the same run of the same eval, in any process."""
        words = f"{self.variant.name}\0{self.sourced.file}\0{self.sourced.case.id}\0{self.repetition}"
        return hashlib.sha256(words.encode()).hexdigest()[:16]


class Bench(Struct, frozen=True, kw_only=True):
    """Where the runs of an eval live."""

    folder: Path
    store: Store

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def locate(self, slot: Slot, attempt: int) -> Path:
        return self.folder / "bench" / f"{slot.key}-{attempt}"


class Driven(Struct, frozen=True, kw_only=True):
    """A run that ended or waits."""

    slot: Slot
    archive: Archive
    root: Path
    runtime: Runtime
    state: RunState
    is_new: bool
    """It was driven now, not found as it was."""


class FixedIds(Struct, frozen=True):
    """Gives one id to the run that is started, and fresh ones for everything else."""

    fixed: str
    ids: Ids

    def run_id(self, started: datetime) -> str:
        del started
        return self.fixed

    def trace_id(self) -> str:
        return self.ids.trace_id()

    def span_id(self) -> str:
        return self.ids.span_id()


async def drive_slot(target: Target, slot: Slot, bench: Bench, *, max_cost_usd: float | None = None) -> Driven:
    """Begin the run, or continue with it, or find it as it ended. A run whose provider failed is started again."""
    for attempt in range(1, _MAX_ATTEMPTS):
        run_id = f"eval-{slot.key}-{attempt}"
        root = bench.locate(slot, attempt)
        runtime = _open_runtime(target, slot, bench, root=root, run_id=run_id, max_cost_usd=max_cost_usd)
        begun = await bench.store.find_run(run_id) is not None
        if begun:
            state = await runtime.read(run_id)
            if state.status == "failed" and exit_code(state) == PROVIDER:
                continue
        state, is_new = await _drive(target, slot, runtime, root=root, run_id=run_id, begun=begun)
        archive = await export_run(runtime, run_id)
        return Driven(slot=slot, archive=archive, root=root, runtime=runtime, state=state, is_new=is_new)
    raise AssertionError(f"the provider failed {_MAX_ATTEMPTS} times")


def _open_runtime(
    target: Target, slot: Slot, bench: Bench, *, root: Path, run_id: str, max_cost_usd: float | None
) -> Runtime:
    case = slot.sourced.case
    host = open_bench(target, root, variant=_answer(slot.variant, case), case=case, runs=bench.runs)
    if max_cost_usd is not None:
        limits = host.settings.runtime
        least = min(max_cost_usd, limits.max_cost_usd or max_cost_usd)
        runtime = limits.model_copy(update={"max_cost_usd": least})
        host = replace(host, settings=host.settings.model_copy(update={"runtime": runtime}))
    return Runtime(replace(host, ids=FixedIds(run_id, host.ids)), bench.store)


def _answer(variant: Variant, case: EvalCase) -> Variant:
    return replace(variant, provider=case.provider) if case.provider and not variant.provider else variant


async def _drive(
    target: Target, slot: Slot, runtime: Runtime, *, root: Path, run_id: str, begun: bool
) -> tuple[RunState, bool]:
    case = slot.sourced.case
    watch = DriveOptions(
        ask=None if case.approvals == "wait" else _Answering(case), timeout_seconds=case.budget.timeout_seconds
    )
    if begun:
        state = await runtime.read(run_id)
        answer = _raise_budget(state, runtime)
        if answer is None and state.status not in ("in_progress", "paused", "delegating"):
            return state, False
        return await runtime.resume(run_id, answer, watch), True
    # What a kill left of a folder whose run never began is not what the case sets up.
    shutil.rmtree(root, ignore_errors=True)
    build_bench(target, slot.sourced, root, variant=slot.variant)
    return await runtime.start(_request(target, slot, runtime), watch), True


def _raise_budget(state: RunState, runtime: Runtime) -> Answer | None:
    """A run that its part of the budget ended continues where there is more of it now."""
    allowed = runtime.host.settings.runtime.max_cost_usd
    is_over = exit_code(state) == BUDGET and state.limits.max_cost_usd is not None
    if not is_over or allowed is None or allowed <= (state.limits.max_cost_usd or 0):
        return None
    return Answer(by=BY, raised=RaisedLimits(max_cost_usd=allowed), reopens=True)


def _request(target: Target, slot: Slot, runtime: Runtime) -> RunRequest:
    case = slot.sourced.case
    if target.kind == "task":
        return request_task(runtime.host, target.id, dict(case.inputs))
    return RunRequest(task=case.prompt)


class _Answering(Struct, frozen=True):
    """Says to every question what the case says."""

    case: EvalCase

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        del question
        return Reply(decision="approved" if self.case.approvals == "approve" else "denied", by=BY)
