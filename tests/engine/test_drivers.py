"""Several drivers of one run: one drives, the others are rejected, and a stalled one is fenced."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import small_scenarios as small
from msgspec.structs import replace

from metier.engine.loop import hold_lease
from metier.runtime.driver import LeaseHolder
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.store.backend import DATABASE
from metier.store.failures import LeaseLost
from metier.store.machine import SystemMachine
from metier.store.sqlite.store import open_sqlite_store
from metier.testing.crash_child import MachineAhead, Order
from metier.testing.crash_kit import Baseline, CrashKit, read_effects, read_outcome
from metier.testing.crash_points import CrashPoint

PROCESSES = 8
STOPPED_SECONDS = 0.7


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashKit]:
    """A process that forks all drivers, so that Metier is imported once."""
    with CrashKit(small.build, tmp_path_factory.mktemp("drivers")) as running:
        yield running


@pytest.fixture(scope="module")
def baseline(kit: CrashKit) -> Baseline:
    return kit.survey()


def wake(case: Path, name: str) -> None:
    """Continue a stopped process."""
    os.kill(int((case / f"{name}.pid").read_text()), signal.SIGCONT)


def wait_until_stopped(case: Path, name: str) -> None:
    """Wait until the process is stopped by polling its state, because its parent does not wait for it."""
    while True:
        file = case / f"{name}.pid"
        if file.exists() and (pid := file.read_text()):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "T":
                return


@pytest.mark.slow
def test_only_a_process_that_git_did_not_need_may_be_missing(kit: CrashKit, baseline: Baseline) -> None:
    unneeded = CrashPoint(name="process:start", occurrence=200)
    surveyed = replace(baseline, points=(*baseline.points, unneeded))
    missing = CrashPoint(name="file:open:missing", occurrence=1)

    report = kit.check_all([unneeded, missing], surveyed)
    later = CrashPoint(name="process:start", occurrence=220)
    early = kit.check(unneeded, replace(surveyed, points=(*surveyed.points, later)))

    assert report.render().startswith("file:open:missing#1: not reached: ended with 0\n")
    assert "1 not reached" in report.render()
    assert early.violations == ("not reached: ended with 0",)


@pytest.mark.slow
def test_exactly_one_of_eight_processes_drives_a_resumed_run(kit: CrashKit) -> None:
    case = kit.open_case()
    kit.live(Order(folder=str(case), name="effect:post:done"))
    names = {f"life-{index}" for index in range(PROCESSES)}
    for name in names:
        # The process that gets the run stops there, so that all others try while it is taken.
        kit.start(Order(folder=str(case), name="store:take_lease:after", action="stop", outcome=name))

    refused = [str(kit.wait()["outcome"]) for _ in range(PROCESSES - 1)]
    (winner,) = names - set(refused)
    wake(case, winner)
    kit.wait()

    errors = [read_outcome(case, name).error for name in refused]
    assert [error.partition(":")[0] for error in errors] == ["LeaseHeld"] * (PROCESSES - 1)
    assert all("drives run" in error for error in errors)
    assert read_outcome(case, winner).status == "completed"
    effects = read_effects(case / "effects.jsonl")
    assert sorted(effect["name"] for effect in effects) == ["launch", "pay", "post", "post"]


def outlive(kit: CrashKit, baseline: Baseline, point: CrashPoint) -> tuple[list[str], str]:
    """Freeze one driver at `point`, let another take over and end the run, then wake the first."""
    case = kit.open_case()
    frozen = Order(folder=str(case), name=point.name, occurrence=point.occurrence, action="stop", outcome="zombie")
    kit.start(frozen)
    wait_until_stopped(case, "zombie")
    stopped = time.monotonic()
    try:
        kit.live(Order(folder=str(case), ahead_seconds=60, outcome="successor"))
        while time.monotonic() - stopped < STOPPED_SECONDS:
            time.sleep(0.05)  # a lease lasts longer than that; the successor only believes that it is over
    finally:
        wake(case, "zombie")
    kit.wait()
    before = read_outcome(case, "successor")
    return kit.list_violations(case, before, baseline), read_outcome(case, "zombie").error


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        CrashPoint("journal:step_started:before", 3),
        CrashPoint("journal:step_started:after", 3),
        CrashPoint("journal:step_started:after", 4),
        CrashPoint("effect:launch:done"),
        CrashPoint("journal:step_finished:before", 2),
        CrashPoint("model:after", 2),
        CrashPoint("journal:run_finished:before"),
    ],
    ids=str,
)
def test_stalled_driver_writes_nothing_after_its_run_was_taken_over(
    point: CrashPoint, kit: CrashKit, baseline: Baseline
) -> None:
    violations, error = outlive(kit, baseline, point)

    assert violations == []
    assert error.startswith("LeaseLost: ")


@pytest.mark.slow
def test_store_without_fencing_is_detected(tmp_path: Path) -> None:
    with CrashKit(small.build_naive_store, tmp_path) as kit:
        violations, _ = outlive(kit, kit.survey(), CrashPoint("model:after", 3))

    assert "opaque effect 'launch' happened 2 times" in violations


@pytest.mark.anyio
async def test_losing_the_lease_cancels_running_steps_and_reports_it(tmp_path: Path) -> None:
    host = small.build(tmp_path, lambda _name: None).host
    was_cut_short = False
    async with open_runtime(host) as runtime:
        run_id = (await runtime.start(RunRequest(task="Wait for me"))).run_id
        ahead = MachineAhead(SystemMachine(), 60)
        other = await open_sqlite_store(host.runs / DATABASE, machine=ahead)

        async def drive_until_stolen() -> None:
            nonlocal was_cut_short
            async with hold_lease(run_id, LeaseHolder(store=runtime.store, owner="me"), seconds=0.05):
                await other.take_lease(run_id, owner="thief", seconds=60)
                try:
                    await anyio.sleep_forever()
                finally:
                    was_cut_short = True

        with anyio.fail_after(100), pytest.raises(LeaseLost, match="'thief' drives it now"):
            await drive_until_stolen()
        await other.close()

    assert was_cut_short
