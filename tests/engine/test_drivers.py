"""Several drivers of one run: one drives, the others are told; one that was thought dead can do no harm."""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

import anyio
import pytest
import small_scenarios as small

from metier.engine.loop import hold_lease
from metier.runtime.requests import RunRequest
from metier.runtime.runs import LeaseHolder, open_runtime
from metier.store.failures import LeaseLost
from metier.store.machine import SystemMachine
from metier.store.opening import DATABASE
from metier.store.sqlite.store import open_sqlite_store
from metier.testing.crash_child import MachineAhead, Order
from metier.testing.crash_kit import CrashKit, read_effects, read_outcome
from metier.testing.crash_points import CrashPoint
from metier.testing.crash_scenario import Build

PROCESSES = 8

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def kits(tmp_path: Path) -> Iterator[list[CrashKit]]:
    with ExitStack() as running:
        yield [running.enter_context(CrashKit(small.build, tmp_path)) for _ in range(PROCESSES)]


def stdout_of(kit: CrashKit) -> IO[str]:
    assert kit._process is not None  # pyright: ignore[reportPrivateUsage]
    return cast("IO[str]", kit._process.stdout)  # pyright: ignore[reportPrivateUsage]


def wake(case: Path, name: str) -> None:
    """Let a stopped process go on."""
    os.kill(int((case / f"{name}.pid").read_text()), signal.SIGCONT)


def wait_until_stopped(case: Path, name: str) -> None:
    """A stopped process is not waited for by its parent, so we look at its state."""
    while True:
        file = case / f"{name}.pid"
        if file.exists() and (pid := file.read_text()):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if fields[0] == "T":
                return


@pytest.mark.slow
def test_of_eight_processes_that_resume_one_run_exactly_one_drives(kits: list[CrashKit]) -> None:
    case = kits[0].open_case()
    kits[0].live(Order(folder=str(case), name="effect:post:done"))
    for index, kit in enumerate(kits):
        # Whoever gets the run stops there, so that all others try while it is taken.
        kit.begin(Order(folder=str(case), name="store:take_lease:after", action="stop", outcome=f"life-{index}"))

    waiting = {stdout_of(kit): index for index, kit in enumerate(kits)}
    refused: list[str] = []
    while len(waiting) > 1:
        for stream in select.select(list(waiting), [], [])[0]:
            index = waiting.pop(stream)
            kits[index].wait()
            refused.append(read_outcome(case, f"life-{index}").error)
    (winner,) = waiting.values()
    wake(case, f"life-{winner}")
    kits[winner].wait()

    assert [error.partition(":")[0] for error in refused] == ["LeaseHeld"] * (PROCESSES - 1)
    assert all("drives run" in error for error in refused)
    assert read_outcome(case, f"life-{winner}").status == "completed"
    effects = read_effects(case / "effects.jsonl")
    assert sorted(effect["name"] for effect in effects) == ["launch", "pay", "post", "post"]


def outlive(build: Build, point: CrashPoint, folder: Path) -> tuple[list[str], str]:
    """One driver is frozen at `point`, another takes its run over and ends it; then the first wakes up."""
    with CrashKit(build, folder) as zombie, CrashKit(build, folder) as successor:
        baseline = successor.survey()
        case = zombie.open_case()
        frozen = Order(folder=str(case), name=point.name, occurrence=point.occurrence, action="stop", outcome="zombie")
        zombie.begin(frozen)
        wait_until_stopped(case, "zombie")
        try:
            successor.live(Order(folder=str(case), ahead_seconds=60, outcome="successor"))
        finally:
            wake(case, "zombie")
        zombie.wait()
        before = read_outcome(case, "successor")
        return successor.find_violations(case, before, baseline), read_outcome(case, "zombie").error


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        CrashPoint("journal:step_started:before", 3),
        CrashPoint("effect:launch:done"),
        CrashPoint("journal:step_finished:before", 2),
        CrashPoint("model:after", 2),
        CrashPoint("journal:run_finished:before"),
    ],
    ids=str,
)
def test_driver_that_wakes_up_after_its_run_was_taken_over_writes_nothing(point: CrashPoint, tmp_path: Path) -> None:
    violations, error = outlive(small.build, point, tmp_path)

    assert violations == []
    assert error.startswith("LeaseLost: ")


@pytest.mark.slow
def test_store_without_fencing_is_caught(tmp_path: Path) -> None:
    violations, _ = outlive(small.build_naive_store, CrashPoint("model:after", 3), tmp_path)

    assert "opaque effect 'launch' happened 2 times" in violations


@pytest.mark.anyio
async def test_losing_the_run_cancels_what_is_under_way_and_says_so(tmp_path: Path) -> None:
    place = small.build(tmp_path, lambda _name: None).place
    was_cut_short = False
    async with open_runtime(place) as runtime:
        run_id = (await runtime.start(RunRequest(task="Wait for me"))).run_id
        ahead = MachineAhead(SystemMachine(), 60)
        other = await open_sqlite_store(place.runs / DATABASE, machine=ahead)

        async def drive_until_stolen() -> None:
            nonlocal was_cut_short
            async with hold_lease(run_id, LeaseHolder(store=runtime.store, owner="me"), seconds=0.05):
                await other.take_lease(run_id, owner="thief", seconds=60)
                try:
                    await anyio.sleep_forever()
                finally:
                    was_cut_short = True

        with anyio.fail_after(20), pytest.raises(LeaseLost, match="'thief' drives it now"):
            await drive_until_stolen()
        await other.close()

    assert was_cut_short
