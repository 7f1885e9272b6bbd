"""Runs that call the code of skills: offline and by a model, with questions, rules, resumes and a kill."""

import fcntl
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace, close_after_reader

type Capture = pytest.CaptureFixture[str]

COUNT = """
def execute(context):
    with open(context.workspace / "effects", "a") as stream:
        stream.write(context.idempotency_key + "\\n")
    return {"outputs": {"summary": "counted to " + str(context.inputs["upto"])}}
"""
COUNTER = """
autonomy_level: implement
side_effects: {kinds: [writes_files], repeat: keyed}
interaction_outcomes: {allowed_intermediate_states: [input_required]}
input_schema:
  type: object
  properties:
    upto: {type: integer, minimum: 1, description: How far}
    label: {type: string}
  required: [upto]
"""
SLOW = """
def execute(context):
    with open(context.workspace / "effects", "a") as stream:
        stream.write("x")
    with open(context.workspace / "pipe") as stream:
        return {"outputs": {"summary": stream.read()}}
"""


def add_capability(workspace: Workspace, name: str, contract: str, impl: str) -> Path:
    folder = workspace.folder / "skills" / name
    folder.mkdir(parents=True)
    head = f"name: {name}\ndescription: Skill {name}, which counts things.\n{contract.strip()}\n"
    (folder / "SKILL.md").write_text(f"---\n{head}---\n\n# {name}\n", encoding="utf-8")
    (folder / "impl.py").write_text(impl, encoding="utf-8")
    return folder


def read_effects(workspace: Workspace) -> list[str]:
    path = workspace.folder / "effects"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def test_backbone_calls_a_bundled_skill_and_lists_its_artifacts(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", "schema-infer")
    (workspace.folder / "people.csv").write_text("id,zip\n1,012\n2,345\n", encoding="utf-8")

    assert workspace.agent("run", "--provider", "offline", "infer a json schema of the records in people.csv") == 0

    out = capsys.readouterr().out
    assert out.startswith(
        "schema-infer: Inferred a schema of 2 fields from people.csv (csv), checked against 2 records"
    )
    artifact = workspace.folder / "runs" / workspace.run_ids()[0] / "artifacts" / "schema.json"
    assert json.loads(artifact.read_text(encoding="utf-8"))["required"] == ["id", "zip"]
    assert "artifact_written" in workspace.event_types()


def test_question_of_a_skill_pauses_the_run_and_the_answer_continues_it(workspace: Workspace, capsys: Capture) -> None:
    add_capability(workspace, "counter", COUNTER, COUNT)

    assert workspace.agent("run", "--provider", "offline", "use the skill counter") == 4
    told = capsys.readouterr().err
    assert "waiting: Needed: upto (How far)" in told
    assert "--input upto=…" in told
    assert workspace.agent("resume", "latest", "--input", "upto=many") == 4
    assert "'many' is not of type 'integer' (at $.upto)" in capsys.readouterr().err
    assert read_effects(workspace) == []

    # Another process, which knows nothing but what was written down.
    process = workspace.start("resume", "latest", "--input", "upto=3")
    out, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert out == "counter: counted to 3\n"
    assert len(read_effects(workspace)) == 1
    assert workspace.agent("replay", "latest", "--execute") == 0


def test_text_stays_a_string_if_a_string_is_expected(workspace: Workspace, capsys: Capture) -> None:
    contract = COUNTER.replace("required: [upto]", "required: [label]")
    add_capability(workspace, "counter", contract, COUNT.replace('"upto"', '"label"'))
    workspace.agent("run", "--provider", "offline", "use the skill counter")

    assert workspace.agent("resume", "latest", "--input", "label=1.10") == 0

    assert capsys.readouterr().out == "counter: counted to 1.10\n"


def test_model_calls_the_skill_as_a_tool_or_through_use_skill(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    add_capability(workspace, "counter", COUNTER, COUNT)
    model.follow(
        calls("counter.invoke".replace(".", "__"), upto=2),
        calls("use_skill", skill="counter", reason="again", inputs={"upto": 5}),
        says("Done."),
    )

    assert workspace.agent("run", "Count") == 0

    assert capsys.readouterr().out == "Done.\n"
    offered = {tool["function"]["name"] for tool in model.received[0]["tools"]}
    assert "counter__invoke" in offered, offered
    results = [m["content"] for m in model.received[-1]["messages"] if m["role"] == "tool"]
    assert ["counted to 2" in results[0], "counted to 5" in results[1]] == [True, True]
    assert len(set(read_effects(workspace))) == 2


def test_guarded_run_asks_before_the_effects_of_a_skill(workspace: Workspace, model: ModelServer) -> None:
    add_capability(workspace, "counter", COUNTER, COUNT)
    model.follow(calls("use_skill", skill="counter", inputs={"upto": 5}), says("Done."))

    assert workspace.agent("run", "Count", "--profile", "guarded") == 3
    assert read_effects(workspace) == []
    approval = next(event for event in workspace.events() if event["event_type"] == "approval_requested")
    assert approval["payload"]["tool"] == "counter.invoke"
    assert workspace.agent("approvals", "approve", approval["payload"]["approval_id"]) == 0
    assert workspace.agent("resume", "latest") == 0
    assert len(read_effects(workspace)) == 1


def test_read_only_skill_needs_no_approval(workspace: Workspace, model: ModelServer) -> None:
    add_capability(workspace, "looker", "", "def execute(c):\n    return {'summary': 'seen'}\n")
    model.follow(calls("use_skill", skill="looker", inputs={}), says("Done."))

    assert workspace.agent("run", "Look", "--profile", "guarded") == 0


def test_tool_of_a_skill_can_be_disabled(workspace: Workspace, model: ModelServer) -> None:
    add_capability(workspace, "counter", COUNTER, COUNT)
    (workspace.folder / ".agent").mkdir()
    access = {"tools": {"counter.invoke": {"enabled": False}}}
    (workspace.folder / ".agent" / "tool-access.json").write_text(json.dumps(access), encoding="utf-8")
    model.follow(calls("use_skill", skill="counter", inputs={"upto": 5}), says("Done."))

    assert workspace.agent("run", "Count") == 0

    assert read_effects(workspace) == []
    assert "counter__invoke" not in {tool["function"]["name"] for tool in model.received[0]["tools"]}


def test_inputs_for_a_skill_without_code_activate_it(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("use_skill", skill="greeter", inputs={"who": "Ada"}), says("Done."))

    assert workspace.agent("run", "Greet") == 0

    assert "skill_invocation_started" in workspace.event_types()


def test_skill_with_an_invalid_contract_is_readable_but_its_code_is_not_used(
    workspace: Workspace, capsys: Capture
) -> None:
    add_capability(workspace, "counter", "execution_mode: magic", COUNT)

    assert workspace.agent("run", "--provider", "offline", "use the skill counter") == 1

    assert "the tool 'counter.invoke' is not offered in this run" in capsys.readouterr().out


def kill_while_it_works(workspace: Workspace) -> None:
    """Kill a run during its skill `slow`; the next attempt completes."""
    pipe = workspace.folder / "pipe"
    os.mkfifo(pipe)
    process = workspace.start("run", "--provider", "offline", "use the skill slow")
    writer = os.open(pipe, os.O_WRONLY)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    close_after_reader(writer)
    pipe.unlink()
    pipe.write_text("ended", encoding="utf-8")


@pytest.mark.parametrize("repeat", ["keyed", "opaque"])
def test_run_killed_during_a_skill_call_continues_or_asks(workspace: Workspace, capsys: Capture, repeat: str) -> None:
    folder = add_capability(workspace, "slow", COUNTER.replace("keyed", repeat).partition("input_schema")[0], SLOW)
    kill_while_it_works(workspace)

    if repeat == "opaque":
        assert workspace.agent("resume", "latest") == 4
        assert "is in doubt" in capsys.readouterr().err
        assert len((workspace.folder / "effects").read_text(encoding="utf-8")) == 1
        assert workspace.agent("resume", "latest", "--answer", "retry") == 0
    else:
        assert workspace.agent("resume", "latest") == 0

    assert capsys.readouterr().out.endswith("slow: ended\n")
    assert folder.is_dir()


def test_repeatable_step_waits_for_a_program_that_survived_the_kill(workspace: Workspace, capsys: Capture) -> None:
    add_capability(workspace, "slow", COUNTER.partition("input_schema")[0], SLOW)
    kill_while_it_works(workspace)
    (lock,) = workspace.folder.glob("runs/*/spool/*.lock")
    ours = os.open(lock, os.O_RDWR)
    fcntl.flock(ours, fcntl.LOCK_EX)  # like a wrapper that has not ended yet

    with ThreadPoolExecutor(1) as beside:
        released = beside.submit(_close_when_resumed, workspace, ours)
        code = workspace.agent("resume", "latest")
        released.result(timeout=60)

    assert code == 0
    assert capsys.readouterr().out.endswith("slow: ended\n")


def _close_when_resumed(workspace: Workspace, descriptor: int) -> None:
    for _ in range(1000):
        if "run_resumed" in workspace.event_types():
            break
        Event().wait(0.03)
    os.close(descriptor)


def test_dry_run_lists_the_tool_and_calls_nothing(workspace: Workspace, capsys: Capture) -> None:
    add_capability(workspace, "counter", COUNTER, COUNT)

    assert workspace.agent("run", "--dry-run", "Count", "--output-format", "json") == 0

    assert read_effects(workspace) == []
    assert "plan" in json.loads(capsys.readouterr().out)


def test_call_to_an_untrusted_skill_is_denied(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = add_capability(workspace, "counter", COUNTER, COUNT)
    home = Path(os.environ["HOME"]) / ".agent" / "skills"
    home.mkdir(parents=True)
    shutil.move(folder, home / "counter")
    monkeypatch.setenv("AGENT_SKILLS", "all-untrusted")

    workspace.agent("run", "--provider", "offline", "use the skill counter")
    workspace.agent("resume", "latest", "--input", "upto=1")

    assert read_effects(workspace) == []
    denied = [event for event in workspace.events() if event["event_type"] == "skill_step_executed"]
    assert denied[-1]["payload"]["status"] == "denied"
