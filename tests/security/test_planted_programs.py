"""Workspace programs with a known name need approval: tables vouch for programs, not names."""

import os
from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.testing.scripted import says

pytestmark = pytest.mark.anyio

ALLOW = "tool_approvals: [{tool: Bash, allow: true}, {tool: Write, allow: true}]\n"
PLANTED = "#!/bin/sh\ntouch PWNED\n"


def plant(workspace: Path, *names: str, rules: str = ALLOW) -> dict[str, str]:
    """Create programs in `venv/bin` and an environment whose PATH starts there."""
    put(workspace, {".agent/policy.yaml": rules, "notes.txt": "a\n"} | {f"venv/bin/{name}": PLANTED for name in names})
    for name in names:
        (workspace / "venv/bin" / name).chmod(0o755)
    return {**os.environ, "PATH": f"{workspace / 'venv/bin'}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("ruff", "ruff --version"),
        ("ls", "ls"),
        ("cat", "cat notes.txt | head -1"),
        ("head", "cat notes.txt | head -1"),
        ("wc", "find . -name '*.txt' | xargs wc -l"),
        ("git", "git status"),
        ("python3", "python3 --version"),
        ("gzip", "zcat notes.txt"),
        ("grep", "egrep a notes.txt"),
        ("grep", "find . -name '*.txt' | xargs fgrep a"),
    ],
)
async def test_a_known_program_found_in_the_workspace_is_asked_about(tmp_path: Path, name: str, line: str) -> None:
    workspace = tmp_path / "workspace"
    environ = plant(workspace, name)
    drill = Drill(workspace, [call("Bash", command=line), says("done")], environ=environ)

    state = await drill.run()

    assert state.status == "paused"
    assert not (workspace / "PWNED").exists()


async def test_a_workspace_interpreter_of_a_known_script_is_asked_about(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "bin"
    environ = plant(workspace, "node")
    put(outside, {"npm": "#!/usr/bin/env node\n"})
    (outside / "npm").chmod(0o755)
    environ["PATH"] = f"{environ['PATH'].partition(os.pathsep)[0]}{os.pathsep}{outside}{os.pathsep}{os.environ['PATH']}"
    drill = Drill(workspace, [call("Bash", command="npm --version"), says("done")], environ=environ)

    assert (await drill.run()).status == "paused"
    assert not (workspace / "PWNED").exists()


async def test_a_link_on_path_into_the_workspace_is_followed(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "bin"
    environ = plant(workspace, "hidden")
    outside.mkdir()
    (outside / "ls").symlink_to(workspace / "venv/bin/hidden")
    environ["PATH"] = f"{outside}{os.pathsep}{os.environ['PATH']}"
    drill = Drill(workspace, [call("Bash", command="ls"), says("done")], environ=environ)

    assert (await drill.run()).status == "paused"


async def test_a_planted_git_is_asked_about_even_if_a_rule_names_the_command(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    rules = "tool_approvals: [{tool: Bash, allow: true, when: {command: {startsWith: git add}}}]\n"
    environ = plant(workspace, "git", rules=rules)
    drill = Drill(workspace, [call("Bash", command="git add notes.txt"), says("done")], environ=environ)

    assert (await drill.run()).status == "paused"


async def test_a_rule_for_a_workspace_program_applies_to_it(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    rules = "tool_approvals: [{tool: Bash, allow: true, when: {command: {startsWith: pytest}}}]\n"
    environ = plant(workspace, "pytest", rules=rules)
    drill = Drill(workspace, [call("Bash", command="pytest -q"), says("done")], environ=environ)

    assert (await drill.run()).status == "completed"


async def test_a_known_program_outside_the_workspace_runs_without_approval(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    environ = plant(workspace, "other")
    drill = Drill(workspace, [call("Bash", command="ls && cd venv && ls"), says("done")], environ=environ)

    assert (await drill.run()).status == "completed"
