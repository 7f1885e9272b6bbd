"""A run with hooks, pictures, both kinds of children and an undo replays entry by entry."""

import json
from pathlib import Path

import pytest
from agent_files import add_agent
from cloned_folder import git
from model_server import calls, running_model, says
from pictures import build_png
from role_model import RoleModel
from run_workspace import Workspace, use_model

HOOK = 'cat > /dev/null; date >> hook.log; echo \'{"additionalContext": "Noted by a hook"}\''
READING = [{"agent": "reader", "task": "Look"}, {"agent": "reader", "task": "Look twice"}]
WRITING = [{"agent": "writer", "task": "Write"}]


def test_replay_of_a_run_with_hooks_pictures_undo_and_children_is_equal(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = workspace.folder
    workspace.write("notes.txt", "Bring milk\n")
    workspace.write(".gitignore", "runs/\nhook.log\n")
    (folder / "shot.png").write_bytes(build_png(40, 30))
    git(folder, "init", "-q")
    git(folder, "add", "notes.txt", ".gitignore")
    git(folder, "commit", "-q", "-m", "first")
    for name in ("reader", "writer"):
        add_agent(folder, name, "profile: permissive", body=f"You are the {name}.")
    lines = {
        "reader": [calls("Read", path="shot.png"), says("A grey square")],
        "writer": [calls("Write", path="notes.txt", content="Bring tea\n"), says("Written")],
        "boss": [
            calls("delegate", tasks=READING),
            calls("delegate", tasks=WRITING, isolation="worktree"),
            calls("Write", path="notes.txt", content="Bring tea\n"),
            calls("Bash", command="echo more >> notes.txt"),
            says("All done"),
        ],
    }
    hooks = {
        event: [{"hooks": [{"type": "command", "command": HOOK}]}]
        for event in ("SessionStart", "PreToolUse", "PostToolUse", "Stop", "SubagentStop")
    }
    with running_model(RoleModel(lines=lines)) as model:
        workspace.configure(model=use_model(model), runtime={"max_turns": 60}, hooks=hooks)
        assert workspace.agent("run", "-q", "--image", "shot.png", "Do all of it") == 0
        assert (folder / "notes.txt").read_text() == "Bring tea\nmore\n"
        assert workspace.agent("undo", "latest", "--yes") == 0
        assert (folder / "notes.txt").read_text() == "Bring milk\n"
        asked, hooked = len(model.received), (folder / "hook.log").read_text()
        (folder / "shot.png").unlink()
        (folder / "notes.txt").unlink()
        capsys.readouterr()

        runs = [workspace.run_ids()[-1], *sorted(path.name for path in (folder / "runs").glob("child-*"))]
        codes = {run: workspace.agent("replay", run, "--execute") for run in runs}

    kinds = {event["event_type"] for event in workspace.events()}
    assert codes == dict.fromkeys(runs, 0)
    assert len(runs) == 4
    assert {"hooks_ran", "child_run_finished", "undo_finished"} <= kinds
    assert "image" in json.dumps(model.received[0]["messages"])
    assert (len(model.received), (folder / "hook.log").read_text()) == (asked, hooked)
    assert not list(Path(folder).glob("notes.txt"))
