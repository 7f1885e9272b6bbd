"""Hostile programs in the sandbox: each tries one escape, on every available level."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from confined import BOMB, LEVELS, SECRET, Scene, make_scene, read_tree
from msgspec.structs import replace

from metier.tools.process.run import ProcessLimits, run_process
from metier.tools.process.sandbox.confinement import SCRATCH, Level

pytestmark = pytest.mark.anyio

CALL = """
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
"""
X86 = os.uname().machine == "x86_64" if hasattr(os, "uname") else False

FILES = {
    "write a file outside": "open(T['outside'], 'w').write('x'); assert open(T['outside']).read() == 'x'",
    "make a file outside": "open(T['outside'] + '.new', 'w').write('x')",
    "delete a file outside": "os.remove(T['outside'])",
    "truncate a file outside": "os.truncate(T['outside'], 0)",
    "rename a file outside": "os.rename(T['outside'], T['outside'] + '.moved')",
    "climb out with dots": "open(T['workspace'] + '/src/../../outside.txt', 'a').write('x')",
    "climb out through /proc/self/root": "open('/proc/self/root' + T['outside'], 'a').write('x')",
    "climb out through /proc/self/cwd": "open('/proc/self/cwd/../outside.txt', 'a').write('x')",
    "write through a link": "os.symlink(T['outside'], 'src/link'); open('src/link', 'a').write('x')",
    "link a file into the workspace": "os.link(T['outside'], 'src/hard'); open('src/hard', 'a').write('x')",
    "change Git's hooks": "open('.git/hooks/pre-push', 'w').write('x')",
    "add a Git hook": "open('.git/hooks/post-commit', 'w').write('x')",
    "move Git's folder away": "os.rename('.git', 'src/git')",
    "change the policy": "open('.agent/policy.yaml', 'w').write('x')",
    "add a rule file": "open('.agent/tool-access.json', 'w').write('x')",
    "replace the policy": "open('src/p', 'w').close(); os.rename('src/p', '.agent/policy.yaml')",
    "change the settings": "open('agent.yaml', 'w').write('x')",
    "delete the settings": "os.remove('agent.yaml')",
    "change the journal": "open('runs/journal', 'a').write('x')",
    "delete the journal": "os.remove('runs/journal')",
    "move the runs away": "os.rename('runs', 'src/runs')",
    "overwrite a secrets file": "open('.env', 'w').write('x')",
    "overwrite the interpreter": "open(sys.executable, 'r+b')",
    "overwrite a system file": "open('/usr/bin/env', 'r+b')",
    "set the core pattern": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/true')",
    "press the system key": "open('/proc/sysrq-trigger', 'w').write('h')",
    # The last, because there is no folder `src` after it.
    "swap a folder for a link": (
        "os.rename('src', 'src2'); os.symlink('..', 'src'); open('src/outside.txt', 'a').write('x')"
    ),
}
READS = {
    "read a key of the home folder": "print(open(T['key']).read())",
    "read a secrets file": "print(open('.env').read())",
    "read a secrets file further down": "print(open('config/secrets.yaml').read())",
    "read a secrets file through a link": "os.symlink('../.env', 'src/link'); print(open('src/link').read())",
    "read a secrets file by another name": "os.link('.env', 'src/hard'); print(open('src/hard').read())",
    "move a secrets file to read it": "os.rename('.env', 'src/env'); print(open('src/env').read())",
    "move the folder of a secrets file": "os.rename('config', 'c2'); print(open('c2/secrets.yaml').read())",
    "read password hashes": "print(open('/etc/shadow').read() and T['secret'])",
    "read an environment": "print(open(f\"/proc/{T['victim']}/environ\").read())",
    "read every environment": (
        "import glob\nfor p in glob.glob('/proc/[0-9]*/environ'):\n"
        "  try: print(open(p).read())\n  except OSError: pass\nraise PermissionError(1, 'nothing found')"
    ),
    "read the root of another process": "print(os.listdir(f\"/proc/{T['victim']}/root\") and T['secret'])",
    "read the files of another process": "print(os.readlink(f\"/proc/{T['victim']}/fd/0\") and T['secret'])",
    "read memory of another process": "print(open(f\"/proc/{T['victim']}/mem\", 'rb') and T['secret'])",
    "read a disk": "print(open('/dev/vda', 'rb').read(1) and T['secret'])",
    "make a device of a disk": "os.mknod('src/disk', 0o60600, os.makedev(254, 0)); print(T['secret'])",
}
KERNEL = {
    "signal the agent": "os.kill(T['agent'], 0)",
    "end the agent's other processes": "os.kill(T['victim'], 9)",
    "trace another process": "call(101, 16, T['victim'], 0, 0)" if X86 else "call(117, 16, T['victim'], 0, 0)",
    "trace a child of its own": "call(101, 0, 0, 0, 0)" if X86 else "call(117, 0, 0, 0, 0)",
    "mount": "r = libc.mount(b'none', b'/mnt', b'tmpfs', 0, None)\nif r: raise OSError(ctypes.get_errno(), 'refused')",
    "unmount": "r = libc.umount2(b'/proc', 2)\nif r: raise OSError(ctypes.get_errno(), 'refused')",
    "new user namespace": "r = libc.unshare(0x10000000)\nif r: raise OSError(ctypes.get_errno(), 'refused')",
    "new mount namespace": "r = libc.unshare(0x20000)\nif r: raise OSError(ctypes.get_errno(), 'refused')",
    "clone into a namespace": "call(56 if T['x86'] else 220, 0x10000011, 0, 0, 0, 0)",
    "join a namespace": "r = libc.setns(os.open('/proc/self/ns/net', 0), 0)\nif r: raise OSError(1, 'refused')",
    "chroot": "os.chroot('src')",
    "io_uring": "call(425, 8, ctypes.create_string_buffer(120))",
    "keys of the kernel": "call(250 if T['x86'] else 219, 0, -3, 0)",
    "bpf": "call(321 if T['x86'] else 280, 0, ctypes.create_string_buffer(64), 64)",
    "perf events": "call(298 if T['x86'] else 241, ctypes.create_string_buffer(128), 0, -1, -1, 0)",
    "userfaultfd": "call(323 if T['x86'] else 282, 1)",
    "open by handle": "call(304 if T['x86'] else 265, -100, ctypes.create_string_buffer(64), 0)",
    "type into a terminal": (
        "import fcntl, pty\nm, s = pty.openpty()\nlibc.ioctl.argtypes = None\n"
        "r = libc.ioctl(s, 0x5412, b'x')\nif r: raise OSError(ctypes.get_errno(), 'refused')"
    ),
    "become somebody else": "os.setuid(12345)",
    "packet sockets": "socket.socket(17, socket.SOCK_RAW)",
    "sockets to the hypervisor": "socket.socket(40, socket.SOCK_STREAM)",
    "host name": "socket.sethostname('mine')",
}
NETWORK = {
    "connect to loopback": "socket.create_connection(('127.0.0.1', T['port']), timeout=5)",
    "connect to loopback in another spelling": "socket.create_connection(('0.0.0.0', T['port']), timeout=5)",
    "connect to a socket file": "s = socket.socket(socket.AF_UNIX); s.connect(T['socket'])",
    "connect to an abstract socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0' + T['abstract'])",
}

TRY = """
try:
{code}
except (OSError, PermissionError) as error:
    print('REFUSED', error.errno, error.strerror)
else:
    print('ESCAPED')
"""
EACH = """
said = {}
for name, code in T['programs'].items():
    answer, answering = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(answering, 1)
        try:
            exec(code)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(answering)
    said[name] = open(answer).read()
    _, status = os.waitpid(child, 0)
    said[name] += str(status) if os.WIFSIGNALED(status) else ''
print(json.dumps(said))
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=LEVELS)
def scene(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    level: Level = request.param
    return make_scene(tmp_path, level)


@pytest.fixture
def victim() -> Iterator[int]:
    """Another process of the same user, with a secret in its environment."""
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={"PLANTED": SECRET}) as process:
        yield process.pid
        assert process.poll() is None, "it was ended from inside the sandbox"
        process.communicate()


def attempt(code: str) -> str:
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    return CALL + TRY.format(code=lines.rstrip())


async def try_each(scene: Scene, attempts: dict[str, str], **more: str | int) -> dict[str, str]:
    """Return each program's output. Each runs in its own process, all of them in one sandbox."""
    programs = {name: attempt(code) for name, code in attempts.items()}
    outcome = await scene.run(EACH, programs=programs, limits=None, x86=X86, **more)
    assert outcome.exit_code == 0, outcome.stderr.text
    said: dict[str, str] = json.loads(outcome.stdout.text)
    assert said.keys() == attempts.keys()
    assert {name: text for name, text in said.items() if "REFUSED" not in text and "ESCAPED" not in text} == {}
    return said


async def test_a_program_cannot_change_foreign_files(scene: Scene) -> None:
    before = read_tree(scene.base)

    said = await try_each(scene, FILES)

    after = {path: text for path, text in read_tree(scene.base).items() if not path.startswith("workspace/src")}
    assert after == {path: text for path, text in before.items() if not path.startswith("workspace/src")}, said


async def test_a_program_cannot_read_secrets(scene: Scene, victim: int) -> None:
    said = await try_each(scene, READS, victim=victim, secret=SECRET)

    assert {name: text for name, text in said.items() if SECRET in text} == {}


async def test_a_program_cannot_escape_through_the_kernel(scene: Scene, victim: int) -> None:
    said = await try_each(scene, KERNEL, victim=victim)

    assert {name: text for name, text in said.items() if not text.startswith("REFUSED")} == {}


async def test_a_program_without_network_reaches_no_host(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    abstract = f"metier-{os.getpid()}-{scene.confinement.level}"
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as file, socket.socket(socket.AF_UNIX) as nameless:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.chdir(scene.base)
        file.bind("s")
        nameless.bind(f"\0{abstract}")
        for server in (listener, file, nameless):
            server.listen()
        port = listener.getsockname()[1]

        said = await try_each(scene, NETWORK, port=port, socket=str(scene.base / "s"), abstract=abstract)

    assert {name: text for name, text in said.items() if not text.startswith("REFUSED")} == {}


async def test_a_datagram_is_not_sent(scene: Scene) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        code = "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', T['port']))"

        await scene.run(attempt(code), port=receiver.getsockname()[1])

        with pytest.raises(BlockingIOError):
            receiver.recv(16)


async def test_a_program_inherits_no_open_file_of_the_agent(scene: Scene) -> None:
    outcome = await scene.run("print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])")

    assert outcome.stdout.text.strip() == "[0, 1, 2]"


async def test_a_program_has_no_privileges_and_gets_none(scene: Scene) -> None:
    outcome = await scene.run("print(open('/proc/self/status').read())")

    status = dict(line.split(":\t", 1) for line in outcome.stdout.text.splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    assert status["Seccomp"] == "2"


async def test_temporary_files_and_home_are_private_and_deleted_afterwards(scene: Scene) -> None:
    code = (
        "import tempfile\nd = tempfile.mkdtemp()\nopen(d + '/a', 'w').write('x')\n"
        "os.makedirs(os.path.expanduser('~/.cache/deep'))\nos.makedirs(d + '/b/' * 200)\nos.chmod(d + '/b', 0)\n"
        "os.symlink('/', d + '/link')\nmounts = [line.split() for line in open('/proc/self/mountinfo')]\n"
        "inside = [m[3] for m in mounts if m[4] == '/tmp' and 'metier-' in m[3]]\n"
        "print(os.environ['HOME'], (inside or [os.environ['TMPDIR']])[-1])\n"
    )

    outcome = await scene.run(code)

    assert outcome.exit_code == 0, outcome.stderr.text
    home, scratch = outcome.stdout.text.split()
    assert home != str(Path.home())
    assert Path(scratch).name.startswith("metier-")
    assert not (Path(tempfile.gettempdir()) / Path(scratch).name).exists()


async def test_protected_files_created_by_a_program_are_quarantined(scene: Scene) -> None:
    for name in ("agent.yaml", ".agent/policy.yaml"):
        (scene.workspace / name).unlink()
    (scene.workspace / ".agent").rmdir()
    made = [".agent/skills/x", ".agent/tool-access.json", ".agents/x", ".claude/x", ".nanobot/x", "agent.yml/x"]
    made += ["agent.yaml", "context/system_prompt.md", "context/soul.json"]
    code = (
        f"for name in {made!r}:\n  try:\n    os.makedirs(os.path.dirname(name) or '.', exist_ok=True)\n"
        "    open(name, 'w').write('x')\n    print('ESCAPED', name)\n  except OSError: pass\n"
    )

    outcome = await scene.run(code)

    assert outcome.exit_code == 0, outcome.stderr.text
    is_full = scene.confinement.level == "full"
    assert ("ESCAPED" in outcome.stdout.text, "moved to quarantine" in outcome.stderr.text) == (is_full, is_full)
    left = {path.name for path in scene.workspace.rglob("*")}
    assert left.isdisjoint(Path(name).name for name in made if name != ".agent/skills/x")
    assert {".agent", ".agents", ".claude", ".nanobot"}.isdisjoint(left)
    moved = {path.stem for path in (scene.base / "quarantine").glob("*/*")}
    kept = {".agent", ".agents", ".claude", ".nanobot", "agent.yml", "agent.yaml"}
    assert moved == ({*kept, "context-system_prompt.md", "context-soul.json"} if is_full else set())


async def test_a_protected_path_is_quarantined_from_a_folder_without_permissions(scene: Scene) -> None:
    code = "try: os.makedirs('.claude/agents'); os.chmod('.claude', 0)\nexcept OSError: pass\nos.chmod('.', 0)\n"

    await scene.run(code)

    assert not (scene.workspace / ".claude").exists()


async def test_quarantine_does_not_follow_links_in_place_of_folders(scene: Scene) -> None:
    outside = scene.base / "outside"
    outside.mkdir()
    (outside / "system_prompt.md").write_text("theirs")
    code = "try: os.symlink(T['target'], 'context')\nexcept OSError: pass\n"

    outcome = await scene.run(code, target=str(outside))

    assert outcome.exit_code == 0, outcome.stderr.text
    assert (outside / "system_prompt.md").read_text() == "theirs"
    assert not os.path.lexists(scene.workspace / "context")


@pytest.mark.parametrize("session", ["", "os.setsid()"])
async def test_a_fork_bomb_ends_with_a_reason(scene: Scene, session: str) -> None:
    code = BOMB.replace("os.fork()", f"os.fork() or {session or 0}")

    outcome = await scene.with_(processes=30).run(code, limits=ProcessLimits(timeout_seconds=60))

    assert not outcome.timed_out
    assert outcome.left == 0
    assert "more than 30 processes" in outcome.stderr.text


async def test_memory_files_and_time_are_limited(scene: Scene) -> None:
    bounded = scene.with_(resources={"data": 256 * 1_048_576, "fsize": 1_048_576, "cpu": 1})

    memory = await bounded.run("b = bytearray(1024 * 1048576); print('ESCAPED')")
    disk = await bounded.run("f = open('src/big', 'wb')\nfor _ in range(64): f.write(bytes(1048576)); f.flush()")
    time = await bounded.run("while True: pass")

    assert "MemoryError" in memory.stderr.text
    assert disk.exit_code != 0
    assert (scene.workspace / "src/big").stat().st_size <= 1_048_576
    assert time.signal is not None


async def test_variables_of_a_command_do_not_affect_processes_outside_the_sandbox(scene: Scene) -> None:
    """The loader of a program with these variables writes a file: it could also load a library."""
    seen = scene.base / "seen"
    seen.mkdir()
    loud = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{seen}/log"}
    command = scene.command("import os; print(os.environ['LD_DEBUG'])")

    outcome = await run_process(replace(command, environment={**command.environment, **loud}))

    assert "files" in outcome.stdout.text.splitlines()
    assert [path.name for path in seen.iterdir()] == []


async def test_a_folder_tree_that_resists_deletion_is_removed_and_nothing_else(scene: Scene) -> None:
    """The tree is deep, has no permissions, links outside, and uses names of the cleaner."""
    code = (
        "top = os.environ['TMPDIR']\nos.chdir(top)\nos.makedirs('0/0.removed')\n"
        "for n in range(1020):\n"  # deeper than calls may be nested, and longer than a path may be
        "  os.mkdir('deep'); os.symlink(T['workspace'], 'deep/link'); os.symlink('..', 'deep/up'); os.chdir('deep')\n"
        "  if n % 400 == 0: os.mkdir('shut'); open('shut/f', 'w'); os.chmod('shut', 0)\n"
        "os.chdir(top)\nos.chmod('deep', 0)\nos.chmod(top, 0o500)\n"
        "mounts = [line.split() for line in open('/proc/self/mountinfo')]\n"
        "print(([m[3] for m in mounts if m[4] == '/tmp' and 'metier-' in m[3]] or [top])[-1])"
    )
    before = read_tree(scene.base)

    outcome = await scene.run(code)

    assert outcome.exit_code == 0, outcome.stderr.text
    assert read_tree(scene.base) == before
    name = Path(outcome.stdout.text.strip()).name
    assert name.startswith(SCRATCH)
    assert list(Path(tempfile.gettempdir()).glob(f"{name}*")) == []
