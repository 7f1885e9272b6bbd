"""The strongest sandbox level that works on this machine: `full`, `kernel` or `none`.

Version numbers prove nothing, so a program inside tries to break out, with planted files and a real listener. A level
works if everything that it must deny failed and everything that programs need succeeded.
"""

import ctypes
import errno
import functools
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from metier.programs import launcher
from metier.programs.launcher import run_program, use_own_program
from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.sandbox import bubblewrap
from metier.tools.process.sandbox.confinement import Confinement, Launch, Level
from metier.tools.process.sandbox.seccomp import ARCHITECTURES

ATTEMPTS = Path(__file__).with_name("attempts.py")
_SECONDS = 20
_PLANTED = "planted"
# The system call, and the flag with which it only returns the version of Landlock.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_VERSION = 444, 1

OUTSIDE = ("write outside", "truncate outside", "make a file outside")
MUST_FAIL = (
    *OUTSIDE, "read the home folder", "read a secrets file",
    "write the agent's own files", "write the runs", "reach the network", "read the agent's environment",
)  # fmt: skip
MUST_WORK = ("write in the workspace", "write temporary files", "start a program")
SIGNAL_AGENT = "signal the agent"
BETTER_REFUSED = (SIGNAL_AGENT, "see the agent's command line")
BETTER_POSSIBLE = ("make a file at the top of the workspace",)


class LevelTrial(Struct, frozen=True, kw_only=True):
    """The result of trying one level."""

    level: Level
    works: bool
    summary: str
    """One sentence: the denied attempts, or why the level does not work."""
    hint: str = ""
    """The missing package or kernel setting."""
    gaps: tuple[str, ...] = ()
    """Protections that this level lacks on this machine although a better level has them."""


def choose_level(program: str) -> LevelTrial:
    """Return the best level that works, or level `none` with all reasons and hints.

    `program` is bubblewrap's path, or empty. Takes a tenth of a second, once per process.
    """
    tried: list[LevelTrial] = []
    for level in ("full", "kernel"):
        trial = try_level(level, program)
        if trial.works:
            return trial
        tried.append(trial)
    summary = "; ".join(trial.summary for trial in tried)
    hint = ", or ".join(trial.hint for trial in tried if trial.hint)
    return LevelTrial(level="none", works=False, summary=summary, hint=hint)


@functools.cache
def try_level(level: Level, program: str) -> LevelTrial:
    """Launch a program in the sandbox that tries to get out."""
    if problem := _find_obstacle(level, program):
        return problem
    with tempfile.TemporaryDirectory(prefix="metier-probe-") as name, socket.socket() as listener:
        base = Path(name).resolve()
        # A real listener, because connecting to a closed port fails without a sandbox too.
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        targets = _plant(base, port=listener.getsockname()[1])
        workspace = base / "workspace"
        confinement = Confinement(
            level=level, bubblewrap=program, workspace=workspace, records=workspace / "runs"
        ).opened(ATTEMPTS)
        launch = confinement.prepare(workspace, mark=f"{base.name}-scratch")
        try:
            done = _run(launch, targets, workspace)
            return _judge(level, done, is_changed=_has_changed(base))
        finally:
            if launch.scratch:
                shutil.rmtree(launch.scratch, ignore_errors=True)


def _find_obstacle(level: Level, program: str) -> LevelTrial | None:
    """Return the level as unavailable if a requirement is obviously missing, without trying it."""
    if sys.platform != "linux":
        return LevelTrial(
            level=level, works=False, summary=f"There is no sandbox for {sys.platform!r}", hint="Use Linux"
        )
    if platform.machine() not in ARCHITECTURES:
        summary = f"The processor {platform.machine()!r} is not among {', '.join(ARCHITECTURES)}"
        return LevelTrial(level=level, works=False, summary=summary)
    if level == "full" and not program:
        hint = "install the system package 'bubblewrap'"
        return LevelTrial(level=level, works=False, summary="bwrap is not installed", hint=hint)
    if level == "kernel" and (missing := _find_missing_landlock()):
        return LevelTrial(level=level, works=False, summary=missing[0], hint=missing[1])
    return None


def _find_missing_landlock() -> tuple[str, str] | None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_VERSION) > 0:
        return None
    # Built in but not enabled at boot; a kernel without it answers ENOSYS.
    if ctypes.get_errno() == errno.EOPNOTSUPP:
        return "Landlock is turned off in the kernel", "add 'landlock' to the kernel's 'lsm=' boot parameter"
    return "the kernel does not offer Landlock", "use Linux 6.2 or newer with Landlock and allow its system calls"


def _plant(base: Path, *, port: int) -> Mapping[str, object]:
    workspace = base / "workspace"
    files = {
        "outside": base / "outside.txt",
        "key": base / "home" / ".ssh" / "id_rsa",
        "secret": workspace / ".env",
        "own": workspace / ".agent" / "policy.yaml",
        "record": workspace / "runs" / "journal",
        "inside": workspace / "notes.txt",
    }
    for file in files.values():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_PLANTED, encoding="utf-8")
    # A real file of the home proves more than a planted one, but a home may be empty.
    real = next((path for path in _list(Path.home()) if path.is_file() and os.access(path, os.R_OK)), None)
    home = [str(path) for path in (real or files["key"],)]
    paths = {name: str(file) for name, file in files.items()}
    return {**paths, "home": home, "new": str(workspace / "new.txt"), "port": port, "agent": os.getpid()}


def _list(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _run(launch: Launch, targets: Mapping[str, object], workspace: Path) -> subprocess.CompletedProcess[bytes] | None:
    assert launch.scratch is not None, "a level that confines has one"
    # Otherwise the supervisor creates them, but the trial runs without one.
    for name in (bubblewrap.HOME, bubblewrap.SHARED, bubblewrap.EMPTY):
        (launch.scratch / name).mkdir(parents=True, mode=0o700)
    command = (*launch.prefix, base_interpreter(), "-I", "-S", str(ATTEMPTS))
    trial = use_own_program(launcher.TRIAL, *command, environment={"PATH": os.defpath, **launch.variables})
    try:
        return run_program(trial, json.dumps(targets), folder=workspace, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _has_changed(base: Path) -> bool:
    """Check the files from outside, because writing a private file of the same name inside does no harm."""
    names = {path.name for path in base.iterdir()}
    return names != {"outside.txt", "home", "workspace"} or (base / "outside.txt").read_text() != _PLANTED


def _judge(level: Level, done: subprocess.CompletedProcess[bytes] | None, *, is_changed: bool) -> LevelTrial:
    results = _parse(done.stdout.decode("utf-8", "replace")) if done else {}
    results |= {name: is_changed and results[name] for name in OUTSIDE if name in results}
    if not results:
        last_line = (
            (done.stderr.decode("utf-8", "replace").strip().splitlines() or [""])[-1] if done else "it did not answer"
        )
        name = "bwrap" if level == "full" else "Landlock with seccomp"
        return LevelTrial(level=level, works=False, summary=f"{name} cannot start: {last_line}", hint=_advise(level))
    # A missing result counts against the level: the program may have ended before that attempt.
    got_out = [name for name in MUST_FAIL if results.get(name, True)]
    got_stuck = [name for name in MUST_WORK if not results.get(name, False)]
    if got_out or got_stuck:
        words = [f"a program could {name}" for name in got_out] + [f"a program could not {name}" for name in got_stuck]
        return LevelTrial(level=level, works=False, summary=f"tried: {', '.join(words)}", hint=_advise(level))
    gaps = [f"programs can {name}" for name in BETTER_REFUSED if results.get(name, True)]
    gaps += [f"programs cannot {name}" for name in BETTER_POSSIBLE if not results.get(name, False)]
    summary = f"tried: {len(MUST_FAIL)} ways out refused, among them {', '.join(MUST_FAIL[::3])}"
    return LevelTrial(level=level, works=True, summary=summary, gaps=tuple(gaps))


def _parse(text: str) -> dict[str, bool]:
    try:
        results: dict[str, bool] = json.loads(text)
    except ValueError:
        return {}
    return results


def _advise(level: Level) -> str:
    """Suggest the kernel setting that prevents the level, as far as it can be determined."""
    if level == "kernel":
        return "use Linux 6.2 or newer with Landlock"
    if _read_setting("kernel/unprivileged_userns_clone") == "0":
        return "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1"
    if _read_setting("user/max_user_namespaces") == "0":
        return "allow user namespaces: sysctl user.max_user_namespaces=10000"
    if _read_setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "give bwrap an AppArmor profile with 'userns,' or: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    return "let bwrap make namespaces (in a container, its seccomp profile and masked /proc are in the way)"


def _read_setting(name: str) -> str:
    try:
        return (Path("/proc/sys") / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""
