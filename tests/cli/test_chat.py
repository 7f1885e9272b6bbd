"""`agent chat` from a pipe: lines are answered, and a kill loses nothing."""

import io
import json
import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any, cast

import pytest
from model_server import ModelServer, calls, fails, says
from run_workspace import Workspace, use_model

from agent_command import AGENT

pytestmark = pytest.mark.slow

type Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Pipe lines into a chat; return exit code, stdout and stderr."""

    def pipe(text: str, *args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        code = workspace.agent("chat", *args)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return pipe


def messages(model: ModelServer) -> list[dict[str, Any]]:
    found = cast("list[dict[str, Any]]", model.received[-1]["messages"])
    said = [message for message in found if message["role"] != "system"]
    return [{**message, "content": str(message["content"]).partition("\n\n# Environment")[0]} for message in said]


def test_each_line_is_a_turn_with_the_earlier_ones_in_context(
    say: Say, workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Hello Ada."), says("You are Ada."))

    code, out, err = say("I am Ada\nfirst \\\nand second\n")

    assert (code, out, err) == (0, "Hello Ada.\nYou are Ada.\n", "")
    assert [message["content"] for message in messages(model)] == ["I am Ada", "Hello Ada.", "first \nand second"]
    assert len(workspace.run_ids()) == 2


def test_a_conversation_is_continued_by_name_or_as_the_last_one(say: Say, model: ModelServer) -> None:
    model.follow(says("One."), says("Two."), says("Three."))
    say("first\n", "--context", "plans")
    say("elsewhere\n")

    code, _, _ = say("second\n", "--context", "plans", "--json")

    assert code == 0
    assert [message["content"] for message in messages(model)] == ["first", "One.", "second"]
    say("third\n", "--continue")
    assert [message["content"] for message in messages(model)][-1] == "third"
    assert len(messages(model)) == 5
    code, out, _ = say("", "list", "--json")
    first = json.loads(out)[0]
    assert (first["context_id"], first["turns"], first["last_message"]) == ("plans", 3, "third")


def test_a_new_workspace_has_no_conversation_to_continue(say: Say) -> None:
    assert say("", "--continue") == (
        2,
        "",
        "error: There is no conversation to continue\nhint: Start one with `agent chat`\n",
    )
    assert say("", "--continue", "--context", "x")[0] == 2


def test_json_prints_one_object_per_turn(say: Say, model: ModelServer) -> None:
    model.follow(says("One."), says("Two."))

    _, out, _ = say("a\nb\n", "--json", "--context", "j")

    turns = [json.loads(line) for line in out.splitlines()]
    assert [(turn["context_id"], turn["result"], turn["status"]) for turn in turns] == [
        ("j", "One.", "completed"),
        ("j", "Two.", "completed"),
    ]


def test_a_turn_that_fails_is_reported_and_the_next_one_works(
    say: Say, workspace: Workspace, model: ModelServer
) -> None:
    workspace.configure(model=use_model(model), runtime={"max_llm_retries": 0})
    model.follow(fails(400), says("Better."))

    code, out, err = say("a\nb\n")

    assert (code, out) == (0, "Better.\n")
    assert err.startswith("error: ")
    assert say("/nonsense\n")[0] == 2
    model.follow(fails(400))
    assert say("a\n")[0] == 8


def test_chat_commands_show_skills_models_facts_and_help(say: Say, workspace: Workspace, model: ModelServer) -> None:
    folder = workspace.folder / ".agent/agents/keeper"
    folder.mkdir(parents=True)
    (folder / "AGENT.md").write_text("---\nname: Keeper\nmodel: m\nallowed_models: [big]\n---\nBe brief.\n")
    model.follow(says("Yes."))

    _, out, err = say(
        "/model big\n/model\nhi\n/skills\n/remember port: 8080\n/facts\n/model huge\n", "--agent", "keeper"
    )

    assert out.splitlines() == [
        "* big",
        "  m",
        "Yes.",
        "greeter                Greet somebody kindly with a script.",
        "port: 8080",
    ]
    assert "error: Model 'huge' is not one that agent 'keeper' may use\nhint: Use m or big\n" in err
    assert model.received[-1]["model"] == "big"
    _, out, _ = say("/help\n/forget port\n/facts\n/undo\n/skills nope\n", "--continue")
    assert all(f"/{name}" in out for name in ("skills", "model", "approve", "undo", "export", "help", "facts", "quit"))


def test_the_offline_backbone_lists_only_available_models(say: Say) -> None:
    _, out, err = say("/model\n/model big\n", "--provider", "offline")

    assert out == "* offline\n"
    assert "error: The offline backbone has no models to choose from" in err


def test_a_turn_can_be_undone_and_a_chat_exported(say: Say, workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("One."), says("Two."), says("Three."))

    _, _, err = say("first\nsecond\n/undo\nthird\n/export talk.md\n/export talk.md\n", "--context", "c")

    assert "Undone: second" in err
    assert "error: File 'talk.md' already exists" in err
    assert [message["content"] for message in messages(model)] == ["first", "One.", "third"]
    text = (workspace.folder / "talk.md").read_text()
    assert text.startswith("# Conversation c\n")
    assert "**You:**\n\nthird\n\n**Agent:**\n\nThree.\n" in text
    assert "second" not in text
    assert len(workspace.run_ids()) == 3


def test_steps_of_earlier_turns_are_sent_with_their_outcomes(say: Say, model: ModelServer) -> None:
    greet = calls("script_run", skill_name="greeter", script_name="greet")
    model.follow(greet, says("Greeted."), says("I did."))

    _, out, err = say("Greet somebody\nDid you?\n")

    assert out == "Greeted.\nI did.\n"
    assert "script_run" in err
    told = str(messages(model)[0]["content"])
    assert "Done for this message" in told
    assert "script_run(skill_name=greeter" in told
    assert "succeeded" in told


def test_continue_resumes_a_turn_whose_approval_was_decided_elsewhere(
    say: Say,
    workspace: Workspace,
    model: ModelServer,
) -> None:
    workspace.configure(model=use_model(model), runtime={"profile": "guarded"})
    model.follow(calls("Write", path="a.txt", content="x"), says("Written."))
    code, _, err = say("write it\n")
    assert code == 3
    approval = err.split("approval ")[1].split(";")[0]

    assert workspace.agent("approvals", "approve", approval) == 0
    code, out, _ = say("/continue\n", "--continue")

    assert (code, out) == (0, "Written.\n")
    assert (workspace.folder / "a.txt").read_text() == "x"


def test_a_turn_killed_during_a_model_call_continues_in_the_reopened_chat(
    say: Say,
    workspace: Workspace,
    model: ModelServer,
) -> None:
    model.follow(says("Here."))
    model.silent.set()
    process = subprocess.Popen(
        [AGENT, "chat", "--context", "c"], cwd=workspace.folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env=dict(os.environ),
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(b"My name is Ada.\n")
    process.stdin.flush()
    assert model.asked.wait(60)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    process.stdin.close()
    model.silent.clear()
    model.released.set()

    code, out, err = say("again\n", "--context", "c")

    assert (code, out) == (0, "Here.\nHere.\n")
    assert "Continuing the interrupted turn: My name is Ada." in err
    assert len(workspace.run_ids()) == 2
    spoken = [message["content"] for message in messages(model)]
    assert str(spoken[0]).endswith("My name is Ada.")
    assert spoken[1:] == ["Here.", "again"]


def test_a_line_from_a_pipe_runs_no_command(say: Say, workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("I read that."))

    code, out, _ = say("!touch made\n")

    assert (code, out) == (0, "I read that.\n")
    assert messages(model)[-1]["content"] == "!touch made"
    assert not (workspace.folder / "made").exists()
