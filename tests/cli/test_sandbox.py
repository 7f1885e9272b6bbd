"""Profiles and the sandbox: reports, permissions of scripts, and prevented starts."""

import ctypes
import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from agent_command import AGENT
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.levels import choose_level

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

LOOK = """import json, os, pathlib, socket
def can(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True
workspace = pathlib.Path(__file__).parents[3]
print(json.dumps({
    "env": can(lambda: (workspace / ".env").read_text()),
    "home": can(lambda: (workspace.parent / "home" / ".ssh" / "id_rsa").read_text()),
    "runs": can(lambda: (workspace / "runs" / "agent.db").open("a")),
    "settings": can(lambda: (workspace / "agent.yaml").open("a")),
    "out": can(lambda: (workspace / "out" / "file").write_text("x")),
}))
"""


@pytest.fixture
def level(workspace: Workspace) -> str:
    """The sandbox level; skips if no sandbox is available."""
    trial = choose_level(get_bubblewrap(os.environ, workspace.folder))
    if not trial.works:
        pytest.skip(f"no sandbox can be shown here: {trial.summary}")
    return trial.level


@pytest.fixture
def looking(workspace: Workspace, model: ModelServer, tmp_path: Path) -> Workspace:
    workspace.add_skill("looker", "Look around with a script.", look=LOOK)
    model.follow(calls("script_run", skill_name="looker", script_name="look"), says("Done."))
    (workspace.folder / ".env").write_text("secret", encoding="utf-8")
    (workspace.folder / "out").mkdir()
    (tmp_path / "home" / ".ssh").mkdir()
    (tmp_path / "home" / ".ssh" / "id_rsa").write_text("secret", encoding="utf-8")
    return workspace


def find_seen(model: ModelServer) -> dict[str, bool]:
    """Return the script's output from the model's view."""
    text = json.dumps(model.received[-1]).replace("\\", "")
    return {name: bool(re.search(rf'"{name}": ?true', text)) for name in ("env", "home", "runs", "settings", "out")}


@pytest.mark.parametrize("profile", ["guarded", "strict"])
def test_a_script_is_sandboxed_and_the_run_names_the_sandbox(
    profile: str, looking: Workspace, model: ModelServer, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SANDBOX_USE", "required")
    assert looking.agent("run", "Look", "--profile", profile, "--output-format", "json") == 3
    assert looking.agent("approvals", "approve", find_approval(looking)) == 0
    assert looking.agent("resume", "latest", "-q") == 0

    assert find_seen(model) == {"env": False, "home": False, "runs": False, "settings": False, "out": True}
    assert looking.events()[0]["payload"]["sandbox"] == level


def find_approval(workspace: Workspace) -> str:
    (event,) = [event for event in workspace.events() if event["event_type"] == "approval_requested"]
    return str(event["payload"]["approval_id"])


def test_the_permissive_profile_uses_no_sandbox_and_reports_it(looking: Workspace, model: ModelServer) -> None:
    assert looking.agent("run", "Look", "-q") == 0

    assert find_seen(model)["env"]
    assert looking.events()[0]["payload"]["sandbox"] == "none"


def test_strict_does_not_start_with_a_disabled_sandbox(
    workspace: Workspace, model: ModelServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SANDBOX_USE", "off")

    assert workspace.agent("run", "Greet", "--profile", "strict") == 9

    assert capsys.readouterr().err == (
        "error: Profile 'strict' needs a sandbox, and sandbox.use is 'off'\nhint: Set sandbox.use to 'auto'\n"
    )
    assert model.received == []
    assert workspace.run_ids() == []


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="filters by number")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--profile", "strict"], 9), (["--profile", "guarded"], 0), (["--profile", "permissive"], 0)],
)
def test_without_a_sandbox_strict_reports_what_is_missing_and_other_profiles_run(
    arguments: list[str], code: int, workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Done."))

    done = run_without_a_sandbox(workspace, "run", "Greet", "-q", *arguments)

    assert done.returncode == code, done.stderr
    if code:
        assert (
            "error: Profile 'strict' needs a sandbox: bwrap is not installed; the kernel does not offer" in done.stderr
        )
        assert "hint: Install the system package 'bubblewrap', or use Linux 6.2 or newer with Landlock" in done.stderr
        assert model.received == []
    else:
        assert workspace.events()[0]["payload"]["sandbox"] == "none"


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="filters by number")
def test_doctor_reports_that_strict_cannot_start_and_why(workspace: Workspace) -> None:
    done = run_without_a_sandbox(workspace, "doctor", AGENT_RUNTIME_PROFILE="strict")

    assert "[!!] use" in done.stdout
    assert "Install the system package 'bubblewrap'" in done.stdout


def run_without_a_sandbox(
    workspace: Workspace, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command on a simulated machine without Landlock and bubblewrap."""
    return subprocess.run(
        [str(AGENT), *arguments], cwd=workspace.folder, preexec_fn=forget_landlock, text=True, capture_output=True,
        env={**os.environ, "PATH": str(AGENT.parent), **environment}, timeout=120, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def forget_landlock() -> None:
    number, answer = 444, 0x00050000 | 38
    code = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, answer), (0x06, 0, 0, 0x7FFF0000))
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(instructions)))
    libc = ctypes.CDLL(None)
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0)


@pytest.mark.parametrize("profile", ["permissive", "guarded"])
def test_no_profile_lets_a_tool_write_the_runs(profile: str, workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="runs/forged.txt", content="x"), says("Done."))

    workspace.agent("run", "Forge", "-q", "--profile", profile)

    assert not (workspace.folder / "runs" / "forged.txt").exists()
    if profile == "permissive":
        assert "is protected: it holds the agent's own records" in json.dumps(model.received[-1])
