"""`logging.shard: day`: run folders under the day of their start; folders of both forms are found."""

import json
import re
from pathlib import Path

import pytest
from model_server import ModelServer, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


def shard(workspace: Workspace, value: str) -> None:
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    workspace.configure(**{**settings, "logging": {"shard": value}})


def show(workspace: Workspace, name: str, capsys: Capture) -> dict[str, str]:
    capsys.readouterr()
    assert workspace.agent("runs", "show", name, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_runs_of_a_day_share_a_folder_and_older_runs_are_not_moved(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("One."), says("Two."))
    workspace.agent("run", "first", "-q")
    shard(workspace, "day")
    workspace.agent("run", "second", "-q")

    newest = show(workspace, "latest", capsys)
    (oldest,) = [row for row in _list(workspace, capsys) if row["task"] == "first"]
    shown = show(workspace, oldest["run_id"], capsys)
    year, month, day = re.findall(r"^(\d{4})(\d\d)(\d\d)", newest["run_id"])[0]
    assert Path(newest["folder"]) == workspace.folder / "runs" / year / month / day / newest["run_id"]
    assert (Path(newest["folder"]) / "events.jsonl").is_file()
    assert Path(shown["folder"]) == workspace.folder / "runs" / oldest["run_id"]
    assert workspace.agent("replay", newest["run_id"]) == 0
    assert workspace.agent("replay", oldest["run_id"]) == 0

    shard(workspace, "off")
    assert show(workspace, "latest", capsys)["folder"] == newest["folder"]


def test_gc_removes_folders_of_both_layouts_and_empty_days(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("One."), says("Two."))
    workspace.agent("run", "first", "-q")
    shard(workspace, "day")
    workspace.agent("run", "second", "-q")

    assert workspace.agent("runs", "gc", "--keep", "0") == 0

    assert [path for path in (workspace.folder / "runs").iterdir() if path.is_dir()] == []


def _list(workspace: Workspace, capsys: Capture) -> list[dict[str, str]]:
    capsys.readouterr()
    assert workspace.agent("runs", "list", "--json") == 0
    return json.loads(capsys.readouterr().out)
