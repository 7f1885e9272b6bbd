"""A fleet as a discrete-event simulation: workers with cores, one database with a group commit, a queue, a model.

Time is simulated: a minute of ten thousand runs takes seconds. What a step costs is measured elsewhere and handed in.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial

type Resume = Callable[[], None]
type Wait = Callable[[Resume], None]
"""Something that a process waits for; it calls back when it is over."""
type Process = Generator[Wait]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTimes:
    """Measured times, in seconds per run or per turn."""

    run_cpu: float
    turn_cpu: float
    """Of a worker."""
    run_commits: float
    turn_commits: float
    commit_cpu: float
    """Of the database server."""
    flush: float
    """One write of the log to its disk; all commits that wait when it begins share it."""
    tool: float
    """Duration of a step's effect in addition to the worker's CPU time."""
    log_bytes: float = 0.0
    """Of the database, for a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    workers: int
    """Processes with one core each."""
    concurrency: int
    database_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    runs_per_second: float = 0.0
    """Arrive at random; 0 with `at_once`."""
    at_once: int = 0
    turns: int = 11
    seconds: float = 120.0
    """Duration of arrivals, and of the observation."""
    latency: Callable[[random.Random], float] = lambda chance: chance.lognormvariate(0.7, 0.6)
    """Of the model: by default 2 s in the middle, 5.4 s for one in twenty."""
    lost_at: float = 0.0
    """Time at which a third of the workers is lost; 0 for never."""
    lease_seconds: float = 15.0


@dataclass(slots=True)
class Outcome:
    completed: int = 0
    ended_at: float = 0.0
    waits: list[float] = field(default_factory=list[float])
    """From the arrival of a run to its first worker."""
    deepest_queue: int = 0
    most_at_once: int = 0
    commits: int = 0
    flushes: int = 0
    database_cpu: float = 0.0
    worker_cpu: float = 0.0
    recovered_at: float = 0.0
    """Time at which the queue was empty again after the loss."""

    def wait(self, share: float) -> float:
        ordered = sorted(self.waits) or [0.0]
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Resume]] = []
        self._count = 0

    def after(self, seconds: float, resume: Resume) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, resume))

    def sleep(self, seconds: float) -> Wait:
        return partial(self.after, seconds)

    def start(self, process: Process) -> None:
        self._go_on(process)

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, resume = heapq.heappop(self._events)
            resume()

    def _go_on(self, process: Process) -> None:
        wait = next(process, None)
        if wait is not None:
            wait(partial(self._go_on, process))


class Cores:
    """So many that compute; others wait in a row."""

    def __init__(self, clock: Clock, count: int) -> None:
        self._clock = clock
        self._free = count
        self._row: deque[tuple[float, Resume]] = deque()
        self.busy = 0.0

    def use(self, seconds: float) -> Wait:
        return lambda resume: self._ask(seconds, resume)

    def _ask(self, seconds: float, resume: Resume) -> None:
        self._row.append((seconds, resume))
        self._serve()

    def _serve(self) -> None:
        while self._free and self._row:
            seconds, resume = self._row.popleft()
            self._free -= 1
            self.busy += seconds
            self._clock.after(seconds, partial(self._finish, resume))

    def _finish(self, resume: Resume) -> None:
        self._free += 1
        resume()
        self._serve()


class Log:
    """Group commit: one flush at a time, for all that wait when it begins."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._waiting: list[Resume] = []
        self._is_busy = False
        self.commits = self.flushes = 0

    def commit(self, resume: Resume) -> None:
        self.commits += 1
        self._waiting.append(resume)
        if not self._is_busy:
            self._flush()

    def _flush(self) -> None:
        served, self._waiting = self._waiting, []
        self._is_busy = True
        self.flushes += 1
        self._clock.after(self._seconds, partial(self._finish, served))

    def _finish(self, served: list[Resume]) -> None:
        self._is_busy = False
        for resume in served:
            resume()
        if self._waiting and not self._is_busy:
            self._flush()


@dataclass(eq=False, slots=True)
class _Worker:
    cores: Cores
    free: int
    is_lost: bool = False
    runs: "set[_Run]" = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Run:
    arrived: float
    turns: int
    """That are left: the journal keeps those that were done."""
    was_taken: bool = False


def simulate(fleet: Fleet, times: ServiceTimes, load: Load, *, seed: int = 1) -> Outcome:
    return _Simulation(fleet, times, load, chance=random.Random(seed)).run()


class _Simulation:
    def __init__(self, fleet: Fleet, times: ServiceTimes, load: Load, *, chance: random.Random) -> None:
        self._times, self._load, self._chance = times, load, chance
        self._clock = Clock()
        self._log = Log(self._clock, times.flush)
        self._database = Cores(self._clock, fleet.database_cores)
        self._workers = [_Worker(Cores(self._clock, 1), fleet.concurrency) for _ in range(fleet.workers)]
        self._queue: deque[_Run] = deque()
        self._at_once = 0
        self._outcome = Outcome()

    def run(self) -> Outcome:
        for _ in range(self._load.at_once):
            self._arrive(_Run(0.0, self._load.turns))
        if self._load.runs_per_second:
            self._clock.start(self._arrivals())
        if self._load.lost_at:
            self._clock.after(self._load.lost_at, self._lose_a_zone)
        self._clock.run(until=self._load.seconds if not self._load.at_once else float("inf"))
        found, log = self._outcome, self._log
        found.commits, found.flushes = log.commits, log.flushes
        found.database_cpu = self._database.busy
        found.worker_cpu = sum(worker.cores.busy for worker in self._workers)
        return found

    def _arrivals(self) -> Process:
        while True:
            yield self._clock.sleep(self._chance.expovariate(self._load.runs_per_second))
            self._arrive(_Run(self._clock.now, self._load.turns))

    def _arrive(self, run: _Run) -> None:
        self._queue.append(run)
        self._outcome.deepest_queue = max(self._outcome.deepest_queue, len(self._queue))
        self._hand_out()

    def _hand_out(self) -> None:
        while self._queue:
            worker = max(self._workers, key=lambda worker: worker.free)
            if worker.free <= 0:
                return
            worker.free -= 1
            run = self._queue.popleft()
            if not run.was_taken:
                self._outcome.waits.append(self._clock.now - run.arrived)
                run.was_taken = True
            self._at_once += 1
            worker.runs.add(run)
            self._outcome.most_at_once = max(self._outcome.most_at_once, self._at_once)
            self._clock.start(self._drive(run, worker))
        if self._load.lost_at and self._clock.now > self._load.lost_at + self._load.lease_seconds:
            self._outcome.recovered_at = self._outcome.recovered_at or self._clock.now

    def _drive(self, run: _Run, worker: _Worker) -> Process:
        times = self._times
        yield worker.cores.use(times.run_cpu)
        yield from self._commit(times.run_commits)
        while run.turns:
            yield worker.cores.use(times.turn_cpu)
            yield from self._commit(times.turn_commits)
            yield self._clock.sleep(self._load.latency(self._chance) + (times.tool if run.turns > 1 else 0.0))
            if worker.is_lost:  # another worker takes it when the lease is over; this turn is asked for again
                return
            run.turns -= 1
        worker.runs.discard(run)
        self._outcome.completed += 1
        self._outcome.ended_at = self._clock.now
        self._at_once -= 1
        worker.free += 1
        self._hand_out()

    def _commit(self, count: float) -> Process:
        whole = int(count) + (self._chance.random() < count % 1)
        for _ in range(whole):
            yield self._database.use(self._times.commit_cpu)
            yield self._log.commit

    def _lose_a_zone(self) -> None:
        """The runs of lost workers come back to the queue when their leases are over; journals say how far each was."""
        for worker in self._workers[: len(self._workers) // 3]:
            worker.is_lost, worker.free = True, -1
            self._at_once -= len(worker.runs)
            self._clock.after(self._load.lease_seconds, partial(self._take_over, worker))

    def _take_over(self, worker: _Worker) -> None:
        for run in sorted(worker.runs, key=lambda run: run.arrived):
            self._arrive(run)
