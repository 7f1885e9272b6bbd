"""The lock of a wrapper is held from before its start to its end, so that its notes are not read early."""

import os
import sys
from pathlib import Path

import anyio
import pytest

from metier.tools.process.run import Command, run_process
from metier.tools.process.spool import hold, is_held, read_spool, wait_until_released

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="there is no wrapper")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_lock_is_awaited_until_its_holder_releases_it(tmp_path: Path) -> None:
    spool = tmp_path / "1.1-1"
    assert not is_held(spool)
    descriptor = hold(spool)
    assert is_held(spool)
    with pytest.raises(BlockingIOError):
        hold(spool)

    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            waited = anyio.Event()

            async def wait() -> None:
                assert await wait_until_released(spool)
                waited.set()

            group.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert not waited.is_set()
            os.close(descriptor)
            await waited.wait()


async def test_wrapper_holds_the_lock_while_its_command_runs(tmp_path: Path) -> None:
    spool, gate = tmp_path / "1.1-1", tmp_path / "gate"
    os.mkfifo(gate)
    code = f"open({str(gate)!r}).read()"
    command = Command(
        arguments=[sys.executable, "-c", code], folder=tmp_path, environment=dict(os.environ), spool=spool
    )

    with anyio.fail_after(100):
        async with anyio.create_task_group() as group:
            group.start_soon(run_process, command)
            writer = await anyio.to_thread.run_sync(lambda: os.open(gate, os.O_WRONLY))
            assert is_held(spool)
            assert read_spool(spool).started
            assert not read_spool(spool).ended
            os.close(writer)

    assert not is_held(spool)
    assert read_spool(spool).exit_code == 0
