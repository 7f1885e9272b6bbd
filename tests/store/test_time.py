"""Leases when clocks jump, machines restart and processes end."""

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from metier.store.failures import LeaseHeld, LeaseLost
from metier.store.machine import SystemMachine
from metier.store.sqlite.store import SqliteStore
from metier.testing.fake_machine import FakeMachine
from metier.testing.store_case import build_entries, build_run

type Open = Callable[[], Awaitable[SqliteStore]]


@pytest.mark.parametrize("days", [-400, -1, 1, 400])
@pytest.mark.anyio
async def test_a_jump_of_the_wall_clock_neither_ends_nor_extends_a_lease(
    days: int, open_store: Open, machine: FakeMachine
) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    await store.take_lease("r1", owner="ann", seconds=15)

    machine.wall += timedelta(days=days)

    with pytest.raises(LeaseHeld):
        await store.take_lease("r1", owner="bob", seconds=15)
    machine.seconds += 15
    lease = await store.take_lease("r1", owner="bob", seconds=15)
    assert lease.owner == "bob"
    await store.close()


@pytest.mark.anyio
async def test_a_reboot_releases_every_lease_and_fences_old_drivers(open_store: Open, machine: FakeMachine) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    old = await store.take_lease("r1", owner="ann", seconds=100_000)

    machine.restart()
    new = await store.take_lease("r1", owner="bob", seconds=15)

    assert new.token > old.token
    with pytest.raises(LeaseLost):
        await store.append(old, 1, build_entries(1))
    await store.append(new, 1, build_entries(1))
    await store.close()


@pytest.mark.anyio
async def test_the_lease_error_names_owner_start_and_expiry(open_store: Open, machine: FakeMachine) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    await store.take_lease("r1", owner="host:42", seconds=15)
    await machine.pass_seconds(5)

    with pytest.raises(LeaseHeld) as refused:
        await store.take_lease("r1", owner="bob", seconds=15)

    assert refused.value.message == (
        "'host:42' drives run 'r1' since 2026-11-01 12:00:00 UTC; its lease ends in 10.0 s unless it is renewed"
    )
    assert refused.value.exit_code == 10
    await store.close()


@pytest.mark.anyio
async def test_a_lease_with_the_right_token_but_another_owner_is_rejected(open_store: Open) -> None:
    store = await open_store()
    await store.create_run(build_run("r1"))
    lease = await store.take_lease("r1", owner="ann", seconds=15)

    with pytest.raises(LeaseLost):
        await store.append(replace(lease, owner="eve"), 1, build_entries(1))
    await store.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_is_gone_only_after_it_ended() -> None:
    machine = SystemMachine()
    code = "from metier.store.machine import SystemMachine; print(SystemMachine().process(), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    name = child.stdout.readline().strip()

    assert not machine.is_gone(name)
    assert not machine.is_gone(machine.process())
    assert not machine.is_gone("")
    assert not machine.is_gone(f"elsewhere/{child.pid}/1")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is still a zombie
    assert machine.is_gone(name)
    child.stdin.close()
    child.stdout.close()
    child.wait()
    assert machine.is_gone(name)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processes_of_one_machine_agree_on_boot_and_uptime() -> None:
    code = "from metier.store.machine import SystemMachine as M; print(M().boot_id(), M().uptime())"
    machine = SystemMachine()
    before = machine.uptime()
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    boot_id, uptime = child.stdout.split()

    assert boot_id == machine.boot_id()
    assert len(boot_id) == 36
    assert before < float(uptime) < machine.uptime()
