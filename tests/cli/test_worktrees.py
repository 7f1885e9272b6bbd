"""The worktree of a killed, canceled or deleted run: its changes are kept, its folder is removed."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_files import add_agent
from model_server import calls, running_model, says
from role_model import RoleModel
from run_workspace import WAIT, Workspace, use_model

type Capture = pytest.CaptureFixture[str]

WORKTREES = ".agent/worktrees"


def git(folder: Path, *args: str) -> str:
    who = ("-c", "user.name=Kim", "-c", "user.email=kim@example.org")
    done = subprocess.run(["git", *who, *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def team(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RoleModel]:
    """A repository and an agent that changes a file in a worktree, then waits for a user or in a script."""
    monkeypatch.setenv("AGENT_TRUST", "all")
    add_agent(workspace.folder, "writer", "profile: permissive", body="You are the writer.")
    workspace.add_skill("waiter", "Wait.", wait=WAIT)
    workspace.write("notes.txt", "Bring milk\n")
    workspace.write(".gitignore", "runs/\n")
    git(workspace.folder, "init", "-q")
    git(workspace.folder, "add", "notes.txt", ".gitignore")
    git(workspace.folder, "commit", "-qm", "first")
    os.mkfifo(tmp_path / "pipe")
    work = {"agent": "writer", "task": "Change the notes"}
    model = RoleModel(
        lines={
            "writer": [
                calls("Edit", path="notes.txt", old="milk", new="bread"),
                calls("ask_user", question="Which colour?"),
                says("Changed"),
            ],
            "boss": [calls("delegate", tasks=[work], isolation="worktree"), says("Done")],
        }
    )
    with running_model(model):
        workspace.configure(model=use_model(model), runtime={"max_turns": 20})
        yield model


def find_worktrees(workspace: Workspace) -> list[Path]:
    """Return the existing worktrees and those registered in git, except for the workspace."""
    folder = Path.home() / WORKTREES
    made = list(folder.iterdir()) if folder.exists() else []
    assert len(git(workspace.folder, "worktree", "list").splitlines()) == len(made) + 1
    return made


def read_diff(workspace: Workspace, run_id: str) -> str:
    (diff,) = (workspace.folder / "runs" / run_id / "artifacts").glob("child-*.diff")
    return diff.read_text(encoding="utf-8")


def test_worktree_of_a_canceled_run_is_removed_and_its_changes_are_kept(workspace: Workspace, team: RoleModel) -> None:
    assert workspace.agent("run", "-q", "Change it") == 4
    (run_id,) = workspace.run_ids()
    assert len(find_worktrees(workspace)) == 1

    assert workspace.agent("runs", "cancel", run_id) == 0

    assert find_worktrees(workspace) == []
    assert "+Bring bread" in read_diff(workspace, run_id)
    assert (workspace.folder / "notes.txt").read_text() == "Bring milk\n"


def test_worktree_of_a_killed_run_is_removed_by_cancel(workspace: Workspace, team: RoleModel, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    waits = calls("script_run", skill_name="waiter", script_name="wait", args=[str(pipe)])
    team.lines = {**team.lines, "writer": [team.lines["writer"][0], waits]}
    process = workspace.start("run", "-q", "Change it")
    held = os.open(pipe, os.O_WRONLY)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=100)
    os.close(held)
    (run_id,) = workspace.run_ids()
    assert len(find_worktrees(workspace)) == 1

    assert workspace.agent("runs", "cancel", run_id) == 0

    assert find_worktrees(workspace) == []
    assert "+Bring bread" in read_diff(workspace, run_id)


def test_worktree_with_unreadable_changes_is_kept_until_its_run_is_deleted(
    workspace: Workspace, team: RoleModel, capsys: Capture
) -> None:
    assert workspace.agent("run", "-q", "Change it") == 4
    (worktree,) = find_worktrees(workspace)
    snapshots = worktree / "snapshots"
    for file in [file for file in snapshots.rglob("*") if file.is_file()]:
        file.unlink()  # git writes its objects read-only
        file.write_bytes(b"damaged")

    assert workspace.agent("runs", "cancel", "latest") == 0
    assert find_worktrees(workspace) == [worktree]
    capsys.readouterr()

    assert workspace.agent("runs", "gc", "--keep", "0", "--json") == 0

    assert len(json.loads(capsys.readouterr().out)["deleted"]) == 2
    assert find_worktrees(workspace) == []
