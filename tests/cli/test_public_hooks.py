"""Published third-party hook scripts, unchanged. They are not part of this repository.

`HOOKS_DATA` is their folder; the default is `shared/data/hooks` in a parent folder of the repository. Without them the
tests are skipped; `test_hooks` has similar scripts.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace, use_model

ROOT = Path(__file__).resolve().parents[2]


def get_script(name: str) -> Path:
    named = os.environ.get("HOOKS_DATA")
    folders = [Path(named)] if named else [folder / "shared/data/hooks" for folder in ROOT.parents]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        pytest.skip(f"{name} is not on this machine")
    return found


@pytest.mark.parametrize(
    ("script", "program", "denied", "reason", "made"),
    [
        (
            "bash_command_validator_example.py",
            "python3",
            calls("Bash", command="grep -r needle ."),
            "Use 'rg'",
            calls("Bash", command="touch made"),
        ),
        (
            "validate-write.sh",
            "bash",
            calls("Write", path="my-secret.txt", content="x"),
            "potentially sensitive file",
            calls("Write", path="made", content="x"),
        ),
        (
            "pre_tool_use.py",
            "python3",
            calls("Bash", command="rm -rf /nowhere/at/all"),
            "Dangerous rm command",
            calls("Write", path="made", content="x"),
        ),
    ],
    ids=["validator of commands", "validator of writes", "guard with a log"],
)
def test_public_hook_runs_unchanged(
    workspace: Workspace, model: ModelServer, script: str, program: str, denied: Reply, reason: str, made: Reply
) -> None:
    source = get_script(script)
    if program == "bash" and shutil.which("jq") is None:
        pytest.skip("jq is not on this machine")
    workspace.write(f".claude/hooks/{script}", source.read_text("utf-8"))
    command = {"type": "command", "command": f'{program} "$CLAUDE_PROJECT_DIR"/.claude/hooks/{script}'}
    workspace.configure(model=use_model(model), hooks={"PreToolUse": [{"matcher": "*", "hooks": [command]}]})
    model.follow(denied, made, says("Done"))

    assert workspace.agent("run", "-q", "Work") == 0

    assert reason in _list_results(model.received[-1]["messages"])[0]
    assert (workspace.folder / "made").exists()
    assert not (workspace.folder / "my-secret.txt").exists()


def _list_results(messages: Sequence[dict[str, str]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]
