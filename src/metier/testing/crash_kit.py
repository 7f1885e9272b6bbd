"""Kill a run with SIGKILL wherever it leaves a trace, let fresh processes continue with it, and check what must hold.

    report = check_crashes(build)
    assert report.ok, report.render()

`build(folder, reach)` makes your scenario (`metier.testing.crash_scenario`): a task, a model that answers from the
request, tools and skills whose effects call `record_effect`. Linux and macOS; processes are looked for in `/proc`.
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

from pydantic import JsonValue

from metier.testing.crash_child import OUTCOME, Order, Outcome
from metier.testing.crash_points import CrashPoint, read_points
from metier.testing.crash_scenario import Build
from metier.tools.effects import Effect

ORPHAN_SECONDS = 5.0
"""How long processes of a killed agent may take to be gone."""


def record_effect(effects: Path, *, effect: Effect, name: str, key: str) -> None:
    """Count an effect, so that one that happened twice or never is seen. One line, synced."""
    line = json.dumps({"effect": effect, "name": name, "key": key}) + "\n"
    descriptor = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_effects(effects: Path) -> list[dict[str, str]]:
    """What `record_effect` counted."""
    if not effects.exists():
        return []
    return [json.loads(line) for line in effects.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What came of the undisturbed run."""

    points: tuple[CrashPoint, ...]
    outcome: Outcome
    effects: dict[str, int]
    """How many different keys each effect had."""
    artifacts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashOutcome:
    """One kill, and what became of the run."""

    point: CrashPoint
    violations: tuple[str, ...] = ()
    lives: int = 0
    asked: tuple[str, ...] = ()
    resume_seconds: float = 0
    """Until the run continued; how long it then took to its end is not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    outcomes: tuple[CrashOutcome, ...]

    @property
    def ok(self) -> bool:
        return not any(outcome.violations for outcome in self.outcomes)

    def render(self) -> str:
        """What was broken where, then the figures."""
        broken = [f"{o.point}: {violation}" for o in self.outcomes for violation in o.violations]
        times = [outcome.resume_seconds for outcome in self.outcomes] or [0.0]
        asked = Counter(kind for outcome in self.outcomes for kind in outcome.asked)
        kills = sum(max(outcome.lives - 1, 0) for outcome in self.outcomes)
        figures = (
            f"{kills} kills, {len(broken)} violations; answered {dict(asked)};"
            f" resumed in {statistics.median(times):.2f} s (median), {max(times):.2f} s (most)"
        )
        return "\n".join([*broken, figures])


def check_crashes(
    build: Build, *, folder: Path | None = None, points: Sequence[CrashPoint] | None = None
) -> CrashReport:
    """Kill at every point, or at those given, one after the other. `build` is a function at the top of a file."""
    with tempfile.TemporaryDirectory() as temporary, CrashKit(build, folder or Path(temporary)) as kit:
        baseline = kit.survey()
        return kit.check_all(points or baseline.points, baseline)


@dataclass
class CrashKit:
    """Lives of one scenario, each in its own process, each case in its own folder."""

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
        # Closes its standard input, at which it ends.
        self._process.communicate()

    def survey(self) -> Baseline:
        """Run undisturbed, twice: the first time warms up what is kept between runs."""
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
        """Kill at `point`; kill the resuming processes at these points of theirs; let one continue; look."""
        case = self.open_case()
        first = self.live(Order(folder=str(case), name=point.name, occurrence=point.occurrence))
        if first["code"] != -9:
            return CrashOutcome(point=point, violations=(f"not reached: ended with {first['code']}",))
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
        """Check these points, so many of them in one run; those of one run are spread over it."""
        if together == 1:
            return CrashReport(outcomes=tuple(self.check(point, baseline) for point in points))
        runs = -(-len(points) // together)
        series = [points[number::runs] for number in range(runs)]
        return CrashReport(outcomes=tuple(found for each in series for found in self.check_series(each, baseline)))

    def check_series(self, points: Sequence[CrashPoint], baseline: Baseline) -> tuple[CrashOutcome, ...]:
        """Kill one run at all of these points, one after the other; let one process continue from the last; look.

        For each point it costs a part of a run, and `check` costs a whole one. Where something is wrong, or a process
        does not come to its point, each point is checked alone as well: that says which of them it is.
        """
        places = {point: place for place, point in enumerate(baseline.points)}
        ordered = sorted(points, key=places.__getitem__)
        case = self.open_case()
        logs: list[dict[Path, bytes]] = []
        passed: Counter[str] = Counter()
        reached = 0
        for point in ordered:
            # A process counts from its own start; what was lost with the kill before, it comes to once more.
            order = Order(folder=str(case), name=point.name, occurrence=point.occurrence - passed[point.name])
            last = self.live(order)
            if last["code"] != -9:
                break
            logs.append(_read_logs(case))
            reached += 1
            passed = Counter(each.name for each in baseline.points[: places[point] + 1])
        else:
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
        """What is not as after the undisturbed run."""
        problems = [*_compare(outcome, baseline), *_check_effects(self._effects(case), baseline)]
        if self._artifacts(case) != baseline.artifacts:
            problems.append("an artifact differs")
        return [*problems, *_check_orphans(case)]

    def open_case(self) -> Path:
        """An empty folder."""
        return Path(tempfile.mkdtemp(prefix="case-", dir=self.folder))

    def begin(self, order: Order) -> None:
        """Start a life without waiting for its end."""
        assert self._process is not None
        assert self._process.stdin is not None
        Path(order.folder, order.outcome).unlink(missing_ok=True)
        print(order.model_dump_json(), file=self._process.stdin, flush=True)

    def wait(self) -> dict[str, JsonValue]:
        """How the first of those that were started ended: `code`, `seconds`, and the `outcome` that its order named."""
        assert self._process is not None
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError("The process that starts the others has ended; see its standard error")
        return json.loads(answer)

    def live(self, order: Order) -> dict[str, JsonValue]:
        """One life, to its end."""
        self.begin(order)
        return self.wait()

    def _effects(self, case: Path) -> list[dict[str, str]]:
        return read_effects(self.build(case, _pass_by).effects)

    def _artifacts(self, case: Path) -> dict[str, str]:
        files = self.build(case, _pass_by).artifacts
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.exists()}


def _pass_by(_name: str) -> None:
    return None


def read_outcome(case: Path, name: str = OUTCOME) -> Outcome:
    """What the last life under this name came to."""
    try:
        return Outcome.model_validate_json((case / name).read_bytes())
    except FileNotFoundError:
        return Outcome(error="it left no outcome")


def _compare(outcome: Outcome, baseline: Baseline) -> list[str]:
    if outcome.error:
        return [outcome.error]
    problems = list(outcome.problems)
    for name in ("status", "result", "turns", "skills", "steps", "runs"):
        found, expected = getattr(outcome, name), getattr(baseline.outcome, name)
        if found != expected:
            problems.append(f"{name} is {found!r}, undisturbed it is {expected!r}")
    return problems


def _count_keys(effects: Iterable[dict[str, str]]) -> dict[str, int]:
    return dict(Counter(name for name, _ in {(effect["name"], effect["key"]) for effect in effects}))


def _check_effects(effects: list[dict[str, str]], baseline: Baseline) -> list[str]:
    """Opaque ones once, the others at least once and under one key, none lost."""
    opaque = Counter((effect["name"], effect["key"]) for effect in effects if effect["effect"] == "opaque")
    problems = [f"opaque effect {name!r} happened {count} times" for (name, _), count in opaque.items() if count > 1]
    found = _count_keys(effects)
    for name in sorted(found.keys() | baseline.effects.keys()):
        there, expected = found.get(name, 0), baseline.effects.get(name, 0)
        if there != expected:
            problems.append(f"effect {name!r} has {there} keys, undisturbed {expected}")
    return problems


def _read_logs(case: Path) -> dict[Path, bytes]:
    """Whole records only: half a record was not written."""
    logs: dict[Path, bytes] = {}
    for log in case.rglob("events.jsonl"):
        data = log.read_bytes()
        logs[log] = data[: data.rfind(b"\n") + 1]
    return logs


def _check_logs(before: dict[Path, bytes], case: Path) -> list[str]:
    after = _read_logs(case)
    return [f"{log.name} lost events" for log, data in before.items() if not after.get(log, b"").startswith(data)]


def _check_orphans(case: Path) -> list[str]:
    """Nothing that was started for this case is left."""
    until = time.monotonic() + ORPHAN_SECONDS
    while left := _list_processes(str(case).encode()):
        if time.monotonic() > until:
            return [f"{len(left)} processes are left"]
        time.sleep(0.01)
    return []


def _list_processes(mark: bytes) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
