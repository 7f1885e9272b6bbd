"""The read-only sandbox, attacked: a program in it writes nothing, connects to nothing and reaches no other program."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from confined import LEVELS, Scene, make_scene
from msgspec.structs import replace

from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.sandbox.confinement import Level

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are for Linux")]

ATTEMPTS = """
import fcntl, signal, struct, time
kernel = ctypes.CDLL(None, use_errno=True)
done = []

def attempt(name, act):
    try:
        act()
    except OSError:
        return
    done.append(name)

def call(number, *arguments):
    if kernel.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

def read_only(name="notes.txt"):
    return os.open(name, os.O_RDONLY)

W, agent, X86 = T["workspace"], T["agent"], os.uname().machine == "x86_64"
private = os.environ["TMPDIR"]
attempt("create", lambda: open("new", "w"))
attempt("create below", lambda: open("src/new", "w"))
attempt("append", lambda: open("notes.txt", "a"))
attempt("truncate", lambda: os.truncate("notes.txt", 0))
attempt("remove", lambda: os.remove("notes.txt"))
attempt("rename", lambda: os.rename("notes.txt", "other.txt"))
attempt("rename out", lambda: os.rename("notes.txt", private + "/other.txt"))
attempt("folder", lambda: os.mkdir("folder"))
attempt("node", lambda: os.mknod("node"))
attempt("hard link", lambda: os.link("notes.txt", "linked"))
attempt("hard link out", lambda: os.link("notes.txt", private + "/linked"))
attempt("symlink", lambda: os.symlink("notes.txt", "symlinked"))
attempt("existing hard link", lambda: open("hard", "a"))
attempt("through proc", lambda: open("/proc/self/cwd/new", "w"))
attempt("through the first process", lambda: open("/proc/1/root" + W + "/new", "w"))
attempt("through the agent", lambda: open(f"/proc/{agent}/root{W}/notes.txt", "a"))
attempt("reopen", lambda: os.open(f"/proc/self/fd/{read_only()}", os.O_RDWR))
attempt("reopen path", lambda: os.open(f"/proc/self/fd/{os.open('notes.txt', os.O_PATH)}", os.O_WRONLY))
attempt("through a link", lambda: (os.symlink(W, private + "/here"), open(private + "/here/new", "w")))
attempt("mode", lambda: os.chmod("notes.txt", 0o777))
attempt("mode by descriptor", lambda: os.fchmod(read_only(), 0o777))
attempt("owner", lambda: os.chown("notes.txt", os.getuid(), -1))
attempt("times", lambda: os.utime("notes.txt"))
attempt("times by descriptor", lambda: os.utime(read_only()))
attempt("attribute", lambda: os.setxattr("notes.txt", "user.a", b"x"))
attempt("flags", lambda: fcntl.ioctl(read_only(), 0x40086602, struct.pack("i", 0x80)))
attempt("setuid", lambda: os.open(private + "/setuid", os.O_CREAT | os.O_WRONLY, 0o4755))
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, 17, 38, 40):
    attempt(f"socket {family}", lambda: socket.socket(family, socket.SOCK_STREAM))
attempt("signal", lambda: os.kill(agent, 0))
attempt("signal by descriptor", lambda: signal.pidfd_send_signal(os.pidfd_open(agent), 0))
attempt("environment", lambda: open(f"/proc/{agent}/environ", "rb").read(1))
attempt("memory", lambda: open(f"/proc/{agent}/mem", "rb").read(1))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, agent, 19))
attempt("priority of the user", lambda: os.setpriority(os.PRIO_USER, 0, 19))
attempt("affinity", lambda: os.sched_setaffinity(agent, {0}))
attempt("shared memory", lambda: call(29 if X86 else 194, 0, 4096, 0o1600))
attempt("message queue", lambda: call(240 if X86 else 180, b"x", os.O_CREAT | os.O_RDWR, 0o600, 0))
attempt("namespace", lambda: call(272 if X86 else 97, 0x10000000))
attempt("mount", lambda: call(165 if X86 else 40, b"none", b"/tmp", b"tmpfs", 0, 0))
attempt("home", lambda: open(T["home"] + "/new", "w"))
attempt("secret", lambda: print(open(".env").read()))
attempt("private file", lambda: open(private + "/file", "w"))
attempt("private home", lambda: open(os.environ["HOME"] + "/file", "w"))
attempt("read", lambda: open("notes.txt").read())
print(json.dumps(done))
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(1); os.close(2)
        time.sleep(60)
        open("late", "w")
    os._exit(0)
"""


@pytest.fixture(params=LEVELS)
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    level: Level = request.param
    made = make_scene(tmp_path, level)
    os.link(tmp_path / "outside.txt", made.workspace / "hard")
    return dataclasses.replace(made, confinement=made.confinement.for_reading())


def read_states(base: Path) -> dict[str, tuple[int, int, int, bytes]]:
    found: dict[str, tuple[int, int, int, bytes]] = {}
    for path in base.rglob("*"):
        state = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (state.st_mode, state.st_mtime_ns, state.st_ctime_ns, content)
    return found


async def test_read_only_program_changes_nothing_outside_its_private_folders(scene: Scene) -> None:
    before = read_states(scene.base)

    outcome = await scene.run(ATTEMPTS, home=str(Path.home()))

    assert outcome.exit_code == 0, outcome.stderr.text
    assert json.loads(outcome.stdout.text) == ["private file", "private home", "read"]
    assert outcome.left == 0
    assert read_states(scene.base) == before


async def test_opened_folders_are_readable_and_not_writable(scene: Scene, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    opened.mkdir()
    (opened / "file").write_text("open")
    confinement = make_scene(tmp_path, scene.confinement.level).with_(writable=(opened.resolve(),)).confinement
    scene = dataclasses.replace(scene, confinement=confinement.for_reading())

    outcome = await scene.run(
        "print(open(T['opened'] + '/file').read()); open(T['opened'] + '/new', 'w')", opened=str(opened)
    )

    assert outcome.stdout.text == "open\n"
    assert outcome.exit_code == 1
    assert [path.name for path in opened.iterdir()] == ["file"]


def test_program_does_not_start_if_the_workspace_can_be_written(scene: Scene) -> None:
    """The sandbox orders contain an error: they grant write access."""
    launch = scene.confinement.prepare(scene.workspace, mark="mistaken")
    writable = replace(scene.confinement, read_only=False).prepare(scene.workspace, mark="mistaken")
    told = json.loads(launch.prefix[-1])
    orders = json.dumps({**json.loads(writable.prefix[-1]), "unwritable": told["unwritable"]})
    assert launch.scratch is not None
    for name in ("home", "shm", "empty"):
        (launch.scratch / name).mkdir(parents=True)
    try:
        command = [*writable.prefix[:-1], orders, base_interpreter(), "-c", "print('ran')"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=scene.workspace)
    finally:
        shutil.rmtree(launch.scratch)

    assert (done.stdout, done.returncode) == ("", 127)
    assert "can be written" in done.stderr
