"""Requests of a run that outgrows the model's window."""

import json
from typing import Any

import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace
from vendor_servers import KEYS, running_vendors

PAGE = "".join(f"{number:05} The quick brown fox jumps over the lazy dog again.\n" for number in range(330))


def read(path: str) -> Reply:
    return calls("Read", path=path)


def consult(*paths: str) -> Reply:
    return calls("read_skill_files", paths=list(paths))


def results(body: dict[str, Any]) -> list[str]:
    return [str(message["content"]) for message in body["messages"] if message["role"] == "tool"]


def text_of(body: dict[str, Any]) -> str:
    return json.dumps(body["messages"], ensure_ascii=False)


def fill(workspace: Workspace) -> None:
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    settings["model"] |= {"max_context_tokens": 18_000, "response_headroom_tokens": 1_000}
    workspace.configure(**settings)
    for name in ("a", "b", "c", "d", "e"):
        workspace.write(f"{name}.txt", f"{name} begins\n{PAGE}{name} ends\n")
    folder = workspace.add_skill("ledger", "Keep the ledger in order.", body="LEDGER RULE: add before you subtract.")
    (folder / "references").mkdir()
    (folder / "references" / "rates.md").write_text("RATE TABLE\n" + "one rate and another rate\n" * 150)
    (folder / "references" / "terms.md").write_text("TERM LIST\n" + "one term and another term\n" * 150)


def test_new_reference_is_sent_in_full_and_old_outputs_are_trimmed(workspace: Workspace, model: ModelServer) -> None:
    fill(workspace)
    model.follow(
        calls("use_skill", skill="ledger"),
        *(read(f"{name}.txt") for name in "abcd"),
        consult("references/rates.md"),
        consult("references/terms.md"),
        says("Done"),
    )

    assert workspace.agent("run", "--max-turns", "12", "Put the ledger in order") == 0

    assert "RATE TABLE" in results(model.received[6])[-1]
    assert "taken out" not in results(model.received[6])[-1]
    last = model.received[7]
    assert "TERM LIST" in results(last)[-1]
    assert "RATE TABLE" in text_of(last)
    assert "LEDGER RULE" in text_of(last)
    assert "characters taken out to save room" in text_of(last)
    assert [len(result) < 30_000 for result in results(last)] == [True] * 7


def test_output_that_was_read_again_stays_while_others_are_trimmed(workspace: Workspace, model: ModelServer) -> None:
    fill(workspace)
    model.follow(*(read(f"{name}.txt") for name in "abcdeacde"), says("Done"))

    assert workspace.agent("run", "--max-turns", "12", "Compare the files") == 0

    again = model.received[6]
    assert "a begins" in results(again)[-1]
    assert "a ends" in results(again)[-1]
    later = results(model.received[8])
    whole = [result for result in later if "a begins" in result and "a ends" in result and "taken out" not in result]
    assert len(whole) == 1
    assert "taken out" not in later[-1]


def test_trimmed_content_is_recorded_and_replay_builds_the_same_requests(
    workspace: Workspace, model: ModelServer
) -> None:
    fill(workspace)
    model.follow(*(read(f"{name}.txt") for name in "abcdea"), says("Done"))
    workspace.agent("run", "--max-turns", "12", "Compare the files")

    assert workspace.agent("replay", "latest", "--execute") == 0
    budgets = [event["payload"] for event in workspace.events() if event["event_type"] == "prompt_budget_computed"]
    assert "run:results of 2 turns shortened" in [label for budget in budgets for label in budget["trimmed"]]


def test_run_whose_reading_exceeds_the_window_is_reported(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(workspace)
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    settings["model"] |= {"max_context_tokens": 4_600, "response_headroom_tokens": 100}
    settings["skills"] = {"inline_body_tokens": 6_000}
    workspace.configure(**settings)
    workspace.add_skill("tome", "Know a long book.", body="A line of the book that goes on.\n" * 500)
    model.follow(calls("use_skill", skill="tome"), says("Done"))

    assert workspace.agent("run", "Read the book") != 0

    assert "the text of skill 'tome'" in "".join(capsys.readouterr())


@pytest.mark.parametrize("vendor", ["anthropic", "gemini"])
def test_request_to_a_server_without_token_counting_uses_the_estimate(
    vendor: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS[vendor], "k" * 12)
    with running_vendors() as vendors:
        window = {"max_context_tokens": 18_000, "response_headroom_tokens": 1_000}
        workspace.configure(model={"provider": vendor, "name": "m", "providers": vendors.settings(), **window})

        assert workspace.agent("run", "-q", "word " * 9_700) == 0

    assert vendors[vendor].counts > 0
    assert len(vendors[vendor].bodies) == 1
    assert workspace.event_types()[-1] == "run_finished"
