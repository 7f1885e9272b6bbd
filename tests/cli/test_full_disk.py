"""A full disk without the reserve: runs can be viewed, and old ones deleted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MOUNT = 'mount -t tmpfs -o size=48m none "$1" && cd "$1" && exec "$2" -c "$3"'
COMMANDS = """
from contextlib import suppress
from pathlib import Path

from metier.cli.main import run


def agent(name, *args):
    print(f"{name}: {run(list(args))}", flush=True)


for _ in range(5):
    agent("run", "run", "-q", "inventory the workspace")
agent("detach", "run", "-q", "--detach", "inventory the workspace")
Path("runs/state.db.ballast").unlink()
with suppress(OSError), Path("filler").open("wb", buffering=0) as filler:
    while filler.write(bytes(4096)):
        pass
agent("list", "runs", "list")
agent("resume", "resume", "latest", "-q")
agent("resume of an ended run", "resume", sorted(path.name for path in Path("runs").glob("2*"))[0], "-q")
agent("gc", "runs", "gc", "--keep", "1")
Path("filler").unlink()
agent("resume with room", "resume", "latest", "-q")
agent("list", "runs", "list")
"""


def can_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted here")
def test_runs_on_a_full_disk_can_be_listed_deleted_and_continued_after_cleanup(
    tmp_path: Path,
) -> None:
    disk, home = tmp_path / "disk", tmp_path / "home"
    disk.mkdir()
    home.mkdir()
    environ = {**os.environ, "HOME": str(home), "AGENT_MODEL_PROVIDER": "offline", "AGENT_SKILLS": "all"}
    environ["AGENT_WORKER_AUTOSTART"] = "false"
    command = ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(disk), sys.executable, COMMANDS]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=220, env=environ)

    told = done.stdout + done.stderr
    codes = [line for line in done.stdout.splitlines() if line.startswith(("list:", "gc:", "resume"))]
    assert codes == ["list: 0", "resume: 1", "resume of an ended run: 0", "gc: 0", "resume with room: 0", "list: 0"], (
        told
    )
    assert done.stdout.count(" inventory the workspace") == 6 + 2, told
    assert "the disk is full" in done.stderr
    assert "4 runs were deleted" in done.stderr
