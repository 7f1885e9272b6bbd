"""Running programs: no process is left, and output needs limited memory."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from loop_clock import advance
from metier.errors import ToolFailed
from metier.tools.process.run import Command, Outcome, ProcessLimits, ProcessTree, run_process
from metier.tools.process.spool import SpoolNote, read_spool, wait_until_released

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

READY = "open('ready', 'w').close()\n"
"""Written by the process that must not survive, when it is under way."""

SON = "import os, time\nif os.fork(): time.sleep(600)\n"
"""The first process waits; the rest happens in its child."""

LINGER = f"import time\n{READY}while True: time.sleep(600)\n"

FAMILIES = {
    "plain": LINGER,
    "fork": f"{SON}{LINGER}",
    "orphan": f"import os, time\nif os.fork(): os._exit(0)\n{LINGER}",
    "setsid": f"{SON}os.setsid()\n{LINGER}",
    "double fork": f"{SON}os.setsid()\nif os.fork(): os._exit(0)\n{LINGER}",
    "sigterm ignored": f"import signal\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n{LINGER}",
    "closed descriptors": f"{SON}os.setsid()\nos.closerange(0, 64)\n{LINGER}",
    "stopped": f"{SON}import signal\n{READY}os.kill(os.getpid(), signal.SIGSTOP)\n",
    "forking on": (
        f"import os, time\nend = time.time() + 60\n{READY}"
        "while time.time() < end:\n if os.fork(): os._exit(0)\n os.setsid()\n time.sleep(0.01)\n"
    ),
}
LEAVERS = {"orphan", "forking on"}
"""Their first process ends at once; what it left behind is killed then, without any time limit."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def mark() -> Iterator[str]:
    """A word on the command line of every process of a test; remaining ones are killed at the end."""
    word = f"mark-{secrets.token_hex(8)}"
    yield word
    for process in find_processes(word):
        os.kill(process, signal.SIGKILL)


def find_processes(mark: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "cmdline").read_bytes() and b") Z " not in (entry / "stat").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [process for process in found if process != os.getpid()]


def python(code: str, mark: str, folder: Path) -> Command:
    return Command(
        arguments=[sys.executable, "-I", "-c", code, mark], folder=folder, environment={"PATH": os.environ["PATH"]}
    )


async def wait_until_ready(folder: Path) -> None:
    await wait_until((folder / "ready").exists)


async def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  other processes have no events for us
        await anyio.sleep(0.01)


async def run_too_long(command: Command, *, grace_seconds: float = 2) -> Outcome:
    """Run a program whose time limit passes when it is ready."""
    limits = ProcessLimits(timeout_seconds=3600, grace_seconds=grace_seconds)
    outcomes: list[Outcome] = []

    async def run() -> None:
        outcomes.append(await run_process(command, limits))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await wait_until_ready(command.folder)
        advance(limits.timeout_seconds)
    return outcomes[0]


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - LEAVERS))
async def test_no_process_is_left_after_a_timeout(family: str, mark: str, tmp_path: Path) -> None:
    outcome = await run_too_long(python(FAMILIES[family], mark, tmp_path), grace_seconds=0.1)

    assert find_processes(mark) == []
    assert outcome.timed_out
    assert outcome.left == 0


@pytest.mark.parametrize("family", sorted(LEAVERS))
async def test_no_process_is_left_of_a_program_that_ends_before_its_children(
    family: str, mark: str, tmp_path: Path
) -> None:
    outcome = await run_process(python(FAMILIES[family], mark, tmp_path), ProcessLimits(timeout_seconds=600))

    assert find_processes(mark) == []
    assert not outcome.timed_out
    assert outcome.left == 0


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - LEAVERS))
async def test_no_process_is_left_after_a_cancellation(family: str, mark: str, tmp_path: Path) -> None:
    with anyio.fail_after(100):
        async with anyio.create_task_group() as tasks:
            limits = ProcessLimits(timeout_seconds=600, grace_seconds=0.1)
            tasks.start_soon(run_process, python(FAMILIES[family], mark, tmp_path), limits)
            await wait_until_ready(tmp_path)
            tasks.cancel_scope.cancel()
        # On a busy machine a killed process can stay in the process table for a while.
        await wait_until(lambda: not find_processes(mark))


async def test_no_process_is_left_after_a_kill_of_the_agent(mark: str, tmp_path: Path) -> None:
    agent = f"""
import anyio, sys
from pathlib import Path
from metier.tools.process.run import Command, ProcessLimits, run_process
arguments = [sys.executable, "-I", "-c", {FAMILIES["double fork"]!r}, {mark!r}]
command = Command(arguments=arguments, folder=Path("."), environment={{}})
anyio.run(run_process, command, ProcessLimits(timeout_seconds=600))
"""
    process = subprocess.Popen([sys.executable, "-c", agent], cwd=tmp_path)  # noqa: ASYNC220  it returns at once
    with anyio.fail_after(100):
        await wait_until_ready(tmp_path)
        assert len(find_processes(mark)) > 1

        process.kill()
        process.wait()

        await wait_until(lambda: not find_processes(mark))


@pytest.mark.parametrize(("code", "is_stopped"), [(0, False), (7, True)])
async def test_a_failure_after_the_agent_died_is_not_attributed_to_the_program(
    code: int, is_stopped: bool, mark: str, tmp_path: Path
) -> None:
    # The supervisor is stopped until the agent is dead and the program has ended: it sees both at once.
    program = f"""
import os, signal, sys
supervisor = os.getppid()
os.kill(supervisor, signal.SIGSTOP)
agent = int(open("agent").read())
os.kill(agent, signal.SIGKILL)
while os.path.exists(f"/proc/{{agent}}"):
    pass
if os.fork():
    os._exit({code})
while os.getppid() != supervisor:
    pass
os.kill(supervisor, signal.SIGCONT)
"""
    agent = f"""
import anyio, os, sys
from pathlib import Path
from metier.tools.process.run import Command, ProcessLimits, run_process
Path("agent").write_text(str(os.getpid()))
arguments = [sys.executable, "-I", "-c", {program!r}, {mark!r}]
command = Command(arguments=arguments, folder=Path("."), environment={{}}, spool=Path("spool").absolute())
anyio.run(run_process, command, ProcessLimits(timeout_seconds=600))
"""
    process = subprocess.Popen([sys.executable, "-c", agent], cwd=tmp_path)  # noqa: ASYNC220  it returns at once
    with anyio.fail_after(100):
        await anyio.to_thread.run_sync(process.wait)
        assert await wait_until_released(tmp_path / "spool")

    assert process.returncode == -signal.SIGKILL
    assert read_spool(tmp_path / "spool") == SpoolNote(started=True, ended=True, exit_code=code, stopped=is_stopped)


async def test_no_process_is_left_after_a_child_kills_the_supervisor(mark: str, tmp_path: Path) -> None:
    code = f"import os\nparent = os.getppid()\nif os.fork() == 0: os.setsid()\nos.kill(parent, 9)\n{LINGER}"

    with anyio.fail_after(100):
        outcome = await run_process(python(code, mark, tmp_path), ProcessLimits(timeout_seconds=600))

    assert find_processes(mark) == []
    assert outcome.exit_code is None
    assert outcome.signal == signal.SIGKILL


async def test_program_that_freezes_its_supervisor_does_not_outlive_its_timeout(mark: str, tmp_path: Path) -> None:
    code = f"import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)\n{LINGER}"

    outcome = await run_too_long(python(code, mark, tmp_path))

    assert outcome.timed_out
    assert find_processes(mark) == []


async def test_shell_background_jobs_and_nohup_end_with_the_command(mark: str, tmp_path: Path) -> None:
    script = f"nohup sh -c 'sleep 600; : {mark}' >/dev/null 2>&1 & setsid sh -c 'sleep 600; : {mark}' & echo done"
    command = Command(arguments=["sh", "-c", script], folder=tmp_path, environment={"PATH": os.environ["PATH"]})

    with anyio.fail_after(100):
        outcome = await run_process(command)

    assert (outcome.exit_code, outcome.stdout.text) == (0, "done\n")
    assert find_processes(mark) == []


async def test_program_can_clean_up_after_sigterm(mark: str, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (open('cleaned', 'w').close(), sys.exit(0)))\n"
        "open('ready', 'w').close()\ntime.sleep(600)\n"
    )

    outcome = await run_too_long(python(code, mark, tmp_path), grace_seconds=100)

    assert outcome.timed_out
    assert outcome.exit_code is None
    assert (tmp_path / "cleaned").exists()


async def test_exit_status_output_and_sizes_are_reported(mark: str, tmp_path: Path) -> None:
    code = "import sys; print('out'); print('err!', file=sys.stderr); sys.exit(7)"

    outcome = await run_process(python(code, mark, tmp_path))

    assert (outcome.exit_code, outcome.signal, outcome.timed_out) == (7, None, False)
    assert (outcome.stdout.text, outcome.stderr.text) == ("out\n", "err!\n")
    assert (outcome.stdout.total_bytes, outcome.stderr.total_bytes) == (4, 5)


async def test_program_has_empty_stdin_and_its_own_session(mark: str, tmp_path: Path) -> None:
    code = (
        "import os, sys; open_ones = sorted(map(int, os.listdir('/proc/self/fd')))\n"
        "print(repr(sys.stdin.read()), os.getsid(0) == os.getpid(), open_ones)"
    )

    outcome = await run_process(python(code, mark, tmp_path))

    # 3 is the listing itself: nothing of ours is inherited.
    assert outcome.stdout.text == "'' True [0, 1, 2, 3]\n"


async def test_program_has_default_signal_handlers(mark: str, tmp_path: Path) -> None:
    command = Command(
        arguments=["sh", "-c", "yes | head -n 1; kill -TERM $$"],
        folder=tmp_path,
        environment={"PATH": os.environ["PATH"]},
    )

    outcome = await run_process(command)

    assert outcome.stdout.text == "y\n"
    assert outcome.stderr.text == ""
    assert outcome.signal == signal.SIGTERM


async def test_resource_limits_apply_to_the_program(mark: str, tmp_path: Path) -> None:
    code = (
        "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE))"
    )

    outcome = await run_process(python(code, mark, tmp_path), ProcessLimits(resources={"nofile": 64, "core": 0}))

    assert outcome.stdout.text == "(64, 64) (0, 0)\n"


async def test_missing_program_or_folder_is_reported(tmp_path: Path) -> None:
    missing = Command(arguments=["no-such-program"], folder=tmp_path, environment={"PATH": os.environ["PATH"]})
    nowhere = Command(arguments=["true"], folder=tmp_path / "nowhere", environment={})

    with pytest.raises(ToolFailed, match="'no-such-program' could not be started: No such file or directory"):
        await run_process(missing)
    with pytest.raises(ToolFailed, match="nowhere' does not exist"):
        await run_process(nowhere)


async def test_supervised_program_can_converse_over_its_streams(mark: str, tmp_path: Path) -> None:
    tree = await ProcessTree.start(
        python("print(input()[::-1], flush=True); input()", mark, tmp_path), ProcessLimits(), with_stdin=True
    )
    async with tree:
        await tree.stdin.send(b"abc\n")
        assert await tree.stdout.receive() == b"cba\n"

    assert find_processes(mark) == []


MEASURE = """
import anyio, os, sys
from pathlib import Path
from metier.tools.process.run import Command, run_process
def peak():
    # Not ru_maxrss: it starts with the size of the process that started this one.
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
async def main(size):
    arguments = ["head", "-c", size, "/dev/zero"]
    return await run_process(Command(arguments=arguments, folder=Path("."), environment={"PATH": os.environ["PATH"]}))
anyio.run(main, "1")
before = peak()
outcome = anyio.run(main, sys.argv[1])
print(outcome.stdout.total_bytes, peak() - before)
"""


def test_a_gigabyte_of_output_uses_less_than_thirty_megabytes() -> None:
    size = 1_073_741_824

    result = subprocess.run([sys.executable, "-c", MEASURE, str(size)], capture_output=True, text=True, check=True)

    total, kilobytes = (int(word) for word in result.stdout.split())
    assert total == size
    assert kilobytes < 30_000
