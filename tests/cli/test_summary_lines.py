"""The totals of a run are consistent in its closing line, its record and the list of runs."""

import json
import signal

import pytest
from model_server import ModelServer, calls, fails, says
from run_workspace import QUICK, Workspace, use_model

type Capture = pytest.CaptureFixture[str]

PRICES = 'openai:\n  "m*":\n    prices: {input: 1000, output: 10000, as_of: 2026-01-01}\n'
AGENT = "---\nname: {name}\ndescription: Works.\nmodel: {model}\n---\n\nWork.\n"


@pytest.fixture
def priced(workspace: Workspace, model: ModelServer) -> Workspace:
    """A price: 100 input tokens and 10 output tokens cost 0.20 USD."""
    workspace.write("facts.yaml", PRICES)
    workspace.configure(model={**use_model(model), "facts_file": "facts.yaml"}, runtime=QUICK)
    return workspace


def closing(capsys: Capture) -> str:
    return next(line for line in capsys.readouterr().err.splitlines() if " · run " in line)


def list_rows(workspace: Workspace, capsys: Capture) -> list[dict[str, object]]:
    capsys.readouterr()
    assert workspace.agent("runs", "list", "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_closing_line_counts_a_child_run_once(priced: Workspace, model: ModelServer, capsys: Capture) -> None:
    priced.write(".agent/agents/helper/AGENT.md", AGENT.format(name="helper", model="m"))
    model.follow(calls("delegate", agent="helper", task="Help"), says("Helped."), says("Done."))

    assert priced.agent("run", "Delegate it") == 0

    line = closing(capsys)
    assert "3 turns · 300 in · 30 out · $0.600" in line, line


def test_a_cost_has_the_same_format_everywhere(priced: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Done."), says("Done."))
    assert priced.agent("run", "Work") == 0
    assert "$0.200" in closing(capsys)
    assert priced.agent("run", "Work", "--ci") == 0
    capsys.readouterr()
    (summary,) = priced.folder.glob("runs/*/summary.md")
    assert "$0.200" in summary.read_text(encoding="utf-8")

    for command, cost in ((("runs", "list"), "$0.200"), (("runs", "show", "latest"), "$0.200"), (("cost",), "$0.400")):
        assert priced.agent(*command) == 0
        shown = capsys.readouterr().out
        assert cost in shown, command
        assert "USD" not in shown


def test_closing_line_after_a_resume_counts_the_whole_run(
    priced: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("ask_user", question="Which?"), calls("ask_user", question="Why?"), says("Done."))
    assert priced.agent("run", "Ask me") == 4
    capsys.readouterr()

    assert priced.agent("resume", "latest") == 4
    assert "waiting for input · 1 turn · 100 in · 10 out · $0.200" in closing(capsys)
    assert priced.agent("resume", "latest", "--input", "answer=x") == 4
    assert "waiting for input · 2 turns · 200 in · 20 out · $0.400" in closing(capsys)
    assert priced.agent("resume", "latest", "--input", "answer=x") == 0
    assert "completed · 3 turns · 300 in · 30 out · $0.600" in closing(capsys)


def test_closing_line_of_a_resumed_task_counts_the_steps_before(
    priced: Workspace, model: ModelServer, capsys: Capture
) -> None:
    priced.write(".agent/tasks/two/TASK.md", "---\nname: Two\nnext: next.md\n---\n\nDo the first thing.\n")
    priced.write(".agent/tasks/two/next.md", "---\nname: Next\n---\n\nDo the second thing.\n")
    model.follow(says("One."), calls("ask_user", question="Which?"), says("Two."))
    assert priced.agent("task", "run", "two") == 4
    assert "2 turns · 200 in · 20 out · $0.400" in closing(capsys)

    assert priced.agent("resume", "latest", "--input", "answer=x") == 0
    assert "completed · 3 turns · 300 in · 30 out · $0.600" in closing(capsys)


def test_closing_line_after_a_failure_counts_the_turns_before(
    priced: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Read", path="facts.yaml"), fails(404), says("Done."))
    assert priced.agent("run", "Read it") == 8
    assert "failed · 2 turns · 100 in · 10 out · $0.200" in closing(capsys)

    assert priced.agent("resume", "latest") == 0
    assert "completed · 2 turns · 200 in · 20 out · $0.400" in closing(capsys)


def test_record_and_list_of_a_task_name_its_agent_model_and_turns(
    priced: Workspace, model: ModelServer, capsys: Capture
) -> None:
    priced.write(".agent/agents/writer/AGENT.md", AGENT.format(name="writer", model="m2"))
    priced.write(".agent/tasks/one/TASK.md", "---\nname: One\nagent: writer\n---\n\nDo it.\n")
    model.follow(says("One."))
    assert priced.agent("task", "run", "one", "--quiet") == 0
    run_id = priced.run_ids()[-1]

    record = json.loads((priced.folder / "runs" / run_id / "run.json").read_text(encoding="utf-8"))
    assert (record["agent"]["id"], record["provider"], record["model"], record["turns"]) == (
        "writer",
        "openai",
        "m2",
        1,
    )
    row = next(row for row in list_rows(priced, capsys) if row["run_id"] == run_id)
    assert (row["agent"], row["model"], row["turns"], row["tokens"]) == ("writer", "m2", 1, 110)


def list_turns(workspace: Workspace, capsys: Capture) -> tuple[str, str, object]:
    """Return the turns of the first run: from the closing line, `runs show` and `runs list`."""
    summary = next(part for part in closing(capsys).split(" · ") if part.endswith((" turn", " turns")))
    run_id = next(run_id for run_id in workspace.run_ids() if not run_id.startswith("child"))
    workspace.agent("runs", "show", run_id)
    shown = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("turns:"))
    row = next(row for row in list_rows(workspace, capsys) if row["run_id"] == run_id)
    return summary, shown.split()[1], row["turns"]


def test_turns_of_a_task_are_consistent_everywhere(priced: Workspace, model: ModelServer, capsys: Capture) -> None:
    priced.write(".agent/tasks/one/TASK.md", "---\nname: One\n---\n\nDo it.\n")
    model.follow(says("One."))
    assert priced.agent("task", "run", "one") == 0

    assert list_turns(priced, capsys) == ("1 turn", "1;", 1)


def test_answer_of_a_task_is_printed_once(priced: Workspace, model: ModelServer, capsys: Capture) -> None:
    priced.write(".agent/tasks/two/TASK.md", "---\nname: Two\nnext: next.md\n---\n\nDo the first thing.\n")
    priced.write(".agent/tasks/two/next.md", "---\nname: Next\n---\n\nDo the second thing.\n")
    model.follow(says("First answer."), says("Last answer."))

    assert priced.agent("task", "run", "two") == 0

    shown = capsys.readouterr()
    assert shown.out == "Last answer.\n"
    assert "First answer." in shown.err
    assert "Last answer." not in shown.err


def test_turns_of_a_run_with_a_child_are_consistent_everywhere(
    priced: Workspace, model: ModelServer, capsys: Capture
) -> None:
    priced.write(".agent/agents/writer/AGENT.md", AGENT.format(name="writer", model="m2"))
    model.follow(calls("delegate", agent="writer", task="Write"), says("Written."), says("Done."))
    assert priced.agent("run", "Write it") == 0

    assert list_turns(priced, capsys) == ("3 turns", "3;", 3)


def test_turns_of_a_run_that_starts_a_task_are_consistent_everywhere(
    priced: Workspace, model: ModelServer, capsys: Capture
) -> None:
    priced.write(".agent/tasks/one/TASK.md", "---\nname: One\n---\n\nDo it.\n")
    model.follow(calls("run_task", task="one"), says("One."), says("Done."))
    assert priced.agent("run", "Do the task") == 0

    assert list_turns(priced, capsys) == ("3 turns", "3;", 3)


def test_list_of_runs_counts_the_turns_of_a_killed_run(priced: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("Read", path="facts.yaml"), calls("Read", path="agent.yaml"), says("Done."))
    model.hold_after = 2
    process = priced.start("run", "Read it", "--quiet")
    assert model.held.wait(60)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    [row] = list_rows(priced, capsys)
    assert (row["interrupted"], row["turns"], row["tokens"], row["cost_usd"]) == (True, 3, 220, 0.4)


def test_totals_of_a_run_with_a_paused_child_are_consistent_everywhere(
    priced: Workspace, model: ModelServer, capsys: Capture
) -> None:
    priced.write(".agent/agents/writer/AGENT.md", AGENT.format(name="writer", model="m2"))
    model.follow(calls("delegate", agent="writer", task="Write"), calls("ask_user", question="What color?"))
    assert priced.agent("run", "Write it") == 4

    assert "2 turns · 200 in · 20 out" in closing(capsys)
    run_id = next(run_id for run_id in priced.run_ids() if not run_id.startswith("child"))
    assert priced.agent("runs", "show", run_id) == 0
    assert "turns:   2; 200 tokens in, 20 out" in capsys.readouterr().out
    row = next(row for row in list_rows(priced, capsys) if row["run_id"] == run_id)
    assert (row["turns"], row["tokens"], row["cost_usd"]) == (2, 220, 0.4)


def test_list_of_runs_counts_the_paused_step_of_a_task(priced: Workspace, model: ModelServer, capsys: Capture) -> None:
    priced.write(".agent/tasks/one/TASK.md", "---\nname: One\n---\n\nDo it.\n")
    model.follow(calls("Read", path="facts.yaml"), calls("ask_user", question="What color?"))
    assert priced.agent("task", "run", "one") == 4

    assert list_turns(priced, capsys) == ("2 turns", "2;", 2)


def test_runs_show_counts_a_finished_child_run_once(priced: Workspace, model: ModelServer, capsys: Capture) -> None:
    priced.write(".agent/agents/writer/AGENT.md", AGENT.format(name="writer", model="m2"))
    model.follow(calls("delegate", agent="writer", task="Write"), says("Written."), says("Done."))
    assert priced.agent("run", "Write it") == 0

    assert "3 turns · 300 in · 30 out" in closing(capsys)
    run_id = next(run_id for run_id in priced.run_ids() if not run_id.startswith("child"))
    assert priced.agent("runs", "show", run_id) == 0
    assert "turns:   3; 300 tokens in, 30 out" in capsys.readouterr().out
