"""Skill files are pinned by hash: a paused run continues with changed ones only after acceptance."""

import json
import os
import shutil
from pathlib import Path

import anyio
import pytest
from chat_pty import ENTER, agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

from metier.cli.main import run
from metier.cli.shared.open_host import open_host
from metier.engine.entries.entry import Entry
from metier.engine.entries.run import RunPaused
from metier.runtime.runs import open_runtime
from metier.skills.skill_trust import digest_tree

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

OLD = 'print("the old script ran")\n'
NEW = 'print("the new script ran")\n'
ACCEPT = "--accept-changed-skills"


@pytest.fixture
def waiting(workspace: Workspace, model: ModelServer) -> str:
    """A run that asks a question and runs a script after the answer."""
    workspace.configure(model=use_model(model), runtime=QUICK)
    workspace.add_skill("writer", "Write a line.", write=OLD)
    return park(workspace, model)


def park(workspace: Workspace, model: ModelServer, *flags: str) -> str:
    run_script = calls("script_run", skill_name="writer", script_name="write", args=[])
    model.follow(calls("ask_user", question="Which line?"), run_script, says("Done."))
    assert workspace.agent("run", "Write a line", "--quiet", *flags) == 4
    return workspace.run_ids()[-1]


def go_on(workspace: Workspace, run_id: str, *flags: str) -> int:
    return workspace.agent("resume", run_id, "--input", "answer=the first", *flags)


def change(folder: Path) -> None:
    (folder / "scripts" / "write.py").write_text(NEW, encoding="utf-8")


def said(model: ModelServer) -> str:
    """Return the script's output from the model's view; empty if it didn't run."""
    results = [message["content"] for message in model.received[-1]["messages"] if message["role"] == "tool"]
    return "new" if "the new script ran" in str(results) else "old" if "the old script ran" in str(results) else ""


def answer_read(model: ModelServer) -> list[str]:
    """Return the answer to the model's question from the last request."""
    results = [str(message["content"]) for message in model.received[-1]["messages"] if message["role"] == "tool"]
    return [json.loads(text)["answer"] for text in results if text.startswith('{"answer"')]


def append_entry(run_id: str, entry: Entry) -> None:
    """Write an entry like another process that drives the run briefly."""

    async def append() -> None:
        async with open_runtime(open_host(None)) as runtime, runtime.writing(run_id) as log:
            await log.record(entry)

    anyio.run(append)


def record(workspace: Workspace, run_id: str) -> dict[str, dict[str, str]]:
    return json.loads((workspace.folder / "runs" / run_id / "run.json").read_text(encoding="utf-8"))


def test_the_file_tree_of_every_skill_is_recorded(workspace: Workspace, model: ModelServer, waiting: str) -> None:
    tree = digest_tree(workspace.folder / "skills" / "writer").tree

    assert record(workspace, waiting)["definitions"]["code:writer"] == tree
    assert workspace.events()[0]["payload"]["pins"]["code:writer"] == tree
    assert go_on(workspace, waiting, "--quiet") == 0
    assert said(model) == "old"


def test_a_script_that_changed_during_a_pause_runs_only_after_acceptance(
    workspace: Workspace, model: ModelServer, waiting: str, capsys: Capture
) -> None:
    change(workspace.folder / "skills" / "writer")
    capsys.readouterr()

    for flags in (["--input", "answer=the first"], []):
        assert workspace.agent("resume", waiting, *flags) == 4
        told = capsys.readouterr().err
        assert "The files of skill 'writer' changed since the run began" in told
        assert f"agent resume {waiting} {ACCEPT}" in told
    assert said(model) == ""
    assert workspace.event_types().count("run_paused") == 2

    assert workspace.agent("resume", waiting, ACCEPT, "--quiet") == 0
    assert said(model) == "new"
    assert answer_read(model) == ["the first"]
    accepted = next(event for event in workspace.events() if event["event_type"] == "skill_code_accepted")
    tree = digest_tree(workspace.folder / "skills" / "writer").tree
    assert (
        accepted["payload"]["code"]
        == {"code:writer": tree}
        == {"code:writer": record(workspace, waiting)["definitions"]["code:writer"]}
    )
    assert workspace.agent("replay", waiting, "--execute") == 0


def test_an_added_file_is_a_change_and_the_pinned_text_of_a_skill_is_not(
    workspace: Workspace, model: ModelServer, waiting: str
) -> None:
    folder = workspace.folder / "skills" / "writer"
    text = (folder / "SKILL.md").read_text(encoding="utf-8")
    (folder / "SKILL.md").write_text(text + "\nMore words.\n", encoding="utf-8")
    (folder / "scripts" / "json.py").write_text("raise SystemExit\n", encoding="utf-8")
    assert go_on(workspace, waiting, "--quiet") == 4

    (folder / "scripts" / "json.py").unlink()
    assert workspace.agent("resume", waiting, "--quiet") == 0
    assert said(model) == "old"
    assert "pinned_definition_used" in workspace.event_types()


def test_a_skill_in_a_folder_of_its_own_is_asked_about_too(
    workspace: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK)
    workspace.add_skill("writer", "Write a line.", write=OLD)
    shutil.move(workspace.folder / "skills", tmp_path / "shared")
    run_id = park(workspace, model, "--skills-dir", str(tmp_path / "shared"))
    change(tmp_path / "shared" / "writer")

    assert go_on(workspace, run_id, "--quiet") == 4
    assert workspace.agent("resume", run_id, ACCEPT, "--quiet") == 0
    assert said(model) == "new"


def test_trusting_a_changed_home_skill_does_not_accept_it_for_the_run(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK)
    made = workspace.add_skill("writer", "Write a line.", write=OLD)
    folder = Path(os.environ["HOME"]) / ".agent" / "skills" / "writer"
    folder.parent.mkdir(parents=True)
    shutil.move(made, folder)
    monkeypatch.setenv("AGENT_SKILLS", "writer")
    assert run(["skill", "trust", "writer", "--yes"]) == 0
    run_id = park(workspace, model)
    change(folder)
    assert run(["skill", "trust", "writer", "--yes"]) == 0

    assert go_on(workspace, run_id, "--quiet") == 4
    assert said(model) == ""
    assert workspace.agent("resume", run_id, ACCEPT, "--quiet") == 0
    assert said(model) == "new"


def test_a_worker_pauses_a_run_with_changed_code_and_does_not_claim_it_again(
    workspace: Workspace, model: ModelServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")
    workspace.add_skill("writer", "Write a line.", write=OLD)
    model.follow(calls("script_run", skill_name="writer", script_name="write", args=[]), says("Done."))
    assert workspace.agent("run", "Write a line", "--detach") == 0
    change(workspace.folder / "skills" / "writer")

    for _ in range(2):
        assert workspace.agent("worker", "--once") == 0
    assert model.received == []
    assert workspace.events()[-1]["payload"]["kind"] == "changed_code"
    assert workspace.event_types().count("run_paused") == 1

    assert workspace.agent("resume", "latest", "--detach", ACCEPT) == 0
    assert workspace.agent("worker", "--once") == 0
    assert said(model) == "new"


def test_a_user_at_a_terminal_is_asked_about_changed_code(
    workspace: Workspace, model: ModelServer, waiting: str
) -> None:
    change(workspace.folder / "skills" / "writer")
    with agent_terminal(workspace.folder, "resume", waiting, "--input", "answer=x") as terminal:
        terminal.wait_for("Continue with the new files? ")
        terminal.type("n" + ENTER)
        assert terminal.wait_for_end() == 4
    assert said(model) == ""

    with agent_terminal(workspace.folder, "resume", waiting) as terminal:
        terminal.wait_for("Continue with the new files? ")
        terminal.type("y" + ENTER)
        assert terminal.wait_for_end() == 0
    assert said(model) == "new"
    assert answer_read(model) == ["x"]


def test_acceptance_for_a_task_covers_its_waiting_step(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.add_skill("writer", "Write a line.", write=OLD)
    rule = "tool_approvals:\n  rules:\n    - {tool: script_run, allow: true}\n"
    workspace.write(".agent/tasks/line/TASK.md", f"---\nname: Line\n{rule}---\n\nWrite a line.\n")
    run_script = calls("script_run", skill_name="writer", script_name="write", args=[])
    model.follow(calls("ask_user", question="Which line?"), run_script, says("Done."))
    assert workspace.agent("task", "run", "line", "-q") == 4
    change(workspace.folder / "skills" / "writer")

    task_run = workspace.run_ids()[-1]
    capsys.readouterr()

    assert go_on(workspace, task_run) == 4
    told = capsys.readouterr().err
    assert "The files of skill 'writer' changed since the run began" in told
    assert f"agent resume {task_run} {ACCEPT}" in told
    assert workspace.events(task_run)[-1]["payload"]["kind"] == "changed_code"
    assert len(model.received) == 1
    assert workspace.agent("resume", task_run, ACCEPT, "-q") == 0
    assert said(model) == "new"
    assert answer_read(model) == ["the first"]


def test_accepting_the_change_before_the_answer_leaves_the_question_open(
    workspace: Workspace, model: ModelServer, waiting: str, capsys: Capture
) -> None:
    change(workspace.folder / "skills" / "writer")

    for flags in ([], [ACCEPT], []):
        capsys.readouterr()
        assert workspace.agent("resume", waiting, *flags) == 4
        assert f"agent resume {waiting} --input answer=" in capsys.readouterr().err
    assert go_on(workspace, waiting, "--quiet") == 0
    assert said(model) == "new"
    assert workspace.agent("replay", waiting, "--execute") == 0


def test_a_run_paused_by_an_earlier_version_for_changed_files_asks_again(
    workspace: Workspace, model: ModelServer, waiting: str, capsys: Capture
) -> None:
    reason = "The files of skill 'writer' changed since the run began"
    append_entry(waiting, RunPaused(pause="changed_code", reason=reason))
    change(workspace.folder / "skills" / "writer")
    capsys.readouterr()

    assert workspace.agent("resume", waiting, ACCEPT) == 4
    assert "waiting: Which line?" in capsys.readouterr().err
    assert go_on(workspace, waiting, "--quiet") == 0
    assert said(model) == "new"
    assert workspace.agent("replay", waiting, "--execute") == 0


def test_a_step_answered_before_the_changed_files_are_accepted_keeps_its_answer(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    workspace.add_skill("writer", "Write a line.", write=OLD)
    model.follow(calls("Write", path="a.txt", content="x"), says("Done."))
    assert workspace.agent("run", "Write a file", "--quiet") == 3
    run_id = workspace.run_ids()[-1]
    change(workspace.folder / "skills" / "writer")
    asked = next(event for event in workspace.events() if event["event_type"] == "approval_requested")
    assert workspace.agent("approvals", "approve", asked["payload"]["approval_id"]) == 0

    assert workspace.agent("resume", run_id) == 4
    assert "approval_decided" in workspace.event_types()
    assert workspace.agent("resume", run_id, ACCEPT, "--quiet") == 0
    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "x"
