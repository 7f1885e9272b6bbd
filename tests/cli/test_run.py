"""`agent run`: output streams, task sources, and exit codes."""

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
from model_server import ModelServer, calls, fails, says
from run_workspace import Workspace

from agent_command import AGENT, run_agent
from metier.cli.shared.command_options import join_words
from metier.events.record import parse_record

pytestmark = pytest.mark.slow

PRICED = "gpt-5.6-luna"

type Capture = pytest.CaptureFixture[str]


def test_only_the_result_is_on_stdout_and_everything_else_on_stderr(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Forty-two."))

    assert workspace.agent("run", "What is the answer?") == 0

    out, err = capsys.readouterr()
    assert out == "Forty-two.\n"
    run_id = workspace.run_ids()[0]
    closing = " ".join(err.split())  # a narrow terminal breaks the line
    assert "completed · 1 turn · 100 in · 10 out · cost unknown · " in closing
    assert closing.endswith(f"run {run_id}")


def test_events_are_shown_line_by_line_on_request(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Forty-two."))

    for flag in ("--events", "-vv"):
        assert workspace.agent("run", "What is the answer?", flag) == 0

        out, err = capsys.readouterr()
        assert out == "Forty-two.\n"
        run_id = workspace.run_ids()[-1]
        assert "run_started" in err
        assert "run_finished" in err
        assert "is completed, in runs/" in err
        assert "--event-stream" in err
    assert run_id


def test_details_are_shown_only_with_v(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Forty-two."))

    assert workspace.agent("run", "Greet", "-v") == 0
    assert "1 skill ranked" in capsys.readouterr().err
    assert workspace.agent("run", "Greet") == 0
    assert "ranked" not in capsys.readouterr().err


def test_json_output_is_one_object_with_all_facts(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Done."))

    assert workspace.agent("run", "Greet", "--output-format", "json", "--quiet") == 0

    outcome = cast("dict[str, Any]", json.loads(capsys.readouterr().out))
    assert (outcome["status"], outcome["result"], outcome["turns"], outcome["exit_code"]) == (
        "completed",
        "Done.",
        2,
        0,
    )
    assert outcome["usage"] == {"input_tokens": 200, "output_tokens": 20}
    assert Path(outcome["paths"]["events"]).is_file()
    assert Path(outcome["paths"]["record"]).is_file()


def test_stream_json_prints_every_event_and_then_the_result(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet", "--output-format", "stream-json") == 0

    *events, last = capsys.readouterr().out.splitlines()
    outcome = json.loads(last)
    assert [parse_record(event).event_type for event in events] == workspace.event_types()
    assert outcome["type"] == "result"
    assert outcome["result"] == "Done."


def test_a_quiet_run_prints_only_its_result(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "Greet") == 0

    assert capsys.readouterr() == ("Done.\n", "")


@pytest.mark.parametrize(
    "arguments", [["-p", "Greet"], ["--max-turns", "3", "-p", "Greet"], ["--prompt=Greet", "--debug-llm", "false"]]
)
def test_a_prompt_without_a_command_starts_a_run(
    *, arguments: list[str], workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))

    assert workspace.agent(*arguments) == 0

    assert capsys.readouterr().out == "Done.\n"
    assert workspace.events()[0]["payload"]["task"] == "Greet"


def test_the_task_can_come_from_a_file(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    (workspace.folder / "task.md").write_text("\ufeffGreet\n  everybody\n", encoding="utf-8")

    assert workspace.agent("run", "--task-file", "task.md") == 0

    assert workspace.events()[0]["payload"]["task"] == "Greet\n  everybody"


def test_the_task_can_come_from_stdin(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))

    done = run_agent("run", "-", stdin="Greet", cwd=workspace.folder)

    assert (done.returncode, done.stdout) == (0, "Done.\n")
    assert workspace.events()[0]["payload"]["task"] == "Greet"


def test_piped_input_is_the_context_of_the_task(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))

    done = run_agent("run", "Explain this", stdin="a line of a log", cwd=workspace.folder)

    assert done.returncode == 0
    assert workspace.events()[0]["payload"]["task"] == "Explain this"
    assert "a line of a log" in json.dumps(model.received[0]["messages"])


def test_piped_input_over_one_megabyte_is_rejected(workspace: Workspace, model: ModelServer) -> None:
    done = subprocess.run(
        [AGENT, "run", "Explain this"],
        input=b"x" * 1_000_001,
        capture_output=True,
        cwd=workspace.folder,
        check=False,
    )

    assert done.returncode == 2
    assert b"is longer than 1000000 bytes" in done.stderr
    assert model.received == []


def test_closed_stdin_adds_no_context(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))

    done = subprocess.run(
        ["sh", "-c", f"'{AGENT}' run -q Greet <&-"], capture_output=True, text=True, cwd=workspace.folder, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "Done.\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "No task given"),
        (["run", "  "], "The task is empty"),
        (["run", "a", "-p", "b"], "More than one task given"),
        (["run", "--task-file", "nowhere.md"], "cannot be read: No such file or directory"),
        (["run", "a", "--provider", "nobody"], "must be 'anthropic', 'gemini', 'openai', 'offline' or 'a2a'"),
        (["run", "a", "--provider", "a2a", "--config", "/dev/null"], "No model set for provider 'a2a'"),
        (
            ["run", "a", "--profile", "reckless"],
            "--profile must be 'permissive', 'guarded' or 'strict', not 'reckless'",
        ),
        (["run", "a", "--skills-dir", "nowhere"], "Folder 'nowhere' does not exist"),
        (["run", "a", "--max-turns", "0"], "at least 1"),
        (["run", "a", "--timeout", "0"], "--timeout must be greater than 0"),
        (["run", "a", "--dry-run=maybe"], "--dry-run takes true or false, not 'maybe'"),
    ],
)
def test_a_usage_error_prints_one_message_with_exit_code_2_before_any_effect(
    *, arguments: list[str], message: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    assert workspace.agent(*arguments) == 2

    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert model.received == []
    assert workspace.run_ids() == []


def test_a_runs_folder_that_cannot_be_created_prints_one_message(workspace: Workspace, capsys: Capture) -> None:
    (workspace.folder / "runs").write_text("in the way")

    assert workspace.agent("run", "Greet") == 1

    err = capsys.readouterr().err
    assert "The runs folder" in err
    assert "logging.jsonl_dir" in err
    assert "Traceback" not in err


def test_an_unwritable_file_of_the_run_prints_one_message_and_the_run_is_safe(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    block = (
        "import pathlib, sys\nnext(pathlib.Path(sys.argv[1]).glob('2*')).joinpath('llm/turn-2.request.json').mkdir()\n"
    )
    workspace.add_skill("blocker", "Get in the way.", block=block)
    runs = workspace.folder / "runs"
    blocks = calls("script_run", skill_name="blocker", script_name="block", args=[str(runs)], json=False)
    model.follow(blocks, says("Done."))

    assert workspace.agent("run", "Get in the way", "--debug-llm") == 1
    err = capsys.readouterr().err
    assert "error: Cannot write a file of the run: Is a directory" in err
    assert "Traceback" not in err

    (runs / workspace.run_ids()[0] / "llm" / "turn-2.request.json").rmdir()
    assert workspace.agent("resume", "latest", "-q") == 0
    assert capsys.readouterr().out == "Done.\n"
    assert len(model.received) == 2


@pytest.mark.parametrize(
    ("script", "arguments", "code", "reason"),
    [
        ([fails(401)], [], 8, "auth_failed"),
        ([fails(404)], [], 8, "not_found"),
        ([calls("skill_search", query="x")], ["--max-turns", "1"], 7, "max_turns_exceeded"),
        ([calls("ask_user", question="Which one?")], [], 4, "input"),
        ([calls("script_run", skill_name="greeter", script_name="greet")], ["--profile", "guarded"], 3, "approval"),
    ],
)
def test_the_exit_code_reflects_the_status_of_the_run(
    *, script: list[Any], arguments: list[str], code: int, reason: str, workspace: Workspace, model: ModelServer,
    capsys: Capture,
) -> None:  # fmt: skip
    model.follow(*script)

    assert workspace.agent("run", "Greet", "--output-format", "json", *arguments) == code

    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["exit_code"], outcome["reason"]) == (code, reason)


def test_a_run_over_its_cost_limit_has_its_own_exit_code(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("skill_search", query="x"))

    assert workspace.agent("run", "Greet", "--model", PRICED, "--max-cost-usd", "0.000001") == 6

    assert "budget_exceeded" in capsys.readouterr().err
    assert len(model.received) == 1


def test_the_cost_of_a_model_without_a_known_price_cannot_be_limited(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    assert workspace.agent("run", "Greet", "--max-cost-usd", "1") == 2

    assert "The price of model 'm' is not known" in capsys.readouterr().err
    assert model.received == []


def test_a_time_limit_ends_the_run_while_the_model_is_silent(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("too late"))
    model.silent.set()

    assert workspace.agent("run", "Greet", "--timeout", "0.5", "--output-format", "json") == 7

    outcome = json.loads(capsys.readouterr().out)
    assert (outcome["status"], outcome["reason"]) == ("timeout", "run_timeout")
    assert workspace.event_types()[-1] == "run_failed"


def test_full_requests_and_replies_are_saved_only_on_request_and_redacted(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "".join(["sk-", "proj-", "abcdefghijklmnopqrst", "0123456789"])
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    model.follow(says(f"It is {secret}."))

    assert workspace.agent("run", "-q", "Greet") == 0
    assert not (workspace.folder / "runs" / workspace.run_ids()[0] / "llm").exists()

    assert workspace.agent("run", "-q", f"Is {secret} good?", "--debug-llm", "true") == 0
    [folder] = (workspace.folder / "runs").glob("*/llm")
    assert sorted(path.name for path in folder.iterdir()) == ["turn-1.reply.json", "turn-1.request.json"]
    request, reply = (folder / f"turn-1.{kind}.json" for kind in ("request", "reply"))
    assert json.loads(request.read_text())["messages"]
    assert "It is " in json.loads(reply.read_text())["parts"][0]["text"]
    assert secret not in request.read_text() + reply.read_text()


def test_text_is_streamed_to_a_terminal(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("A rather long answer.\n"))
    controller, terminal = os.openpty()

    subprocess.run(
        [AGENT, "run", "Greet"], cwd=workspace.folder, stdin=subprocess.DEVNULL, stdout=terminal,
        stderr=terminal, check=True, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    with io.FileIO(controller) as stream:
        shown = _read_all(stream)

    assert b"A rather long answer.\r\n" in shown
    assert b"completed" in shown


def test_answer_is_only_on_stdout_if_stdout_is_not_the_terminal(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("A **rather** long answer.\n"))
    controller, terminal = os.openpty()

    done = subprocess.run(
        [AGENT, "run", "Greet"], cwd=workspace.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=terminal, check=True, env={**os.environ, "NO_COLOR": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(terminal)
    with io.FileIO(controller) as stream:
        shown = _read_all(stream)

    assert done.stdout == b"A **rather** long answer.\n"
    assert b"rather" not in shown


def test_flags_accept_a_boolean_value() -> None:
    assert join_words(["--dry-run", "true", "a"]) == ["--dry-run", "a"]
    assert join_words(["--dry-run", "a"]) == ["--dry-run", "a"]
    assert join_words(["--dry-run", "false", "--debug-llm", "True"]) == ["--no-dry-run", "--debug-llm"]
    assert join_words(["--dry-run=false", "--debug-llm=1"]) == ["--no-dry-run", "--debug-llm"]
    assert join_words(["--", "--dry-run", "true"]) == ["--", "--dry-run", "true"]


def _read_all(stream: io.FileIO) -> bytes:
    data = b""
    try:
        while chunk := stream.read(65536):
            data += chunk
    except OSError:  # how Linux says that the other end of a terminal is closed
        pass
    return data


def test_script_of_another_skill_is_not_run_and_a_warning_names_it(
    workspace: Workspace, model: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    workspace.add_skill("borrower", "Borrow a script.", body="Run `../greeter/scripts/greet.py`.")
    model.follow(
        calls("script_run", skill_name="borrower", script_name="../greeter/scripts/greet.py"),
        calls("script_run", skill_name="borrower", script_name="../../greeter/scripts/greet"),
        says("done"),
    )

    workspace.agent("run", "Borrow it")
    answers = [json.dumps(message) for message in model.received[-1]["messages"] if message["role"] == "tool"]
    capfd.readouterr()
    workspace.agent("skills", "validate", "skills/borrower")

    assert "[script_outside]" in capfd.readouterr().out
    assert len(answers) == 2
    assert all("hello from the script" not in answer for answer in answers)
