"""A disk without any room left, and without the reserve: what was done can still be looked at."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_workspace import AGENT

SCRIPT = """
mount -t tmpfs -o size=48m none "$1"
cd "$1"
"$2" run -q "inventory the workspace" > /dev/null 2>&1
rm -f runs/state.db.ballast
dd if=/dev/zero of=filler bs=4k 2> /dev/null
"$2" runs list
echo "list: $?"
"$2" resume latest -q
echo "resume: $?"
rm filler
"$2" runs list
echo "list: $?"
"""


def can_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted here")
def test_runs_are_listed_on_a_full_disk_without_a_reserve(tmp_path: Path) -> None:
    disk, home = tmp_path / "disk", tmp_path / "home"
    disk.mkdir()
    home.mkdir()
    environ = {**os.environ, "HOME": str(home), "AGENT_MODEL_PROVIDER": "offline", "AGENT_SKILLS": "all"}
    command = ["unshare", "-m", "sh", "-c", SCRIPT, "sh", str(disk), str(AGENT)]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environ)

    assert done.stdout.count("inventory the workspace") == 2, done.stdout + done.stderr
    assert done.stdout.count("list: 0") == 2
    assert "resume: 1" in done.stdout
    assert "the disk is full" in done.stderr
