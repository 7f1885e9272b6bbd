"""`agent eval --live`: with and without the skill, against another version, within a budget, and after a kill."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, override

import pytest
from model_server import ModelServer, Reply, calls, fails, says
from run_workspace import QUICK, Workspace, use_model

type Capture = pytest.CaptureFixture[str]
type Evaluate = Callable[..., tuple[int, Any]]

CASES = {
    "evals": [
        {"id": "hello", "prompt": "Greet Ada", "assertions": [{"check": "contains", "text": "Hello"}, "It is polite"]}
    ]
}
WRITE = calls("Write", path="out.txt", content="done\n")


@pytest.fixture
def skill(workspace: Workspace) -> Path:
    folder = workspace.folder / "skills/greeter"
    (folder / "evals").mkdir()
    (folder / "evals/evals.json").write_text(json.dumps(CASES))
    return folder


@pytest.fixture
def evaluate(workspace: Workspace, capsys: Capture) -> Evaluate:
    def call(*args: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = workspace.agent("eval", *args, "--json")
        return code, json.loads(capsys.readouterr().out)[0]

    return call


def test_each_case_is_compared_with_and_without_the_skill(skill: Path, model: ModelServer, evaluate: Evaluate) -> None:
    model.follow(*[says("Hello, Ada!"), says("No.")] * 3, says("Hello, Ada!"))

    code, result = evaluate("greeter", "--live", "--repeat", "3", "--jobs", "1")

    assert skill.is_dir()
    assert (code, result["variants"], len(result["rows"])) == (0, ["with_skill", "without_skill"], 6)
    rates = [variant["rate"]["passed"] for variant in result["numbers"]["variants"]]
    assert rates == [3, 0]
    difference = result["numbers"]["difference"]
    assert (difference["mean"], difference["pairs"], difference["better"]) == (1.0, 3, 3)
    prompts = [json.dumps(body["messages"]) for body in model.received]
    assert ["greeter" in prompt for prompt in prompts] == [True, False] * 3


def test_a_judge_evaluates_sentences_once_and_its_verdict_is_recorded(
    skill: Path, model: ModelServer, evaluate: Evaluate
) -> None:
    verdict = json.dumps({"verdicts": [{"number": 1, "passed": False, "evidence": "It says Hello and nothing else"}]})
    model.follow(says("Hello, Ada!"), calls("finish", result=verdict), says(verdict))

    code, result = evaluate("greeter", "--record", "--judge", "judge-model")
    asked = len(model.received)
    again, replayed = evaluate("greeter")

    assert skill.is_dir()
    assert (code, again, len(model.received)) == (1, 1, asked)
    for found in (result, replayed):
        grade = found["rows"][0]["grades"][1]
        assert (grade["verdict"], grade["evidence"]) == ("failed", "It says Hello and nothing else")
    judging = model.received[1]
    assert judging["model"] == "judge-model"
    assert "It is polite" in json.dumps(judging["messages"])


def test_a_skill_is_compared_with_its_last_commit(
    skill: Path, workspace: Workspace, model: ModelServer, evaluate: Evaluate
) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *words], cwd=workspace.folder, check=True, capture_output=True, timeout=60)

    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "-m", "Begin")
    file = skill / "SKILL.md"
    file.write_text(file.read_text().replace("Greet somebody kindly", "Shout at people"))
    model.follow(says("Hello"))

    code, result = evaluate("greeter", "--live", "--against", "HEAD", "--jobs", "1")

    assert code == 0
    assert [name.partition(":")[0] for name in result["variants"]] == ["now", "commit"]
    prompts = [json.dumps(body["messages"]) for body in model.received]
    assert ["Shout" in prompt for prompt in prompts] == [True, False]
    assert ["kindly" in prompt for prompt in prompts] == [False, True]


def test_another_model_can_be_selected_by_name(skill: Path, model: ModelServer, evaluate: Evaluate) -> None:
    model.follow(says("Hello"))

    code, result = evaluate("greeter", "--live", "--against", "model:other", "--jobs", "1")

    assert skill.is_dir()
    assert (code, result["variants"]) == (0, ["now", "model:other"])
    assert [body["model"] for body in model.received] == ["m", "other"]


class Halting(list[Reply]):
    """A script that silences the server after a number of replies."""

    def __init__(self, replies: list[Reply], model: ModelServer, *, after: int) -> None:
        super().__init__(replies)
        self._model = model
        self._left = after

    @override
    def pop(self, index: int = -1) -> Reply:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._left -= 1
        if self._left == 0:
            self._model.silent.set()
            self._model.asked.clear()
        return super().pop(index)


def test_a_killed_live_eval_continues_without_repeated_requests(
    skill: Path, workspace: Workspace, model: ModelServer, evaluate: Evaluate
) -> None:
    model.script = Halting([WRITE, says("Hello")] * 4 + [says("Hello")], model, after=3)
    process = workspace.start("eval", "greeter", "--live", "--repeat", "2", "--jobs", "1")
    # Three replies were given and recorded; the fourth request is on its way when the process is killed.
    assert model.silent.wait(60)
    assert model.asked.wait(60)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    model.silent.clear()
    model.script = [says("Hello"), *[WRITE, says("Hello")] * 2, says("Hello")]

    code, result = evaluate("--resume", "latest")

    assert skill.is_dir()
    assert (code, len(result["rows"]), {row["status"] for row in result["rows"]}) == (0, 4, {"passed"})
    # Four runs of two requests each, and the one that was never answered.
    assert len(model.received) == 9
    again, same = evaluate("--resume", "latest")
    assert (again, len(model.received)) == (0, 9)
    assert [row["run_id"] for row in same["rows"]] == [row["run_id"] for row in result["rows"]]


def test_an_approval_is_answered_as_configured_in_the_case(
    skill: Path, workspace: Workspace, model: ModelServer, evaluate: Evaluate
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    written = [{"check": "file_exists", "path": "out.txt"}]
    cases = [
        {"id": "yes", "prompt": "Write", "assertions": written},
        {"id": "no", "prompt": "Write", "approvals": "deny", "assertions": [{**written[0], "negate": True}]},
        {"id": "wait", "prompt": "Write", "approvals": "wait", "assertions": [{"check": "exit_code", "equals": 3}]},
    ]
    (skill / "evals/evals.json").write_text(json.dumps(cases))
    model.follow(WRITE, says("Done"), WRITE, says("Not done"), WRITE, says("Never said"))

    code, result = evaluate("greeter", "--record", "--jobs", "1")

    assert (code, [row["status"] for row in result["rows"]]) == (0, ["passed"] * 3), result["rows"]


def test_an_exhausted_budget_ends_the_eval_with_exit_code_6_and_a_higher_one_continues(
    skill: Path, workspace: Workspace, model: ModelServer, evaluate: Evaluate
) -> None:
    workspace.write("models.yaml", "openai:\n  m: {prices: {input: 1000, output: 1000, as_of: 2026-11-01}}\n")
    workspace.configure(model={**use_model(model), "facts_file": "models.yaml"}, runtime=QUICK)
    model.follow(says("Hello"))
    assert skill.is_dir()

    code, result = evaluate("greeter", "--live", "--repeat", "10", "--jobs", "2", "--max-cost-usd", "1")

    statuses = [row["status"] for row in result["rows"]]
    assert (code, result["budget_used_up"]) == (6, True)
    assert 0 < statuses.count("passed") < 20
    assert "not_run" in statuses
    assert result["cost_usd"] <= 1.5
    again, whole = evaluate("--resume", "latest", "--max-cost-usd", "1000")
    assert (again, {row["status"] for row in whole["rows"]}) == (0, {"passed"})
    # Twenty runs of one request each; what was paid for before is not paid for again.
    assert len(model.received) == 20


def test_cost_of_every_attempt_counts_toward_the_budget(
    skill: Path, workspace: Workspace, model: ModelServer, evaluate: Evaluate
) -> None:
    # A request has 110 tokens, so it costs 0.11 USD.
    workspace.write("models.yaml", "openai:\n  m: {prices: {input: 1000, output: 1000, as_of: 2026-11-01}}\n")
    workspace.configure(model={**use_model(model), "facts_file": "models.yaml"}, runtime=QUICK)
    model.follow(WRITE, fails(400), WRITE, fails(400), WRITE, WRITE, says("Hello"))
    assert skill.is_dir()

    first, _ = evaluate("greeter", "--record", "--max-cost-usd", "0.275")
    second, _ = evaluate("--resume", "latest")
    third, result = evaluate("--resume", "latest")

    assert (first, second) == (1, 1)
    assert (third, result["budget_used_up"]) == (6, True)
    assert result["rows"][0]["status"] == "not_run"


def test_a_budget_with_unknown_prices_is_rejected_before_the_first_request(
    skill: Path, model: ModelServer, evaluate: Evaluate
) -> None:
    model.follow(says("Hello"))

    code, result = evaluate("greeter", "--live", "--max-cost-usd", "1")

    assert skill.is_dir()
    assert (code, model.received) == (1, [])
    assert {row["status"] for row in result["rows"]} == {"error"}
    assert "The price of model 'm' is not known" in result["rows"][0]["reasons"][0]
