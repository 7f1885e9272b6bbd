"""A denied program does not run in a sandbox, whatever starts it and under any name."""

import json
import os
import sys
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

from agent_command import AGENT
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.confinement import Level
from metier.tools.process.sandbox.levels import try_level

DETOURS = (
    "/usr/bin/find . -maxdepth 0 -exec /usr/bin/touch {} ';'",
    "/usr/bin/find . -maxdepth 0 -execdir /bin/touch {} ';'",
    "/usr/bin/env /usr/bin/touch {}",
    "/usr/bin/nice /usr/bin/touch {}",
    "/usr/bin/timeout 5 /usr/bin/touch {}",
    "/usr/bin/taskset 1 /usr/bin/touch {}",
    "/usr/bin/prlimit /usr/bin/touch {}",
    "/usr/bin/setsid -w /usr/bin/touch {}",
    "/bin/sh -c 't=/usr/bin/tou; ${{t}}ch {}'",
    "/bin/bash out/x.sh {}",
    '/usr/bin/perl -e \'exec "/usr/bin/touch", "{}"\'',
    "/usr/bin/awk 'BEGIN {{ system(\"/usr/bin/touch {}\") }}'",
    "/usr/bin/python3 out/x.py {}",
    "/usr/bin/python3 out/in_memory.py {}",
    "echo {} | /usr/bin/xargs /usr/bin/touch",
    "/usr/bin/cp /usr/bin/touch out/copied; out/copied {}",
    "/usr/bin/install -m 755 /bin/touch out/installed; out/installed {}",
    "/usr/bin/ln -s /usr/bin/touch out/linked; out/linked {}",
    "/usr/bin/ln /usr/bin/touch out/hard; out/hard {}",
    "/usr/bin/cat /usr/bin/touch > out/poured; /usr/bin/chmod +x out/poured; out/poured {}",
    "/usr/bin/dd if=/usr/bin/touch of=out/dd; /usr/bin/chmod +x out/dd; out/dd {}",
    "/usr/bin/tar -C /usr/bin -cf out/t.tar touch; /usr/bin/tar -C out -xf out/t.tar; out/touch {}",
    "/proc/self/root/usr/bin/touch {}",
    "/usr/bin/../bin/touch {}",
    "/usr/bin/env -C /usr/bin ./touch $PWD/{}",
    "/lib64/ld-linux-x86-64.so.2 /usr/bin/touch {}",
)
"""Lines that make a file by `touch`, each by another way; `{}` is the file."""

SHELL_SCRIPT = 'here=/usr/bin; for name in "$here"/to*ch; do "$name" "$1"; done\n'
PYTHON_SCRIPT = 'import os, sys\nos.execv("/usr/bin/touch", ["ls", sys.argv[1]])\n'
IN_MEMORY = """import os, sys
made = os.memfd_create("x")
os.write(made, open("/usr/bin/touch", "rb").read())
os.execve(made, ["x", sys.argv[1]], {})
"""


@pytest.fixture(params=["full", "kernel"])
def level(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Level:
    """Use this sandbox level for runs; skip if it is unavailable."""
    wanted: Level = request.param
    trial = try_level(wanted, get_bubblewrap(os.environ, tmp_path))
    if not trial.works:
        pytest.skip(f"sandbox level {wanted!r} cannot be shown here: {trial.summary}")
    if wanted == "kernel":
        # No bubblewrap on PATH.
        monkeypatch.setenv("PATH", str(AGENT.parent))
    return wanted


def run_detours(workspace: Workspace, model: ModelServer, *, denied: str) -> list[str]:
    """Return the indirections that created the file despite an approval."""
    lines = [f"({line.format(f'out/made-{number}')})" for number, line in enumerate(DETOURS)]
    rules = [{"tool": "Bash", "allow": False, "when": {"command": {"startsWith": denied}}}]
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "strict"})
    workspace.write(".agent/policy.yaml", json.dumps({"tool_approvals": {"rules": rules}}))
    scripts = {"x.sh": SHELL_SCRIPT, "x.py": PYTHON_SCRIPT, "in_memory.py": IN_MEMORY, "all.sh": "\n".join(lines)}
    for name, text in scripts.items():
        workspace.write(f"out/{name}", text)
    model.follow(calls("Bash", command="/bin/bash out/all.sh; echo through"), says("Done."))
    assert workspace.agent("run", "Try it", "-q") == 3
    assert workspace.agent("approvals", "approve", "ap-", "--resume") == 0
    assert "through" in json.dumps(model.received[-1]["messages"])
    return [line for number, line in enumerate(DETOURS) if (workspace.folder / f"out/made-{number}").exists()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
def test_no_indirection_executes_a_denied_program(workspace: Workspace, model: ModelServer, level: Level) -> None:
    assert run_detours(workspace, model, denied="touch") == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")
def test_indirections_run_the_program_if_another_one_is_denied(
    workspace: Workspace, model: ModelServer, level: Level
) -> None:
    made = run_detours(workspace, model, denied="mkfifo")

    assert len(made) >= len(DETOURS) - 3, set(DETOURS) - set(made)
