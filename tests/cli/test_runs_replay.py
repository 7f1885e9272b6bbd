"""`agent replay --execute`, `--points` and `--fork-at`."""

import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

GREET_ONCE = calls("script_run", skill_name="greeter", script_name="greet")


@pytest.fixture
def run_id(workspace: Workspace, model: ModelServer, capsys: Capture) -> str:
    model.follow(GREET_ONCE, says("Greeted."))
    assert workspace.agent("run", "Greet", "-q") == 0
    capsys.readouterr()
    return workspace.run_ids()[0]


def test_a_run_replays_equal_without_model_calls(
    *, run_id: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    asked = len(model.received)

    assert workspace.agent("replay", run_id, "--execute") == 0
    assert capsys.readouterr().out.startswith("Replay matches: ")
    assert workspace.agent("replay", "latest", "--execute", "--json") == 0
    report = json.loads(capsys.readouterr().out)

    assert (report["equal"], report["divergence"], report["changed_since"]) == (True, None, [])
    assert report["compared"] == report["entries"]
    assert len(model.received) == asked


def test_changed_files_are_named_and_cause_a_difference_only_if_used(
    run_id: str, workspace: Workspace, capsys: Capture
) -> None:
    (workspace.folder / "context").mkdir()
    (workspace.folder / "context" / "system_prompt.md").write_text("You are a parrot.")
    skill = next(workspace.folder.rglob("greeter/SKILL.md"))
    skill.write_text(skill.read_text() + "\nMore words.\n")

    assert workspace.agent("replay", run_id, "--execute") == 0
    assert "skill:greeter" in capsys.readouterr().err

    assert workspace.agent("replay", run_id, "--execute", "--current") == 1
    out = capsys.readouterr().out
    assert "The request of turn 1 is not the one that was sent" in out
    assert "request_hash\n    recorded  " in out
    assert workspace.agent("replay", run_id, "--execute", "--current", "--json") == 1
    divergence = json.loads(capsys.readouterr().out)["divergence"]
    assert divergence["recorded"]["kind"] == divergence["replayed"]["kind"] == "model_call_started"
    assert "request_hash" in [found["path"] for found in divergence["differences"]]


def test_a_fork_continues_live_and_lists_the_changes(
    *, run_id: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    assert workspace.agent("replay", run_id, "--points", "--json") == 0
    points = json.loads(capsys.readouterr().out)
    after_greeting = next(point for point in points if point["kind"] == "progress_verified")
    model.follow(says("Greeted by another."))

    code = workspace.agent("replay", run_id, "--fork-at", str(after_greeting["number"]), "--model", "m2")

    shown = capsys.readouterr()
    assert (code, shown.out) == (0, "Greeted by another.\n")
    assert "changed: model" in shown.err
    fork = next(found for found in workspace.run_ids() if found != run_id)
    assert workspace.agent("replay", fork, "--execute") == 0
    assert workspace.agent("runs", "diff", run_id, fork) == 1


def test_skills_enabled_by_the_environment_are_not_reported_as_changed(
    *, workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", "all")
    model.follow(says("Done."))
    workspace.agent("run", "Go", "-q")
    monkeypatch.delenv("AGENT_SKILLS")
    capsys.readouterr()

    assert workspace.agent("replay", "latest", "--execute") == 0

    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [("--provider", "offline"), ("--provider", "offline", "--dry-run"), ("--dry-run",)])
def test_runs_without_a_model_replay_equal(options: tuple[str, ...], workspace: Workspace, capsys: Capture) -> None:
    workspace.agent("run", "Greet somebody kindly", "-q", *options)
    capsys.readouterr()

    assert workspace.agent("replay", "latest", "--execute") == 0

    assert capsys.readouterr().out.startswith("Replay matches: ")


def test_fork_points_are_listed_as_text(run_id: str, workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("replay", run_id, "--points") == 0

    first = capsys.readouterr().out.splitlines()[0].split()
    assert first == ["1", "turn", "0", "after", "run_started", "next", "LOAD_SKILL_CATALOG"]


def test_a_fork_at_an_entry_that_does_not_exist_names_the_last_point(
    run_id: str, workspace: Workspace, capsys: Capture
) -> None:
    workspace.agent("fork", run_id)
    last = capsys.readouterr().out.splitlines()[-1].split()[0]

    assert workspace.agent("fork", run_id, "--at", "999") == 2

    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: The run cannot be forked at entry 999: it has only ")
    assert hint == f"hint: Fork at {last}; `agent fork {run_id}` lists every point"


@pytest.mark.parametrize(
    "options",
    [("--execute", "--points"), ("--current",), ("--model", "m2"), ("--fork-at", "999"), ("--fork-at", "0")],
)
def test_meaningless_options_are_rejected(
    *, options: tuple[str, ...], run_id: str, workspace: Workspace, capsys: Capture
) -> None:
    assert workspace.agent("replay", run_id, *options) == 2

    assert capsys.readouterr().err


def test_a_fork_asks_like_its_parent_if_the_settings_ask_less(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    touch = calls("Bash", command="touch made")
    model.follow(touch, says("Not done."), touch)
    assert workspace.agent("run", "Make it", "-q", "--profile", "guarded") == 3
    assert workspace.agent("approvals", "list", "--json") == 0
    (approval,) = json.loads(capsys.readouterr().out)
    assert workspace.agent("approvals", "deny", approval["approval_id"]) == 0
    assert workspace.agent("resume", "latest", "-q") == 0
    capsys.readouterr()
    assert workspace.agent("fork", "latest", "--json") == 0
    points = json.loads(capsys.readouterr().out)
    before = max(point["number"] for point in points if point["turn"] == 0)

    code = workspace.agent("fork", "latest", "--at", str(before))

    assert code == 3
    assert not (workspace.folder / "made").exists()
