"""`agent runs gc` and `agent runs rebuild`."""

import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def runs(workspace: Workspace, model: ModelServer, capsys: Capture) -> list[str]:
    """Two that ended and one that waits."""
    model.follow(says("One."), says("Two."), calls("ask_user", question="Which?"))
    for task in ("first", "second", "third"):
        workspace.agent("run", task, "-q")
    capsys.readouterr()
    return sorted(workspace.run_ids())


def listed(workspace: Workspace, capsys: Capture) -> set[str]:
    capsys.readouterr()
    workspace.agent("runs", "list", "--json")
    return {row["task"] for row in json.loads(capsys.readouterr().out)}


def test_only_ended_runs_are_deleted_with_their_folders(runs: list[str], workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc", "--keep", "0", "--dry-run", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["deleted"]) == 2
    assert len(workspace.run_ids()) == 3

    assert workspace.agent("runs", "gc", "--keep", "0") == 0

    assert listed(workspace, capsys) == {"third"}
    assert len(workspace.run_ids()) == 1


def test_the_newest_are_kept(runs: list[str], workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc", "--keep", "1") == 0

    assert listed(workspace, capsys) == {"second", "third"}


def test_young_runs_stay(runs: list[str], workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc", "--older-than", "1") == 0

    assert listed(workspace, capsys) == {"first", "second", "third"}


def test_it_must_be_said_what_is_old(workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc") == 2

    assert "--keep" in capsys.readouterr().err


def test_a_log_is_written_anew_from_the_journal(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Greeted."))
    workspace.agent("run", "Greet", "-q")
    log = workspace.folder / "runs" / workspace.run_ids()[0] / "events.jsonl"
    before = [json.loads(line) for line in log.read_text().splitlines()]
    told = [event for event in before if event["entry"]]
    capsys.readouterr()

    assert workspace.agent("runs", "rebuild", "latest", "--json") == 0

    report = json.loads(capsys.readouterr().out)
    after = [json.loads(line) for line in log.read_text().splitlines()]
    assert (report["events"], report["lost"]) == (len(told), len(before) - len(told))
    assert [{**event, "seq": 0} for event in after] == [{**event, "seq": 0} for event in told]


def test_a_log_that_was_lost_or_damaged_comes_back(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Done."))
    workspace.agent("run", "Go", "-q")
    log = workspace.folder / "runs" / workspace.run_ids()[0] / "events.jsonl"
    for damage in (log.unlink, lambda: log.write_text("garbage\n" + "{}\n")):
        damage()

        assert workspace.agent("runs", "rebuild", "latest") == 0

        kinds = [json.loads(line)["event_type"] for line in log.read_text().splitlines()]
        assert (kinds[0], kinds[-1]) == ("run_started", "run_finished")
    assert "events were written from the journal" in capsys.readouterr().out
