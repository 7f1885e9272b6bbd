"""A process of the crash kit that starts a scenario, or continues it after an earlier process was killed.

`python -m metier.testing.crash_child FILE FUNCTION` loads the scenario once. For each JSON line on standard input it
forks a process that runs the scenario, and prints the exit code of each. Several can run at once. A fork of a process
that has only loaded modules behaves like a new process, but starts faster.
"""

import gc
import importlib.util
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Literal

import anyio
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.engine.journal import read_entries
from metier.engine.projection import list_task_steps, project
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.errors import MetierError
from metier.runtime.answers import Answer
from metier.runtime.driver import DriveOptions
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime
from metier.store.machine import SystemMachine
from metier.telemetry.jsonl import read_events
from metier.testing.crash_points import CrashPoint, PointedSink, Points, instrument, watch_files
from metier.testing.crash_scenario import Build, Scenario
from metier.values import Value

OUTCOME = "outcome.json"
MAX_ROUNDS = 60
"""Maximum number of answers. A run that needs more would not terminate."""


class Order(Value):
    """A request to run the scenario in a process, with the point at which to kill it."""

    folder: str
    name: str = ""
    occurrence: int = 1
    index: int = 0
    action: Literal["kill", "stop"] = "kill"
    ahead_seconds: float = 0
    """Offset of the process's clock. A minute ahead, leases of 15 seconds have expired."""
    outcome: str = OUTCOME
    """Name of the file for the outcome. The process ID is written to the same name with `.pid` appended."""

    @property
    def point(self) -> CrashPoint | None:
        return CrashPoint(self.name, self.occurrence) if self.name else None


class Outcome(Value):
    """The outcome of a process that reached the end of the scenario."""

    error: str = ""
    """Class and message of the exception, if one was raised."""
    status: str = ""
    result: str = ""
    turns: int = 0
    skills: tuple[str, ...] = ()
    steps: tuple[tuple[str, str, str], ...] = ()
    """ID, tool and status of each step."""
    asked: tuple[str, ...] = ()
    """Kinds of the questions that were answered."""
    runs: int = 1
    """Number of runs: the run itself and its children."""
    problems: tuple[str, ...] = ()
    """Descriptions of differences between the journal and the event log."""
    resume_seconds: float = 0
    """Time from the start of the process to its first event."""


class MachineAhead(Struct, frozen=True):
    """This machine with a shifted uptime, as a process sees it after a suspension."""

    real: SystemMachine
    seconds: float

    def boot_id(self) -> str:
        return self.real.boot_id()

    def uptime(self) -> float:
        return self.real.uptime() + self.seconds

    def process(self) -> str:
        return self.real.process()

    def is_gone(self, process: str) -> bool:
        return self.real.is_gone(process)


def load_build(file: Path, function: str) -> Build:
    """Load the scenario's function from its file, because test files may not be importable as modules."""
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))  # the file may import others of its folder
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before the code runs, as `import` does: dataclasses and pydantic look up the module of a class by its name.
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, function)


async def live(build: Build, order: Order) -> Outcome:
    """Start or continue the scenario's run, and answer its questions until it ends."""
    started_at = time.monotonic()
    folder = Path(order.folder)
    points = Points(folder / "points", at=order.point, at_index=order.index, action=order.action)
    scenario = build(folder, points.reach)
    shared = instrument(scenario.host, points)
    # A fleet shares only its store, which is therefore opened with the shared host and not with this one.
    host = replace(shared, workspace=_make_own_folder(folder)) if scenario.apart else shared
    watch_files(host.runs, points)
    machine = MachineAhead(SystemMachine(), order.ahead_seconds) if order.ahead_seconds else None
    store = await scenario.open_store(shared, points, machine=machine)
    runtime = scenario.open_runtime(host, store)
    sink = PointedSink(host.runs, points)
    watch = DriveOptions(sinks=[sink])
    asked: list[str] = []
    try:
        # Before the run continues: the journal grows past a log that was ahead of it, and the difference is gone.
        problems = await list_early_events(runtime)
        state = await _continue_run(runtime, scenario, watch)
        while state.phase not in ("DONE", "ERROR") and len(asked) < MAX_ROUNDS:
            waiting = await runtime.get_waiting(state)
            asked.append(waiting.pause.pause if waiting.pause else "nothing")
            state = await runtime.resume(state.run_id, await _answer(runtime, scenario, waiting), watch)
        rows = await runtime.store.list_runs()
        for row in rows:
            problems += await list_log_problems(runtime, row.run_id)
        outcome = _build_outcome(state, asked, problems).model_copy(update={"runs": len(rows)})
        return outcome.model_copy(update={"resume_seconds": (sink.first_at or started_at) - started_at})
    # Only our own errors are outcomes. A bug ends the process with a traceback and exit code 1.
    except MetierError as error:
        return Outcome(error=f"{type(error).__name__}: {error.message}", asked=tuple(asked))
    finally:
        await store.close()


def _make_own_folder(folder: Path) -> Path:
    own = folder / f"life-{sum(1 for _ in folder.glob('life-*')) + 1}"
    own.mkdir()
    return own


async def _continue_run(runtime: Runtime, scenario: Scenario, watch: DriveOptions) -> RunState:
    if await runtime.store.list_runs():
        return await runtime.resume((await runtime.find("latest")).run_id, options=watch)
    request = RunRequest(task=scenario.task, extra_context=scenario.extra_context)
    if scenario.build_request is not None:
        request = scenario.build_request(runtime.host)
    return await runtime.start(request, watch)


async def _answer(runtime: Runtime, scenario: Scenario, state: RunState) -> Answer:
    for row in await runtime.store.list_approvals(run_id=state.run_id, status="open"):
        await runtime.store.decide_approval(row.approval_id, status="approved", decided_by="crash kit")
    if state.question is not None:
        return Answer(values=scenario.answer(state.question.question), by="crash kit")
    doubtful = next((step for step in state.steps if step.phase == "in_doubt"), None)
    if doubtful is not None and doubtful.started is not None:
        return Answer(doubt=scenario.settle(doubtful.started.idempotency_key), by="crash kit")
    return Answer()


async def list_early_events(runtime: Runtime) -> list[str]:
    """Return events that refer to an entry that the journal does not have."""
    problems: list[str] = []
    for row in await runtime.store.list_runs():
        log = runtime.folder(row.run_id) / "events.jsonl"
        last = max((record.entry for record in read_events(log)), default=0) if log.exists() else 0
        entries = len(await runtime.store.read_journal(row.run_id))
        if last > entries:
            problems.append(f"the log has an event of entry {last}, but the journal ends at {entries}")
    return problems


async def list_log_problems(runtime: Runtime, run_id: str) -> list[str]:
    """Return missing, duplicate and unordered events of a log."""
    state = RunState(run_id)
    expected: list[tuple[int, str]] = []
    for entry in await read_entries(runtime.store, run_id):
        apply(state, entry)
        expected += [(state.seq, payload.event_type) for payload in project(entry, state)]
    records = list(read_events(runtime.folder(run_id) / "events.jsonl"))
    problems: list[str] = []
    # Events of entry 0, such as retries and signals, are observations that the journal does not have.
    if [(record.entry, record.event_type) for record in records if record.entry] != expected:
        problems.append("the event log is not the projection of the journal")
    if [record.seq for record in records] != sorted({record.seq for record in records}):
        problems.append("events are not in order")
    return problems


def _build_outcome(state: RunState, asked: list[str], problems: list[str]) -> Outcome:
    steps = tuple(
        (step.step_id, step.tool, step.status) for exchange in state.run for step in exchange.steps if step.step_id
    )
    steps += tuple((step.step_id, step.file, step.state) for step in list_task_steps(state))
    return Outcome(
        status=state.status,
        result=state.result or (state.failure.message if state.failure else ""),
        turns=state.turn,
        skills=tuple(state.used_skills),
        steps=steps,
        asked=tuple(asked),
        problems=tuple(problems),
    )


def live_and_report(build: Build, order: Order) -> None:
    """Run the scenario, and write the outcome to the folder."""
    file = Path(order.folder, order.outcome)
    # A process that stops itself with SIGSTOP can only be continued by another one, which needs its ID.
    file.with_name(f"{file.name}.pid").write_text(str(os.getpid()), encoding="ascii")
    outcome = anyio.run(live, build, order)
    file.write_text(outcome.model_dump_json(), encoding="utf-8")


class _Life(Struct, frozen=True, kw_only=True):
    """A forked process."""

    order: Order
    started_at: float


def _fork(build: Build, order: Order) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # Both are the parent's: a child process of this fork would otherwise wake the parent through the shared pipe.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        live_and_report(build, order)
        code = 0
    finally:
        sys.stderr.flush()
        # Not `sys.exit`, which would run the exit handlers of the parent and write its buffered output again.
        os._exit(code)


def _report_ends(lives: dict[int, _Life]) -> None:
    # All of them are asked, because one SIGCHLD can report several ends.
    for child in list(lives):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            life = lives.pop(child)
            answer: dict[str, JsonValue] = {
                "code": os.waitstatus_to_exitcode(status),
                "seconds": round(time.monotonic() - life.started_at, 3),
                "outcome": life.order.outcome,
            }
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


def serve(build: Build) -> None:
    """Fork a process for each line of standard input, and report how each one ended."""
    # A pipe and not asyncio, because every fork would inherit the selector of a running loop.
    woken, waker = os.pipe()
    # `set_wakeup_fd` requires a non-blocking descriptor.
    os.set_blocking(waker, False)
    # Without a handler, Python would not write to the pipe. Without the pipe, `select` would resume after the signal.
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(waker)
    lives: dict[int, _Life] = {}
    unread = b""
    is_asked = True
    while is_asked or lives:
        ready, _, _ = select.select([*([sys.stdin] if is_asked else []), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ends(lives)
        if sys.stdin in ready:
            # Past the buffer of `sys.stdin`: it could hold further orders, of which `select` knows nothing.
            read = os.read(sys.stdin.fileno(), 65536)
            is_asked = bool(read)
            *lines, unread = (unread + read).split(b"\n")
            for order in map(Order.model_validate_json, lines):
                lives[_fork(build, order)] = _Life(order=order, started_at=time.monotonic())


def main() -> None:
    file, function = sys.argv[1:]
    build = load_build(Path(file), function)
    # Forks share the memory of loaded modules, as long as the garbage collector doesn't write to it.
    gc.collect()
    gc.freeze()
    serve(build)


if __name__ == "__main__":
    main()
