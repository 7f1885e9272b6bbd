"""`agent resume --token`: an answer goes once to its own question."""

import json

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]
JSON = ("--output-format", "json", "--quiet")


def read_token(capsys: Capture) -> str:
    return str(json.loads(capsys.readouterr().out)["resume_token"])


def test_a_token_answers_only_its_own_question(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("ask_user", question="Which?"), calls("ask_user", question="Are you sure?"), says("Done."))
    assert workspace.agent("run", "Greet", *JSON) == 4
    first = read_token(capsys)

    assert workspace.agent("resume", "latest", "--token", first, "--input", "answer=all", *JSON) == 4
    second = read_token(capsys)
    assert workspace.agent("resume", "latest", "--token", first, "--input", "answer=yes", *JSON) == 10
    assert "The resume token is not valid" in capsys.readouterr().err
    assert len(model.received) == 2

    assert workspace.agent("resume", "latest", "--token", second, "--input", "answer=yes", *JSON) == 0
    assert json.loads(capsys.readouterr().out)["resume_token"] == ""
    assert workspace.agent("resume", "latest", "--token", second) == 10


def test_a_token_of_another_run_or_with_an_invalid_signature_is_rejected(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("ask_user", question="Which?"))
    assert workspace.agent("run", "Greet", *JSON) == 4
    of_other = read_token(capsys)
    assert workspace.agent("run", "Greet", *JSON) == 4
    own = read_token(capsys)
    run_id = own.partition(":")[0]

    for token in (of_other, own[:-1] + ("0" if own[-1] != "0" else "1"), "no-token", own.replace(":", "", 1)):
        assert workspace.agent("resume", run_id, "--token", token, "--input", "answer=all") == 10

    assert len(model.received) == 2


def test_the_token_is_not_recorded(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("ask_user", question="Which?"))
    assert workspace.agent("run", "Greet", *JSON) == 4
    token = read_token(capsys)

    kept = [path for path in (workspace.folder / "runs").rglob("*") if path.is_file()]

    assert kept
    assert not [path for path in kept if token.encode() in path.read_bytes()]
