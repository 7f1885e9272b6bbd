"""Evals copy files into a case folder that a model reads: links must not expose user files."""

import json
from pathlib import Path

import pytest
from model_server import ModelServer, says
from run_workspace import Workspace

SECRET = "the words of another folder"
AGENT_FILE = "---\nname: poet\ndescription: Writes.\n---\n\nYou write verse.\n"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "soul.json").write_text(json.dumps({"x": SECRET}))
    (folder / "policy.yaml").write_text(f"rules: []  # {SECRET}\n")
    return folder


def put_cases(workspace: Workspace, **case: object) -> None:
    workspace.write(".agent/agents/poet/AGENT.md", AGENT_FILE)
    cases = [{"id": "one", "prompt": "On rain", "checks": [{"check": "contains", "text": "rain"}], **case}]
    workspace.write(".agent/evals/poet.yaml", json.dumps({"agent": "poet", "cases": cases}))


def find_leaks(workspace: Workspace, model: ModelServer) -> list[str]:
    """Return the places of the words: case folders or requests to the model."""
    files = [file for file in (workspace.folder / "runs").rglob("*") if file.is_file() and not file.is_symlink()]
    found = [file.name for file in files if SECRET.encode() in file.read_bytes()]
    return found + ["request" for body in model.received if SECRET in json.dumps(body)]


@pytest.mark.parametrize("kind", ["project file", "folder", "definition", "skills"])
def test_a_definition_that_links_outside_the_workspace_is_not_copied(
    workspace: Workspace, model: ModelServer, secret: Path, kind: str
) -> None:
    model.follow(says("Only rain."))
    put_cases(workspace)
    match kind:
        case "project file":
            (workspace.folder / "AGENTS.md").symlink_to(secret / "soul.json")
        case "folder":
            (workspace.folder / "context").symlink_to(secret)
        case "definition":
            (workspace.folder / ".agent/agents/notes").symlink_to(secret)
        case _:
            (workspace.folder / "skills").rename(workspace.folder / "other")
            (workspace.folder / "skills").symlink_to(secret)

    workspace.agent("eval", "agent:poet", "--live")

    assert find_leaks(workspace, model) == []


@pytest.mark.parametrize("case", [{"files": ["leak.txt"]}, {"files": ["leaks"]}, {"policy": "leak.yaml"}])
def test_a_case_file_that_links_outside_the_workspace_is_not_copied(
    workspace: Workspace, model: ModelServer, secret: Path, case: dict[str, object]
) -> None:
    model.follow(says("Only rain."))
    put_cases(workspace, **case)
    evals = workspace.folder / ".agent/evals"
    (evals / "leak.txt").symlink_to(secret / "soul.json")
    (evals / "leak.yaml").symlink_to(secret / "policy.yaml")
    (evals / "leaks").symlink_to(secret)

    workspace.agent("eval", "agent:poet", "--live")

    assert find_leaks(workspace, model) == []


def test_a_policy_of_a_case_is_stored_next_to_it(workspace: Workspace, model: ModelServer, secret: Path) -> None:
    model.follow(says("Only rain."))
    put_cases(workspace, policy="../../../private/policy.yaml")

    assert workspace.agent("eval", "agent:poet", "--live") != 0

    assert find_leaks(workspace, model) == []


def test_files_of_a_case_and_links_within_the_workspace_are_copied(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Only rain."))
    put_cases(workspace, files=["given.txt"], policy="rules.txt")
    workspace.write(".agent/evals/given.txt", "given words")
    workspace.write(".agent/evals/rules.txt", "rules: []\n")
    workspace.write("notes/house.md", "house words")
    (workspace.folder / "AGENTS.md").symlink_to("notes/house.md")

    assert workspace.agent("eval", "agent:poet", "--live") == 0

    (case,) = (workspace.folder / "runs").rglob("bench/*/workspace")
    assert [(case / name).read_text() for name in ("given.txt", "AGENTS.md")] == ["given words", "house words"]
