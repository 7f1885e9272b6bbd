"""The store key is outside the workspace, and no tool can read it."""

import os
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model


@pytest.mark.parametrize(
    "call",
    [
        ("Read", {"file_path": "{key}"}),
        ("Read", {"file_path": "link"}),
        ("Grep", {"pattern": ".", "path": "{folder}"}),
        ("Bash", {"command": "cat {key}"}),
        ("Bash", {"command": "cat link"}),
    ],
)
def test_store_key_is_outside_the_workspace_and_hidden_from_the_model(
    workspace: Workspace, model: ModelServer, call: tuple[str, dict[str, str]]
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"}, sandbox={"use": "off"})
    model.follow(says("Hello."))
    assert workspace.agent("run", "hello", "-q") == 0
    key = Path(os.environ["HOME"]) / ".agent/keys/store.key"
    (workspace.folder / "link").symlink_to(key)
    tool, arguments = call
    filled = {name: text.format(key=key, folder=key.parent) for name, text in arguments.items()}
    model.follow(calls(tool, **filled), says("Done."))

    workspace.agent("run", "look", "-q")

    assert key.stat().st_mode & 0o777 == 0o600
    secret = key.read_text().strip()
    assert secret not in str(model.received)
    assert list(workspace.folder.rglob("*.key")) == []
    texts = [path.read_bytes() for path in workspace.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not any(secret.encode() in text for text in texts)


@pytest.mark.parametrize("tool", ["Read", "Grep", "Glob"])
def test_store_key_is_protected_even_if_the_home_folder_is_the_workspace(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    home = Path(os.environ["HOME"])
    own = Workspace(home)
    own.configure(model=use_model(model), runtime={**QUICK, "profile": "permissive"}, sandbox={"use": "off"})
    monkeypatch.chdir(home)
    model.follow(says("Hello."))
    assert own.agent("run", "hello", "-q") == 0
    arguments = (
        {"file_path": ".agent/keys/store.key"} if tool == "Read" else {"pattern": "**/*" if tool == "Glob" else "."}
    )
    model.follow(calls(tool, **arguments), says("Done."))

    own.agent("run", "look", "-q")

    assert (home / ".agent/keys/store.key").read_text().strip() not in str(model.received)
