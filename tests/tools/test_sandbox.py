"""Programs work in the sandbox: files, exit, limits, and no remaining process."""

import ast
import os
import secrets
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from confined import BOMB, LEVELS, Scene, make_scene

from metier.definitions.skills.skill import load_skill
from metier.errors import ToolFailed
from metier.skills.package import SkillPackage
from metier.tools.base import ToolContext
from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.run import Command, ProcessLimits, ProcessTree, run_process
from metier.tools.process.sandbox.confinement import Confinement, Level
from metier.tools.process.sandbox.levels import choose_level, try_level
from metier.tools.process.sandbox.seccomp import ARCHITECTURES, build_filter
from metier.tools.process.spool import is_held, read_spool
from metier.tools.toolsets.loader import load_toolsets

pytestmark = pytest.mark.anyio

SOURCE = Path(__file__).resolve().parent.parent.parent / "src" / "metier"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=LEVELS)
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    level: Level = request.param
    return make_scene(tmp_path, level)


async def test_a_program_works_in_its_workspace(scene: Scene) -> None:
    code = (
        "open('src/new.py', 'w').write('x'); open('notes.txt', 'a').write('!'); os.mkdir('src/sub')\n"
        "os.rename('src/new.py', 'src/sub/new.py'); os.remove('src/main.py'); open('/dev/null', 'w').write('x')\n"
        "print(open('.git/config').read(), open('agent.yaml').read(), os.getcwd())"
    )

    outcome = await scene.run(code)

    assert outcome.stderr.text == ""
    assert outcome.stdout.text == f"as it was as it was {scene.workspace}\n"
    assert (scene.workspace / "src/sub/new.py").read_text() == "x"
    assert (scene.workspace / "notes.txt").read_text() == "as it was!"


async def test_new_names_at_the_top_of_the_workspace_need_the_full_level(scene: Scene) -> None:
    outcome = await scene.run("open('fresh.txt', 'w').write('x')")

    assert (scene.workspace / "fresh.txt").exists() is (scene.confinement.level == "full")
    assert ("PermissionError" in outcome.stderr.text) is (scene.confinement.level == "kernel")


async def test_exit_codes_and_signals_are_distinguished(scene: Scene) -> None:
    left = await scene.run("sys.exit(137)")
    killed = await scene.run("os.kill(os.getpid(), 9)")
    failed = await scene.run("raise SystemExit(3)")

    assert (left.exit_code, left.signal) == (137, None)
    assert (killed.exit_code, killed.signal) == (None, signal.SIGKILL)
    assert (failed.exit_code, failed.signal) == (3, None)


async def test_a_missing_program_is_reported(scene: Scene) -> None:
    command = Command(
        arguments=["no-such-program"], folder=scene.workspace, environment={}, confinement=scene.confinement
    )

    with pytest.raises(ToolFailed, match="'no-such-program' could not be started: No such file"):
        await run_process(command)


async def test_a_program_can_clean_up_after_sigterm(scene: Scene) -> None:
    code = (
        "import signal, time\ndef end(*_):\n  open('src/clean', 'w').close()\n  sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\nprint('ready', flush=True)\nwhile True: time.sleep(60)\n"
    )
    command = scene.command(f"import os, sys\n{code}")
    limits = ProcessLimits(grace_seconds=30)

    with anyio.fail_after(60):
        async with await ProcessTree.start(command, limits) as tree:
            assert (await tree.stdout.receive()).startswith(b"ready")

    assert (scene.workspace / "src/clean").exists()


@pytest.mark.parametrize("daemon", [False, True])
async def test_no_process_is_left_after_the_time_limit(scene: Scene, daemon: bool) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    code = "import time\nif os.fork(): time.sleep(600)\nos.setsid()\nif os.fork(): os._exit(0)\ntime.sleep(600)\n"
    command = scene.command("import os\n" + (code if daemon else "import time\ntime.sleep(600)\n"))
    command = Command(
        arguments=[*command.arguments, mark],
        folder=command.folder,
        environment=command.environment,
        confinement=command.confinement,
    )

    outcome = await run_process(command, ProcessLimits(timeout_seconds=1))

    assert outcome.timed_out
    assert outcome.left == 0
    assert not find_processes(mark)


async def test_no_process_is_left_after_the_agent_is_killed(scene: Scene, tmp_path: Path) -> None:
    mark = f"mark-{secrets.token_hex(8)}"
    spool = tmp_path / "spool"
    agent = (
        "import anyio, sys\nfrom pathlib import Path\n"
        "from metier.tools.process.run import Command, run_process\n"
        "from metier.tools.process.sandbox.confinement import Confinement\n"
        f"c = Confinement(level={scene.confinement.level!r}, bubblewrap={scene.confinement.bubblewrap!r}, "
        f"workspace=Path({str(scene.workspace)!r}))\n"
        "code = \"import time\\nopen('src/ready', 'w').close()\\ntime.sleep(600)\"\n"
        f"command = Command(arguments=[{base_interpreter()!r}, '-I', '-S', '-c', code, {mark!r}], "
        f"folder=c.workspace, environment={{}}, spool=Path({str(spool)!r}), confinement=c)\n"
        "anyio.run(run_process, command)\n"
    )
    async with await anyio.open_process([sys.executable, "-c", agent]) as process:
        await wait_until((scene.workspace / "src/ready").exists)
        process.kill()

    await wait_until(lambda: not find_processes(mark) and not is_held(spool))
    note = read_spool(spool)
    assert (note.started, note.ended, note.stopped) == (True, True, True)
    assert not (scene.workspace / ".claude").exists()


async def test_a_toolset_works_inside_the_sandbox(scene: Scene) -> None:
    skill = SOURCE / "bundled" / "hello-extended"
    definition = load_skill(skill).skill
    assert definition is not None
    package = SkillPackage(definition=definition, folder=skill, source="bundled")

    reading = await load_toolsets([package], os.environ, confinement=scene.confinement)
    try:
        assert reading.problems == ()
        (tool,) = [tool for tool in reading.tools if tool.info.name == "hello-extended.list_languages"]
        result = await tool.execute({}, ToolContext(workspace=scene.workspace))
    finally:
        await reading.aclose()

    assert result.ok, result.error


async def test_network_is_available_if_enabled(scene: Scene) -> None:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    async with listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        code = "socket.create_connection(('127.0.0.1', T['port']), timeout=30); print('connected')"

        outcome = await scene.with_(network=True).run(code, port=port)

    assert outcome.stdout.text == "connected\n", outcome.stderr.text


async def test_settings_can_open_protected_paths_except_the_runs(scene: Scene) -> None:
    workspace = scene.workspace
    opened = scene.with_(
        writable=(workspace / ".git", workspace / "runs", scene.base / "home"), readable=(workspace / ".env",)
    )
    code = (
        "open('.git/config', 'w').write('x'); print(open('.env').read()); open(T['key'], 'a').write('x')\n"
        "for name in ('runs/journal', '.env'):\n"
        "  try: open(name, 'a').write('x'); print('ESCAPED')\n  except OSError: pass\n"
    )

    outcome = await opened.run(code)

    assert outcome.stderr.text == ""
    assert "ESCAPED" not in outcome.stdout.text
    assert (workspace / ".git/config").read_text() == "x"
    assert (workspace / "runs/journal").read_text() == "as it was"


async def test_a_program_sees_the_real_names_of_the_workspace(scene: Scene) -> None:
    before = list_names(scene.workspace)
    command = scene.command("import os, sys\nprint(sorted(os.listdir('.')), flush=True)\nsys.stdin.read()")
    async with await ProcessTree.start(command, ProcessLimits(), with_stdin=True) as tree:
        inside = (await tree.stdout.receive()).decode().strip()

        assert list_names(scene.workspace) == before

    assert inside == str(before)
    assert list_names(scene.workspace) == before


async def test_protected_path_created_by_one_program_is_moved_despite_a_later_program(scene: Scene) -> None:
    if scene.confinement.level == "kernel":
        pytest.skip("nothing is created at the top on this level")
    create = "import os, sys\nos.mkdir('.claude')\nprint('created', flush=True)\nsys.stdin.read()"
    again = "os.rename('.claude', 'aside') if os.path.exists('.claude') else None\nos.makedirs('.claude/agents')"
    async with await ProcessTree.start(scene.command(create), ProcessLimits(), with_stdin=True) as first:
        assert await first.stdout.receive() == b"created\n"
        command = scene.command(f"import os, sys\nsys.stdin.read()\n{again}\n")
        async with await ProcessTree.start(command, ProcessLimits(), with_stdin=True) as second:
            await first.stop()
            assert not (scene.workspace / ".claude").exists()
            await second.stdin.aclose()
            ended = await second.wait()

    assert ended.exit_code == 0
    assert [Path(place).stem for place in ended.moved] == [".claude"]
    assert not (scene.workspace / ".claude").exists()


async def test_no_file_gets_the_setuid_bit(scene: Scene) -> None:
    code = """
os.chdir("src")
def attempt(make):
    try:
        make()
    except OSError as error:
        return error.errno == errno.EPERM
    return False
file = os.open("main.py", os.O_RDONLY)
print([
    attempt(lambda: os.chmod("main.py", 0o6755)),
    attempt(lambda: os.chmod("main.py", 0o4755)),
    attempt(lambda: os.fchmod(file, 0o4755)),
    attempt(lambda: os.chmod("main.py", 0o4755, dir_fd=os.open(".", os.O_RDONLY))),
    attempt(lambda: os.open("new", os.O_WRONLY | os.O_CREAT, 0o4755)),
    attempt(lambda: os.mknod("node", 0o104755)),
])
os.chmod("main.py", 0o755)
os.close(os.open("plain", os.O_WRONLY | os.O_CREAT, 0o755))
print("ordinary modes pass")
"""
    outcome = await scene.run(code)

    assert outcome.stdout.text == f"{[True] * 6}\nordinary modes pass\n", outcome.stderr.text
    assert not any(file.stat().st_mode & 0o4000 for file in scene.workspace.rglob("*"))


def test_landlock_is_the_fallback_for_bubblewrap_and_every_failure_is_reported() -> None:
    trial = choose_level("")

    assert trial.level in ("kernel", "none")
    assert try_level("full", "").summary == "bwrap is not installed"
    assert "bubblewrap" in try_level("full", "").hint


def test_a_program_named_bubblewrap_is_not_trusted(tmp_path: Path) -> None:
    """It runs the command unconfined: a sandbox in name only."""
    fake = tmp_path / "bwrap"
    fake.write_text('#!/bin/sh\nwhile [ "$1" != "--" ]; do shift; done\nshift\nexec "$@"\n', encoding="utf-8")
    fake.chmod(0o755)

    trial = try_level("full", str(fake))

    assert not trial.works
    assert "tried: a program could" in trial.summary or "cannot start" in trial.summary


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_a_seccomp_filter_has_complete_instructions_and_valid_jumps(machine: str, *, read_only: bool) -> None:
    program = build_filter(machine, families=(1, 2, 10, 16), read_only=read_only)

    count = len(program) // 8
    assert len(program) % 8 == 0
    for index in range(count):
        code, if_true, if_false = (
            program[index * 8] | program[index * 8 + 1] << 8,
            program[index * 8 + 2],
            program[index * 8 + 3],
        )
        if code & 7 == 5:
            assert index + 1 + max(if_true, if_false) < count


def test_every_command_states_its_confinement() -> None:
    silent = [
        f"{file.relative_to(SOURCE)}:{call.lineno}"
        for file in SOURCE.rglob("*.py")
        if "Command(" in (text := file.read_text(encoding="utf-8"))
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "Command"
        and any(keyword.arg == "arguments" for keyword in call.keywords)
        and not any(keyword.arg == "confinement" for keyword in call.keywords)
    ]

    assert silent == [], "Command(…) needs confinement=: the one that the runtime gives, or None with a reason"


async def test_limits_apply_without_a_sandbox(tmp_path: Path) -> None:
    unconfined = Confinement(resources={"fsize": 4096}, processes=20)
    bomb = await run_process(python(BOMB, tmp_path, unconfined))
    disk = await run_process(python("open('big', 'wb').write(bytes(65536))", tmp_path, unconfined))

    assert not bomb.timed_out
    assert "more than 20 processes" in bomb.stderr.text
    assert disk.exit_code != 0
    assert (tmp_path / "big").stat().st_size <= 4096


def list_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def wait_until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not is_so():  # noqa: ASYNC110  nobody tells of files and processes
            await anyio.sleep(0.02)


def python(code: str, folder: Path, confinement: Confinement) -> Command:
    return Command(
        arguments=[base_interpreter(), "-I", "-S", "-c", code],
        folder=folder,
        environment={"PATH": os.environ["PATH"]},
        confinement=confinement,
    )


def find_processes(mark: str) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "cmdline").read_bytes() and b") Z " not in (entry / "stat").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [process for process in found if process != os.getpid()]
