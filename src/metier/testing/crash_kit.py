"""Kills a run with SIGKILL at every point that leaves a trace, resumes it in new processes, and checks the result.

    report = check_crashes(build)
    assert report.ok, report.render()

`build(folder, reach)` creates your scenario (`metier.testing.crash_scenario`): a task, a model that answers from the
request, tools and skills whose effects call `record_effect`. Linux and macOS; orphaned processes are found in `/proc`.
"""

import hashlib
import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct
from pydantic import JsonValue

from metier.testing.crash_child import OUTCOME, Order, Outcome
from metier.testing.crash_points import CrashPoint, read_points
from metier.testing.crash_scenario import Build
from metier.tools.effects import Effect

ORPHAN_SECONDS = 5.0
"""Time in which the child processes of a killed agent must end."""
PROCESS_START = "process:start"
SPARE_STARTS = 10
"""By how many process starts a run may differ from the surveyed one."""


def record_effect(effects: Path, *, effect: Effect, name: str, key: str) -> None:
    """Append an effect to the file, so that duplicate and lost effects can be detected."""
    line = json.dumps({"effect": effect, "name": name, "key": key}) + "\n"
    descriptor = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # One write with O_APPEND, so that lines of concurrent processes do not mix.
        os.write(descriptor, line.encode())
        # An effect whose record is lost in the kill would look like one that never happened.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_effects(effects: Path) -> list[dict[str, str]]:
    """Read the effects recorded by `record_effect`."""
    if not effects.exists():
        return []
    return [json.loads(line) for line in effects.read_text(encoding="utf-8").splitlines()]


class Baseline(Struct, frozen=True, kw_only=True):
    """The outcome of the run without a kill."""

    points: tuple[CrashPoint, ...]
    outcome: Outcome
    effects: dict[str, int]
    """Number of distinct keys per effect."""
    artifacts: dict[str, str]


class CrashOutcome(Struct, frozen=True, kw_only=True):
    """The consequences of a kill."""

    point: CrashPoint
    is_reached: bool = True
    """False if the run ended without a process that git sometimes doesn't need."""
    violations: tuple[str, ...] = ()
    lives: int = 0
    asked: tuple[str, ...] = ()
    resume_seconds: float = 0
    """Time until the run continued, in contrast to its end."""


class CrashReport(Struct, frozen=True, kw_only=True):
    outcomes: tuple[CrashOutcome, ...]

    @property
    def ok(self) -> bool:
        return not any(outcome.violations for outcome in self.outcomes)

    def render(self) -> str:
        """Return the violations, then a line of figures."""
        broken = [f"{o.point}: {violation}" for o in self.outcomes for violation in o.violations]
        times = [outcome.resume_seconds for outcome in self.outcomes] or [0.0]
        asked = Counter(kind for outcome in self.outcomes for kind in outcome.asked)
        kills = sum(max(outcome.lives - 1, 0) for outcome in self.outcomes)
        missed = sum(not outcome.is_reached for outcome in self.outcomes)
        figures = (
            f"{kills} kills, {len(broken)} violations, {missed} not reached; answered {dict(asked)};"
            f" resumed in {statistics.median(times):.2f} s (median), {max(times):.2f} s (maximum)"
        )
        return "\n".join([*broken, figures])


def check_crashes(
    build: Build, *, folder: Path | None = None, points: Sequence[CrashPoint] | None = None
) -> CrashReport:
    """Kill a run at each point, by default at all of them. `build` must be a top-level function of a file."""
    with tempfile.TemporaryDirectory() as temporary, CrashKit(build, folder or Path(temporary)) as kit:
        baseline = kit.survey()
        return kit.check_all(points or baseline.points, baseline)


@dataclass
class CrashKit:
    """Runs a scenario many times, each time in new processes and in its own folder."""

    build: Build
    folder: Path
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        file = inspect.getfile(self.build)
        command = [sys.executable, "-m", "metier.testing.crash_child", file, self.build.__name__]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        # Closes standard input, which ends the process.
        self._process.communicate()

    def survey(self) -> Baseline:
        """Run twice without a kill. The first run fills caches, which the second and all later runs use."""
        self.live(Order(folder=str(self.open_case())))
        case = self.open_case()
        self.live(Order(folder=str(case)))
        outcome = read_outcome(case)
        if outcome.error or outcome.problems:
            raise AssertionError(f"The scenario does not run undisturbed: {outcome.error} {outcome.problems}")
        effects = _count_keys(self._effects(case))
        points = tuple(read_points(case / "points"))
        return Baseline(points=points, outcome=outcome, effects=effects, artifacts=self._artifacts(case))

    def check(self, point: CrashPoint, baseline: Baseline, *, again: Sequence[int] = ()) -> CrashOutcome:
        """Kill at `point`, then each resuming process at its point in `again`, let the last one finish, and compare."""
        case = self.open_case()
        first = self.live(Order(folder=str(case), name=point.name, occurrence=point.occurrence))
        if first["code"] == 0 and _may_be_missing(point, baseline):
            return CrashOutcome(point=point, is_reached=False)
        if first["code"] != -9:
            return CrashOutcome(point=point, violations=(f"not reached: ended with {first['code']}",))
        # A client may have read these events already, so the resuming process must not change them.
        logs = _read_logs(case)
        lives = 1
        for index in again:
            lives += 1
            self.live(Order(folder=str(case), index=index))
        last = self.live(Order(folder=str(case)))
        violations = [] if last["code"] == 0 else [f"the resuming process ended with {last['code']}"]
        outcome = read_outcome(case)
        violations += [*self.list_violations(case, outcome, baseline), *_check_logs(logs, case)]
        return CrashOutcome(
            point=point,
            violations=tuple(violations),
            lives=lives + 1,
            asked=outcome.asked,
            resume_seconds=outcome.resume_seconds,
        )

    def check_all(self, points: Sequence[CrashPoint], baseline: Baseline, *, together: int = 1) -> CrashReport:
        """Check these points, `together` of them in each run, spread over the run."""
        if together == 1:
            return CrashReport(outcomes=tuple(self.check(point, baseline) for point in points))
        runs = -(-len(points) // together)
        series = [points[number::runs] for number in range(runs)]
        return CrashReport(outcomes=tuple(found for each in series for found in self.check_series(each, baseline)))

    def check_series(self, points: Sequence[CrashPoint], baseline: Baseline) -> tuple[CrashOutcome, ...]:
        """Kill one run at all of these points in turn, let a process continue from the last, and compare.

        A point costs a fraction of a run here, and a whole run in `check`. After a violation, or if a process does not
        reach its point, each point is checked alone to find the one that caused it.
        """
        places = {point: place for place, point in enumerate(baseline.points)}
        ordered = sorted(points, key=places.__getitem__)
        case = self.open_case()
        logs: list[dict[Path, bytes]] = []
        passed: Counter[str] = Counter()
        reached = 0
        for point in ordered:
            # A process counts points from its start, and repeats those after the last recorded one.
            order = Order(folder=str(case), name=point.name, occurrence=point.occurrence - passed[point.name])
            last = self.live(order)
            if last["code"] != -9:
                break
            logs.append(_read_logs(case))
            reached += 1
            passed = Counter(each.name for each in baseline.points[: places[point] + 1])
        else:
            # After the last kill, a process without a point finishes the run.
            last = self.live(Order(folder=str(case)))
        violations = [] if last["code"] == 0 else [f"the resuming process ended with {last['code']}"]
        outcome = read_outcome(case)
        violations += self.list_violations(case, outcome, baseline)
        violations += [problem for before in logs for problem in _check_logs(before, case)]
        together = CrashOutcome(
            point=ordered[-1],
            violations=tuple(f"after kills at {', '.join(map(str, ordered))}: {each}" for each in violations),
            lives=reached + 1,
            asked=outcome.asked,
            resume_seconds=outcome.resume_seconds,
        )
        alone = ordered if violations else ordered[reached:]
        return together, *(self.check(point, baseline) for point in alone)

    def list_violations(self, case: Path, outcome: Outcome, baseline: Baseline) -> list[str]:
        """Return the differences from the run without a kill."""
        problems = [*_compare(outcome, baseline), *_check_effects(self._effects(case), baseline)]
        if self._artifacts(case) != baseline.artifacts:
            problems.append("an artifact differs")
        return [*problems, *_check_orphans(case)]

    def open_case(self) -> Path:
        """Create an empty folder for a case."""
        return Path(tempfile.mkdtemp(prefix="case-", dir=self.folder))

    def start(self, order: Order) -> None:
        """Start a process without waiting for its end."""
        assert self._process is not None
        assert self._process.stdin is not None
        # A killed process writes no outcome, and that of the process before it must not count as its own.
        Path(order.folder, order.outcome).unlink(missing_ok=True)
        print(order.model_dump_json(), file=self._process.stdin, flush=True)

    def wait(self) -> dict[str, JsonValue]:
        """Wait for the next process to end, and return its `code`, `seconds` and `outcome` file."""
        assert self._process is not None
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("The forking process has ended; see its standard error")
        return json.loads(answer)

    def live(self, order: Order) -> dict[str, JsonValue]:
        """Run a process to its end."""
        self.start(order)
        return self.wait()

    def _effects(self, case: Path) -> list[dict[str, str]]:
        return read_effects(self.build(case, _ignore_point).effects)

    def _artifacts(self, case: Path) -> dict[str, str]:
        files = self.build(case, _ignore_point).artifacts
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()}


def _ignore_point(_name: str) -> None:
    return None


def read_outcome(case: Path, name: str = OUTCOME) -> Outcome:
    """Read the outcome that the last process wrote to this file."""
    try:
        return Outcome.model_validate_json((case / name).read_bytes())
    except FileNotFoundError:
        return Outcome(error="the process wrote no outcome")


def _may_be_missing(point: CrashPoint, baseline: Baseline) -> bool:
    """Return True for the last process starts of the surveyed run, which a run of another speed doesn't need."""
    # If a file is as new as git's index, the next `git add` rewrites the index, and the snapshot after it has to list
    # and write the tree again. Whether that happens depends on the clock.
    starts = [each.occurrence for each in baseline.points if each.name == PROCESS_START]
    return point.name == PROCESS_START and point.occurrence > max(starts) - SPARE_STARTS


def _compare(outcome: Outcome, baseline: Baseline) -> list[str]:
    if outcome.error:
        return [outcome.error]
    problems = list(outcome.problems)
    # Not `asked`: a kill can leave a step with an unknown outcome, which is one more question.
    for name in ("status", "result", "turns", "skills", "steps", "runs"):
        found, expected = getattr(outcome, name), getattr(baseline.outcome, name)
        if found != expected:
            problems.append(f"{name} is {found!r}, undisturbed it is {expected!r}")
    return problems


def _count_keys(effects: Iterable[dict[str, str]]) -> dict[str, int]:
    # Keys are counted and not lines, because an idempotent effect may happen again under the same key.
    return dict(Counter(name for name, _ in {(effect["name"], effect["key"]) for effect in effects}))


def _check_effects(effects: list[dict[str, str]], baseline: Baseline) -> list[str]:
    """Report opaque effects that happened twice, other effects with more than one key, and lost effects."""
    opaque = Counter((effect["name"], effect["key"]) for effect in effects if effect["effect"] == "opaque")
    problems = [f"opaque effect {name!r} happened {count} times" for (name, _), count in opaque.items() if count > 1]
    found = _count_keys(effects)
    for name in sorted(found.keys() | baseline.effects.keys()):
        count, expected = found.get(name, 0), baseline.effects.get(name, 0)
        if count != expected:
            problems.append(f"effect {name!r} has {count} keys, undisturbed {expected}")
    return problems


def _read_logs(case: Path) -> dict[Path, bytes]:
    """Read the complete records of each log. A partial last record may be rewritten, so it is ignored."""
    logs: dict[Path, bytes] = {}
    for log in case.rglob("events.jsonl"):
        data = log.read_bytes()
        logs[log] = data[: data.rfind(b"\n") + 1]
    return logs


def _check_logs(before: dict[Path, bytes], case: Path) -> list[str]:
    after = _read_logs(case)
    return [f"{log.name} lost events" for log, data in before.items() if not after.get(log, b"").startswith(data)]


def _check_orphans(case: Path) -> list[str]:
    """Report processes of this case that are still running."""
    until = time.monotonic() + ORPHAN_SECONDS
    while left := _list_processes(str(case).encode()):
        if time.monotonic() > until:
            return [f"{len(left)} processes are still running"]
        time.sleep(0.01)
    return []


def _list_processes(mark: bytes) -> list[int]:
    found: list[int] = []
    # By command line: orphans have another parent, but their arguments contain the folder of the case.
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        # The process ended since the folder was listed.
        except OSError:
            continue
    return found
