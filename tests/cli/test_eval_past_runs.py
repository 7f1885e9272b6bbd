"""Trigger evals, backtests of changes on past runs, and cases created from them, all without a model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

import metier

type Capture = pytest.CaptureFixture[str]
type Ask = Callable[..., tuple[int, Any]]

GREET_ONCE = calls("script_run", skill_name="greeter", script_name="greet")
BUNDLED = Path(metier.__file__).parent / "bundled"


@pytest.fixture
def ask(workspace: Workspace, capsys: Capture) -> Ask:
    def call(*args: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = workspace.agent("eval", *args, "--json")
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def run_id(workspace: Workspace, model: ModelServer, capsys: Capture) -> str:
    workspace.write("in.txt", "old\n")
    workspace.write("notes.md", "# Notes\n")
    model.follow(
        calls("Read", path="notes.md"), GREET_ONCE, calls("Write", path="in.txt", content="new\n"), says("Greeted.")
    )
    assert workspace.agent("run", "Greet Ada kindly", "-q") == 0
    capsys.readouterr()
    return workspace.run_ids()[0]


def test_every_bundled_skill_is_chosen_for_its_own_requests(ask: Ask) -> None:
    names = sorted(path.parent.parent.name for path in BUNDLED.glob("*/evals/trigger-eval.json"))

    code, results = ask(*(f"skill:{name}" for name in names), "--triggers")

    assert (code, len(results)) == (0, 9)
    assert sum(len(result["rows"]) for result in results) >= 50


def test_a_missed_query_names_the_winner_and_the_route_command_agrees(
    workspace: Workspace, ask: Ask, capsys: Capture
) -> None:
    folder = workspace.folder / "skills/greeter/evals"
    folder.mkdir()
    wanted = [
        {"query": "take inventory of this workspace", "should_trigger": True},
        {"query": "welcome the visitors warmly", "should_trigger": True},
        {"query": "welcome a guest", "should_trigger": True},
        {"query": "infer a JSON schema from people.csv", "should_trigger": False},
    ]
    (folder / "triggers.json").write_text(json.dumps(wanted))

    code, results = ask("greeter", "--triggers", "--suggest")

    rows = results[0]["rows"]
    assert (code, [row["status"] for row in rows]) == (1, ["failed", "failed", "failed", "passed"])
    assert "workspace-inventory wins" in rows[0]["grades"][0]["evidence"]
    assert "welcome" in results[0]["suggested_words"]
    assert workspace.agent("skills", "route", str(wanted[0]["query"]), "--all", "--json") == 0
    first = json.loads(capsys.readouterr().out)["candidates"][0]
    assert f"{first['skill_name']} wins with {first['score']:.0f}" in rows[0]["grades"][0]["evidence"]

    skill = workspace.folder / "skills/greeter/SKILL.md"
    words = " ".join(results[0]["suggested_words"])
    skill.write_text(skill.read_text().replace("with a script.", f"with a script. {words}"))
    _, better = ask("greeter", "--triggers")
    assert sum(row["status"] == "passed" for row in better[0]["rows"]) > 1


def test_live_mode_lets_the_model_choose(workspace: Workspace, model: ModelServer, ask: Ask) -> None:
    folder = workspace.folder / "skills/greeter/evals"
    folder.mkdir()
    wanted = [{"query": "greet Ada", "should_trigger": True}, {"query": "what is 2+2?", "should_trigger": False}]
    (folder / "triggers.json").write_text(json.dumps(wanted))
    model.follow(calls("use_skill", skill="greeter", reason="greeting"), says("Hello"), says("4"))

    code, results = ask("greeter", "--triggers", "--live", "--jobs", "1")

    assert (code, [row["status"] for row in results[0]["rows"]]) == (0, ["passed", "passed"])


def test_a_change_without_effect_leaves_past_runs_unchanged(
    run_id: str, workspace: Workspace, model: ModelServer, ask: Ask
) -> None:
    asked = len(model.received)

    code, (found,) = ask("backtest", "--change", "skill=skills/greeter")

    assert (code, found["run_id"], found["differs"]) == (0, run_id, False)
    assert found["exact"] == found["entries"]
    assert len(model.received) == asked
    assert workspace.folder.is_dir()


def test_a_changed_prompt_is_followed_to_the_end_and_its_token_cost_is_reported(
    run_id: str, workspace: Workspace, ask: Ask
) -> None:
    workspace.write("new_prompt.md", "You are a parrot. " * 50)

    code, (found,) = ask("backtest", "--runs", run_id, "--change", "prompt=new_prompt.md")

    assert (code, found["differs"], found["stops"]) == (1, True, "")
    assert found["exact"] < found["carried"] == found["entries"]
    assert found["turns_with_other_prompt"] == [1, 2, 3, 4]
    before, after = found["prompt_tokens"]
    assert after > before
    assert "instructions, skill descriptions" in found["first_difference"]


def test_effects_of_changed_rules_descriptions_and_models_are_reported(
    run_id: str, workspace: Workspace, ask: Ask, capsys: Capture
) -> None:
    workspace.write("strict.yaml", "tool_approvals:\n  rules:\n    - {tool: Write, allow: false}\n")
    shutil.copytree(workspace.folder / "skills/greeter", workspace.folder / "changed/greeter")
    skill = workspace.folder / "changed/greeter/SKILL.md"
    skill.write_text(skill.read_text().replace("Greet somebody kindly", "Bake bread"))

    _, (ruled,) = ask("backtest", "--runs", run_id, "--change", "policy=strict.yaml")
    _, (described,) = ask("backtest", "--runs", run_id, "--change", "skill=changed/greeter")
    _, (routed,) = ask("backtest", "--runs", run_id, "--change", "router.top_k=1", "--change", "router.min_score=99")
    _, (priced,) = ask("backtest", "--runs", run_id, "--change", "model=anthropic/claude-opus-5-5")
    _, (priced_as_before,) = ask("backtest", "--runs", run_id, "--change", "model=anthropic:claude-opus-5-5")

    assert [(change["tool"], change["was"], change["now"]) for change in ruled["verdicts"]] == [
        ("Write", "allow", "deny")
    ]
    assert ruled["stops"]
    assert described["routing"]["before"] != described["routing"]["after"]
    assert routed["entries"] > 0
    assert priced["cost_usd"] == priced_as_before["cost_usd"]
    assert (priced["cost_usd"][0], priced["cost_usd"][1] is None) == (None, False)
    assert workspace.agent("eval", "backtest", "--change", "policy=strict.yaml") == 1
    assert "verdict: Write allow -> deny" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--change", "colour=red"], "Invalid change 'colour=red'"),
        (["--change", "skill=nowhere"], "cannot be loaded"),
        (["--change", "policy=nowhere.yaml"], "cannot be read"),
        (["--change", "router.top_k=many"], "must be a number"),
        (["--change", "model=m", "--runs", "colour=red"], "Unknown filter 'colour=red'"),
    ],
)
def test_an_unsupported_change_is_rejected(
    *, words: list[str], told: str, workspace: Workspace, capsys: Capture
) -> None:
    assert workspace.agent("eval", "backtest", *words) == 2
    assert told in capsys.readouterr().err


def test_a_past_run_becomes_a_case_with_its_files_and_its_recording(
    run_id: str, workspace: Workspace, model: ModelServer, ask: Ask
) -> None:
    asked = len(model.received)
    code, made = ask("capture", run_id, "--id", "greeting", "--for", "skill:greeter")

    folder = workspace.folder / ".agent/evals"
    assert (code, made["file"], made["as_now"]) == (0, ".agent/evals/greeting.yaml", ["notes.md"])
    assert (folder / "files/greeting/in.txt").read_text() == "old\n"
    assert (folder / "files/greeting/notes.md").read_text() == "# Notes\n"
    again, results = ask("greeter")
    row = results[0]["rows"][0]
    assert (again, row["status"], len(model.received)) == (0, "passed", asked), row
    assert {grade["check"] for grade in row["grades"]} >= {"tool_called", "file_exists", "exit_code"}
    assert workspace.agent("eval", "capture", run_id, "--id", "greeting", "--for", "skill:greeter") == 2
