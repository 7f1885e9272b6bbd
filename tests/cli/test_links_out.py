"""Links out of a folder: prompts, rules and code are not read through them."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cloned_folder import fill
from model_server import ModelServer, says
from run_workspace import SKILL, Workspace

pytestmark = pytest.mark.slow

SECRET = "the-words-of-a-file-at-home"
KEY = ".ssh/id_ed25519"
AT_HOME: Mapping[str, str] = {
    KEY: f"{SECRET}\n",
    "notes/own/SKILL.md": SKILL.format(name="own", description=SECRET, body=SECRET),
    "notes/agents/boss/AGENT.md": f"---\nname: boss\n---\n{SECRET}\n",
    "notes/tasks/chore/TASK.md": f"---\nname: chore\ndescription: {SECRET}\n---\n{SECRET}\n",
    "notes/system_prompt.md": SECRET,
    "notes/soul.json": json.dumps({"name": SECRET}),
}
SKILL_FOLDERS = (".agent/skills", ".nanobot/skills", ".agents/skills", ".claude/skills", "skills")
LINKS: Mapping[str, Mapping[str, str]] = {
    "a key as SKILL.md": {f"{folder}/helper/SKILL.md": KEY for folder in SKILL_FOLDERS},
    "another SKILL.md": {f"{folder}/own/SKILL.md": "notes/own/SKILL.md" for folder in SKILL_FOLDERS},
    "a skill": {f"{folder}/own": "notes/own" for folder in SKILL_FOLDERS},
    "a folder of skills": dict.fromkeys(SKILL_FOLDERS, "notes"),
    "agents and tasks": {
        ".agent/agents/boss/AGENT.md": "notes/agents/boss/AGENT.md",
        ".agent/tasks/chore/TASK.md": "notes/tasks/chore/TASK.md",
    },
    "folders of an agent and a task": {
        ".agent/agents/boss": "notes/agents/boss",
        ".agent/tasks/chore": "notes/tasks/chore",
    },
    "folders of agents and tasks": {".agent/agents": "notes/agents", ".agent/tasks": "notes/tasks"},
    "all definitions": {".agent": "notes"},
    "the system prompt": {"context/system_prompt.md": "notes/system_prompt.md"},
    "the soul": {"context/soul.json": "notes/soul.json"},
    "the profile": {"context/user_profile.json": "notes/soul.json"},
    "the context": {"context": "notes"},
    "settings": {"agent.yaml": KEY},
    "rules": {".agent/policy.yaml": KEY},
    "servers": {".agent/mcp.json": KEY},
    "access": {".agent/tool-access.json": KEY},
}
COMMANDS = (
    ("run", "help me with the words"),
    ("run", "--agent", "boss", "help me"),
    ("task", "run", "chore"),
    ("skills", "show", "own"),
    ("skills", "list"),
    ("validate",),
)


def fill_home() -> Path:
    home = Path(os.environ["HOME"])
    for name, text in AT_HOME.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def put_link(folder: Path, name: str, target: Path, *, is_relative: bool) -> None:
    link = folder / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(target, link.parent) if is_relative else target)


def show_everything(workspace: Workspace, model: ModelServer, capfd: pytest.CaptureFixture[str]) -> str:
    """Return the text sent to the model and shown to the user."""
    model.follow(says("Done."))
    for command in COMMANDS:
        workspace.agent(*command)
    told = capfd.readouterr()
    return json.dumps(model.received) + told.out + told.err


@pytest.mark.parametrize("kind", LINKS)
def test_link_in_a_clone_exposes_no_user_file_to_the_model_or_the_screen(
    clone: Workspace,
    model: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    home = fill_home()
    for name, target in LINKS[kind].items():
        put_link(clone.folder.with_name("upstream"), name, home / target, is_relative=True)
    cloned = fill(clone, {"README.md": "x"}, monkeypatch)

    assert SECRET not in show_everything(cloned, model, capfd)


@pytest.mark.parametrize("kind", ["a key as SKILL.md", "a skill", "agents and tasks", "the soul", "settings"])
def test_absolute_link_out_of_a_trusted_folder_is_not_followed(
    workspace: Workspace,
    model: ModelServer,
    capfd: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    home = fill_home()
    for name, target in LINKS[kind].items():
        (workspace.folder / name).unlink(missing_ok=True)
        put_link(workspace.folder, name, home / target, is_relative=False)

    assert SECRET not in show_everything(workspace, model, capfd)


@pytest.mark.parametrize("is_relative", [True, False])
def test_link_to_another_place_of_the_same_folder_is_followed(
    workspace: Workspace, model: ModelServer, is_relative: bool
) -> None:
    workspace.write("shared/own/SKILL.md", SKILL.format(name="own", description="Own the word.", body="Inside."))
    workspace.write("shared/prompt.md", "You are called Inside.")
    put_link(workspace.folder, ".claude/skills", workspace.folder / "shared", is_relative=is_relative)
    put_link(
        workspace.folder, "context/system_prompt.md", workspace.folder / "shared/prompt.md", is_relative=is_relative
    )
    model.follow(says("Done."))

    assert workspace.agent("run", "own the word") == 0

    sent = json.dumps(model.received)
    assert "Own the word." in sent
    assert "You are called Inside." in sent


def test_pipe_instead_of_a_definition_is_rejected_without_blocking(
    workspace: Workspace, model: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    (workspace.folder / ".agent/skills/helper").mkdir(parents=True)
    os.mkfifo(workspace.folder / ".agent/skills/helper/SKILL.md")
    os.mkfifo(workspace.folder / ".agent/policy.yaml")
    model.follow(says("Done."))

    assert workspace.agent("run", "hello") == 2

    assert "is not a regular file" in capfd.readouterr().err


WATCHED = """
import os, sys
seen = open(sys.argv[1], "w")
def note(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        path, flags = os.fsdecode(args[0]), args[2] if isinstance(args[2], int) else 0
        if not path.startswith("/") and flags & os.O_NOFOLLOW:
            return  # one name below an open folder, where no link is followed
        seen.write(os.path.realpath(path) + "\\n")
sys.addaudithook(note)
from metier.cli.main import run
code = run(sys.argv[2:])
seen.flush()
os._exit(code)
"""


@pytest.mark.parametrize("command", COMMANDS[:3])
def test_a_run_opens_only_its_own_files_in_the_home_folder(
    workspace: Workspace, model: ModelServer, tmp_path: Path, command: tuple[str, ...]
) -> None:
    home = fill_home()
    for kind in ("a key as SKILL.md", "a skill", "agents and tasks"):
        for name, target in LINKS[kind].items():
            put_link(workspace.folder, name, home / target, is_relative=True)
    model.follow(says("Done."))
    seen = tmp_path / "seen.txt"

    words = [sys.executable, "-c", WATCHED, str(seen), *command]
    subprocess.run(words, cwd=workspace.folder, timeout=60, check=False, capture_output=True)

    opened = [Path(line) for line in seen.read_text().splitlines()]
    assert any(path.is_relative_to(workspace.folder) for path in opened)
    own = (home / ".agent", home / ".config/agent", home / ".cache/agent")
    of_the_person = [path for path in opened if path.is_relative_to(home)]
    assert [path for path in of_the_person if not any(path.is_relative_to(folder) for folder in own)] == []
