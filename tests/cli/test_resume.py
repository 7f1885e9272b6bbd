"""`agent resume`: after answers, approvals and crashes, and with concurrent callers."""

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import anyio
import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import WAIT, Workspace, close_after_reader

from agent_command import AGENT
from metier.ids import SystemClock, get_user
from metier.store.base import RunRow
from metier.store.sqlite.store import open_sqlite_store

type Capture = pytest.CaptureFixture[str]


def test_an_answer_reaches_the_model_with_its_types(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    fields = {"type": "object", "properties": {"many": {"type": "integer"}, "name": {"type": "string"}}}
    model.follow(calls("ask_user", question="How many?", fields=fields), says("Thanks."))
    assert workspace.agent("run", "Count") == 4
    assert "--input many=…" in capsys.readouterr().err

    assert workspace.agent("resume", "latest", "--input", "many=3", "--input", "name=Ada") == 0

    assert capsys.readouterr().out == "Thanks.\n"
    assert json.loads(model.received[-1]["messages"][-1]["content"]) == {"many": 3, "name": "Ada"}


def test_resume_prints_the_outcome_as_json(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("ask_user", question="How many?"), says("Thanks."))
    workspace.agent("run", "Count")
    capsys.readouterr()

    assert workspace.agent("resume", "latest", "--input", "answer=3", "--json") == 0

    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["status"], outcome["result"]) == ("completed", "Thanks.")


def test_resume_of_a_completed_run_reports_it_and_sends_nothing(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Thanks."))
    assert workspace.agent("run", "Count") == 0
    capsys.readouterr()

    assert workspace.agent("resume", "latest") == 0

    shown = capsys.readouterr()
    assert shown.out == "Thanks.\n"
    assert f"Run {workspace.run_ids()[-1]} is already completed" in shown.err
    assert len(model.received) == 1


def test_a_second_finish_in_a_reply_does_not_cost_another_turn(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(Reply(calls=(("finish", {"result": "One."}), ("finish", {"result": "Two."}))), says("Three."))

    assert workspace.agent("run", "Count", "-q") == 0

    assert capsys.readouterr().out == "One.\n"
    assert len(model.received) == 1
    assert workspace.agent("replay", workspace.run_ids()[-1], "--execute") == 0


def test_a_run_that_is_still_paused_reports_it_again(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("ask_user", question="How many?"), says("Thanks."))
    workspace.agent("run", "Count")

    assert workspace.agent("resume", "latest") == 4

    assert "waiting: How many?" in capsys.readouterr().err
    assert len(model.received) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "nothing"], "Input 'nothing' is not name=value"),
        (["--input", "a=1"], "does not ask for input"),
        (["--answer", "done"], "has no step in doubt"),
        (["--answer", "maybe"], "not 'maybe'"),
    ],
)
def test_an_unrequested_answer_is_rejected(
    *, arguments: list[str], message: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"))
    assert workspace.agent("run", "Greet", "--profile", "guarded") == 3

    assert workspace.agent("resume", "latest", *arguments) == 2

    assert message in capsys.readouterr().err


def test_unknown_and_ambiguous_run_names_are_rejected(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    assert workspace.agent("resume", "latest") == 2
    workspace.agent("run", "Greet")
    workspace.agent("run", "Greet")

    assert workspace.agent("resume", "nothing") == 2
    assert workspace.agent("resume", "2") == 2

    err = capsys.readouterr().err
    assert "There is no run 'nothing'" in err
    assert "More than one run starts with '2'" in err


def test_an_ended_run_is_not_changed(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Done."))
    workspace.agent("run", "Greet", "-q")

    assert workspace.agent("resume", workspace.run_ids()[0][:-2], "-q") == 0

    assert capsys.readouterr().out == "Done.\nDone.\n"
    assert workspace.event_types().count("run_finished") == 1


def test_a_run_continues_with_its_original_settings(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("ask_user", question="Which?"), calls("skill_search", query="x"), says("Done."))
    assert workspace.agent("run", "Count", "--max-turns", "2", "-q") == 4
    workspace.configure(model={"provider": "anthropic"}, runtime={"max_turns": 50})

    assert workspace.agent("resume", "latest", "--input", "answer=1", "-q") == 7

    assert "max_turns_exceeded" in capsys.readouterr().err


@pytest.fixture
def killed_run(workspace: Workspace, model: ModelServer) -> tuple[Path, str]:
    """A run whose process was killed while its script waited on a pipe."""
    workspace.add_skill("waiter", "Wait for somebody.", wait=WAIT)
    fifo = workspace.folder / "pipe"
    os.mkfifo(fifo)
    model.follow(calls("script_run", skill_name="waiter", script_name="wait", args=[str(fifo)]), says("Done."))
    process = workspace.start("run", "Wait")
    pipe = os.open(fifo, os.O_WRONLY)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    close_after_reader(pipe)
    return fifo, workspace.run_ids()[0]


def test_a_killed_run_asks_about_a_step_with_unknown_outcome_and_uses_the_answer(
    *, killed_run: tuple[Path, str], workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    fifo, run_id = killed_run

    assert workspace.agent("resume", run_id) == 4
    assert f"agent resume {run_id} --answer done|retry|skip|abort" in capsys.readouterr().err
    assert workspace.agent("resume", run_id, "--answer", "done", "-q") == 0

    assert capsys.readouterr().out == "Done.\n"
    assert Path(f"{fifo}.effects").read_text() == "x"
    assert "as a person found out" in str(model.received[-1]["messages"])


@pytest.mark.parametrize(("answer", "status", "code"), [("done", "succeeded", 0), ("skip", "skipped", 0)])
def test_an_answer_about_an_unknown_outcome_is_recorded_as_the_result(
    *, killed_run: tuple[Path, str], workspace: Workspace, answer: str, status: str, code: int
) -> None:
    _, run_id = killed_run
    assert workspace.agent("resume", run_id, "-q") == 4
    assert read_steps(workspace, run_id)[0]["status"] == "in_doubt"
    assert workspace.agent("resume", run_id, "--answer", answer, "-q") == code

    told = {event["event_type"]: event["payload"] for event in workspace.events()}
    assert told["step_outcome_unknown"]["step_id"] == "1.1"
    answered = told["step_outcome_answered"]
    assert (answered["step_id"], answered["answer"], answered["answered_by"]) == ("1.1", answer, get_user())
    assert (told["skill_step_executed"]["step_id"], told["skill_step_executed"]["status"]) == ("1.1", status)
    step = read_steps(workspace, run_id)[0]
    assert (step["status"], step["answer"], step["answered_by"]) == (status, answer, get_user())
    assert workspace.agent("replay", run_id, "--execute") == 0


def test_the_question_about_an_unknown_outcome_describes_the_call(
    *, killed_run: tuple[Path, str], workspace: Workspace, capsys: Capture
) -> None:
    _, run_id = killed_run
    assert workspace.agent("resume", run_id) == 4

    told = capsys.readouterr().err
    assert "Step 1.1 is in doubt: script_run waiter" in told
    assert '{"' not in told


def test_abort_ends_a_run_with_unknown_outcome(killed_run: tuple[Path, str], workspace: Workspace) -> None:
    _, run_id = killed_run
    workspace.agent("resume", run_id)

    assert workspace.agent("resume", run_id, "--answer", "abort") == 1

    assert workspace.events()[-1]["payload"]["status"] == "canceled"
    step = read_steps(workspace, run_id)[0]
    assert (step["status"], step["answer"]) == ("in_doubt", "abort")


def read_steps(workspace: Workspace, run_id: str) -> list[dict[str, object]]:
    return json.loads((workspace.folder / "runs" / run_id / "run.json").read_text(encoding="utf-8"))["steps"]


def test_exactly_one_of_eight_resuming_processes_drives_the_run(
    killed_run: tuple[Path, str], workspace: Workspace
) -> None:
    fifo, run_id = killed_run
    workspace.agent("resume", run_id)
    assert workspace.agent("runs", "show", run_id) == 0
    command = [AGENT, "resume", run_id, "--answer", "retry", "--quiet"]
    processes = [
        subprocess.Popen(command, cwd=workspace.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    pipe = os.open(fifo, os.O_WRONLY)
    with ThreadPoolExecutor(8) as threads:
        waiting = {threads.submit(process.communicate, timeout=100): process for process in processes}
        ended = as_completed(waiting)
        losers = [next(ended) for _ in range(7)]
        os.write(pipe, b"go")
        os.close(pipe)
        winner = next(ended)

    assert (waiting[winner].returncode, winner.result()[0]) == (0, "Done.\n")
    assert [waiting[loser].returncode for loser in losers] == [10] * 7
    assert all(f"drives run '{run_id}'" in loser.result()[1] for loser in losers)
    assert Path(f"{fifo}.effects").read_text() == "xx"


def test_an_old_row_without_a_journal_is_not_started_with_current_settings(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    async def leave_a_row() -> None:
        (workspace.folder / "runs").mkdir()
        store = await open_sqlite_store(workspace.folder / "runs" / "state.db")
        now = SystemClock().now()
        run_id = "20260101-000000-abcdefabcdef"
        await store.create_run(
            RunRow(run_id=run_id, context_id=run_id, status="pending", task="Greet", created_at=now, updated_at=now)
        )
        await store.close()

    anyio.run(leave_a_row)

    assert workspace.agent("resume", "latest", "-q") == 2

    assert "what it was started with is not known" in capsys.readouterr().err
    assert model.received == []
