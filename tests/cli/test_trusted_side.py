"""The trusted side starts no program that a confined program can influence, on both levels."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from agent_command import AGENT, run_agent
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.confinement import Level
from metier.tools.process.sandbox.levels import try_level

pytestmark = pytest.mark.slow

ALLOW = "rules:\n  - tool: script_run\n    allow: true\n"
PLANT = """import os, sys
workspace, marker = sys.argv[1:3]
for name in ("rm", "chmod", "git", "rg", "bwrap", "uv", "python3", "sh", "env"):
    path = os.path.join(workspace, ".venv", "bin", name)
    with open(path, "w") as file:
        file.write(f"#!/bin/sh\\n/bin/echo {name} >> {marker}\\n")
    os.chmod(path, 0o755)
os.makedirs(os.path.join(os.environ["TMPDIR"], "full", "of", "files"))
"""


@pytest.fixture(params=["full", "kernel"])
def level(request: pytest.FixtureRequest, tmp_path: Path) -> Level:
    """The sandbox level; skips if it is unavailable."""
    wanted: Level = request.param
    trial = try_level(wanted, get_bubblewrap(os.environ, tmp_path))
    if not trial.works:
        pytest.skip(f"sandbox level {wanted!r} cannot be shown here: {trial.summary}")
    return wanted


def run_enclosed(workspace: Workspace, level: Level, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with a virtual environment of the workspace first on its PATH, as after `activate`.

    A PATH without bubblewrap selects the level `kernel`.
    """
    behind = os.environ["PATH"] if level == "full" else str(AGENT.parent)
    path = f"{workspace.folder}/.venv/bin:{AGENT.parent}:{behind}"
    return run_agent(*arguments, cwd=workspace.folder, env={**os.environ, "PATH": path})


@pytest.fixture
def activated(workspace: Workspace) -> Workspace:
    """A workspace with its own virtual environment, writable for programs."""
    (workspace.folder / ".venv/bin").mkdir(parents=True)
    workspace.write(".venv/pyvenv.cfg", "home = /usr/bin\n")
    workspace.write(".agent/policy.yaml", ALLOW)
    workspace.add_skill("planter", "Plant programs with a script.", plant=PLANT)
    return workspace


def test_programs_planted_on_the_path_are_not_run_outside_the_sandbox(
    activated: Workspace, model: ModelServer, level: Level, tmp_path: Path
) -> None:
    marker = tmp_path / "escaped"
    arguments = [str(activated.folder), str(marker)]
    plant = calls("script_run", skill_name="planter", script_name="plant", args=arguments, json=False)
    model.follow(plant, calls("script_run", skill_name="greeter", script_name="greet"), says("Done."))

    done = run_enclosed(activated, level, "run", "Build it", "--profile", "strict", "--output-format", "json")

    assert done.returncode == 0, done.stderr
    assert activated.events()[0]["payload"]["sandbox"] == level
    assert (activated.folder / ".venv/bin/rm").exists(), "the program could not write what the test is about"
    assert not marker.exists(), marker.read_text()


@pytest.mark.parametrize("command", [["doctor"], ["skill", "add", "https://127.0.0.1:1/x.git", "--yes"]])
def test_commands_find_no_program_in_the_workspace(command: list[str], activated: Workspace, tmp_path: Path) -> None:
    marker = tmp_path / "escaped"
    subprocess.run(
        [sys.executable, activated.folder / "skills/planter/scripts/plant.py", activated.folder, marker],
        check=True, timeout=60, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip

    run_enclosed(activated, "full", *command)

    assert not marker.exists(), marker.read_text()
