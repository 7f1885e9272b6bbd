"""Leftovers of programs whose agent and supervisor were killed are removed by the next start."""

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from agent_command import AGENT
from metier.tools.process.run import SUPERVISOR, TREE_VARIABLE, list_marked
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.levels import try_level

pytestmark = pytest.mark.slow

LINGER = """import os, subprocess, sys
open(os.path.join(os.environ.get("TMPDIR", "."), "left"), "w").close()
child = subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
open(sys.argv[1], "w").close()
child.wait()
"""


def find_supervisor(agent: int, began: Path) -> int:
    """Wait until the program runs, then find the process between it and the agent."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        for child in children if began.exists() else ():
            if str(SUPERVISOR).encode() in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("the program did not start")


def read_mark(process: int) -> str:
    pairs = dict(item.split("=", 1) for item in Path(f"/proc/{process}/environ").read_text().split("\0") if "=" in item)
    return pairs[TREE_VARIABLE]


def wait_for_lock(scratch: Path) -> None:
    """Wait until the kernel has ended the supervisor: a signal is sent before its process is gone."""
    folder = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    os.close(folder)


@pytest.mark.parametrize("level", ["full", "kernel", "none"])
def test_the_next_start_removes_leftovers_of_a_killed_supervisor(
    level: str, workspace: Workspace, model: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if level in ("full", "kernel"):
        trial = try_level(level, get_bubblewrap(os.environ, tmp_path))
        if not trial.works:
            pytest.skip(f"sandbox level {level!r} cannot be shown here: {trial.summary}")
        monkeypatch.setenv("AGENT_SANDBOX_USE", "required")
    if level == "kernel":
        monkeypatch.setenv("PATH", str(AGENT.parent))
    began = workspace.folder / "out/began"
    began.parent.mkdir()
    workspace.add_skill("linger", "Wait with a script.", linger=LINGER)
    model.follow(
        calls("script_run", skill_name="linger", script_name="linger", args=[str(began)], json=False), says("Done.")
    )
    with subprocess.Popen([AGENT, "run", "Wait", "-q"], cwd=workspace.folder, stdin=subprocess.DEVNULL) as agent:
        supervisor = find_supervisor(agent.pid, began)
        mark = read_mark(supervisor)
        for process in (agent.pid, supervisor):
            os.kill(process, signal.SIGKILL)
    scratch = Path(tempfile.gettempdir()) / f"metier-{mark}"
    assert scratch.is_dir()
    os.utime(scratch, (0, 0))
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet", "-q") == 0

    assert not scratch.exists()
    until = time.monotonic() + 100
    while list_marked(mark) and time.monotonic() < until:
        pass
    assert list_marked(mark) == []
    assert sorted(path.name for path in workspace.folder.iterdir()) == ["agent.yaml", "out", "runs", "skills"]
