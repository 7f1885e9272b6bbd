"""A command runs as the same user but cannot read the keys in the agent's process."""

import json
import os
import subprocess
import sys

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from agent_command import AGENT

pytestmark = pytest.mark.slow

KEY = "".join(("planted", "-key-", "0123456789"))
AS_ORDINARY_USER = """import ctypes, os, sys
for capability in (19, 21, 38) if os.geteuid() == 0 else ():
    if ctypes.CDLL(None).prctl(24, capability, 0, 0, 0):
        sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Root may look into every process: because of CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_PERFMON. This gives them up."""

LOOK = (
    "hits=0; for p in /proc/[0-9]*; do grep -qsa ^PLANTED_ $p/environ && hits=$((hits+1)); "
    "grep -qsza ^PLANTED_ $p/environ && hits=$((hits+1)); done; echo hits=$hits"
)
OWN = "grep -c PLANTED_ /proc/self/environ; env | grep -c PLANTED_; echo end"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc and PR_SET_DUMPABLE")
@pytest.mark.parametrize(("command", "expected"), [(LOOK, "hits=0"), (OWN, "0\n0\nend")])
def test_a_command_cannot_read_the_keys_of_the_agent(
    workspace: Workspace, model: ModelServer, command: str, expected: str
) -> None:
    model.follow(calls("Bash", command=command), says("Done."))

    done = subprocess.run(
        [sys.executable, "-c", AS_ORDINARY_USER, str(AGENT), "run", "Look", "--profile", "permissive"],
        cwd=workspace.folder, env={**os.environ, "PLANTED_API_KEY": KEY}, text=True, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
    )  # fmt: skip

    if done.returncode == 77:
        pytest.skip("root cannot give up its capabilities here, and with them may look into every process")
    assert done.returncode == 0, done.stderr
    told = model.received[-1]["messages"][-1]["content"]
    assert expected in told, json.dumps(told)
