"""`agent run --detach` and `agent worker --once`: a stored run is driven by any worker."""

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any, cast

import pytest
from model_server import ModelServer, calls, says
from run_workspace import WAIT, Workspace

from agent_command import run_agent

type Capture = pytest.CaptureFixture[str]

ECHO = 'import json, sys\nprint(json.dumps({"summary": " ".join(sys.argv[1:])}))\n'


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENT_WORKER_BROKER_URL", "CELERY_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")


def rows(workspace: Workspace, capsys: Capture) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert workspace.agent("runs", "list", "--json") == 0
    return cast("list[dict[str, Any]]", json.loads(capsys.readouterr().out))


def test_a_detached_run_prints_its_id_and_a_worker_drives_it(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Done."))

    assert workspace.agent("run", "Greet", "--detach") == 0
    out, err = capsys.readouterr()
    (run_id,) = workspace.run_ids()
    assert out == f"{run_id}\n"
    assert f"agent runs watch {run_id}" in err
    assert model.received == []
    (waiting,) = rows(workspace, capsys)
    assert (waiting["status"], waiting["queue"], waiting["driver"]) == ("in_progress", "agent", "")

    assert workspace.agent("worker", "--once") == 0

    (ended,) = rows(workspace, capsys)
    assert (ended["status"], ended["turns"]) == ("completed", 2)
    assert workspace.agent("runs", "watch", run_id) == 0


def test_a_detached_run_keeps_its_original_settings(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(*[calls("script_run", skill_name="greeter", script_name="greet", args=[str(n)]) for n in range(4)])
    assert workspace.agent("run", "Greet", "--detach", "--max-turns", "2", "--output-format", "json") == 0
    begun = cast("dict[str, Any]", json.loads(capsys.readouterr().out))
    assert (begun["queue"], begun["exit_code"]) == ("agent", 0)

    assert workspace.agent("worker", "--once") == 0

    (ended,) = rows(workspace, capsys)
    assert (ended["status"], ended["turns"], ended["reason"]) == ("escalated", 2, "max_turns_exceeded")


def test_a_worker_ignores_other_queues_and_runs_driven_by_a_user(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    assert workspace.agent("run", "Greet", "--detach") == 0

    assert workspace.agent("worker", "--once", "--queue", "other") == 0
    assert [row["status"] for row in rows(workspace, capsys)] == ["in_progress"]
    assert workspace.agent("worker", "--once") == 0

    assert [row["status"] for row in rows(workspace, capsys)] == ["completed"]


def test_an_approval_wakes_a_detached_run(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    workspace.add_skill("echo", "Say it again with a script.", echo=ECHO)
    model.follow(calls("script_run", skill_name="echo", script_name="echo", args=["one"]), says("Done."))
    assert workspace.agent("run", "Greet", "--detach", "--profile", "guarded") == 0
    assert workspace.agent("worker", "--once") == 0
    (parked,) = rows(workspace, capsys)
    assert parked["status"] == "paused"
    assert workspace.agent("worker", "--once") == 0
    capsys.readouterr()
    assert workspace.agent("approvals", "list", "--json") == 0
    (asked,) = json.loads(capsys.readouterr().out)

    assert workspace.agent("approvals", "approve", asked["approval_id"]) == 0
    assert "continues when a worker picks it up" in capsys.readouterr().err
    assert workspace.agent("worker", "--once") == 0

    assert [row["status"] for row in rows(workspace, capsys)] == ["completed"]


def test_the_sweep_finds_a_decision_without_a_notification(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.add_skill("echo", "Say it again with a script.", echo=ECHO)
    model.follow(calls("script_run", skill_name="echo", script_name="echo", args=["one"]), says("I will not."))
    assert workspace.agent("run", "Greet", "--detach", "--profile", "guarded") == 0
    assert workspace.agent("worker", "--once") == 0
    # Decided in the database, as another program would.
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as database:
        database.execute("UPDATE approvals SET status = 'denied', decided_by = 'sql', reason = 'no'")
    database.close()

    assert workspace.agent("worker", "--once") == 0

    assert [row["status"] for row in rows(workspace, capsys)] == ["completed"]
    assert "script_executed" not in workspace.event_types()


def test_an_answer_is_stored_for_a_worker(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("ask_user", question="Which one?", fields={"colour": "text"}), says("Blue it is."))
    assert workspace.agent("run", "Paint", "--detach") == 0
    assert workspace.agent("worker", "--once") == 0
    (row,) = rows(workspace, capsys)
    assert row["status"] == "input_required"

    assert workspace.agent("resume", "latest", "--input", "colour=blue", "--detach") == 0
    assert capsys.readouterr().out == f"{row['run_id']}\n"
    assert workspace.agent("worker", "--once") == 0

    assert [row["status"] for row in rows(workspace, capsys)] == ["completed"]


def test_resuming_a_foreground_run_cannot_be_detached(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("ask_user", question="Which one?", fields={"colour": "text"}))
    assert workspace.agent("run", "Paint") == 4

    assert workspace.agent("resume", "latest", "--input", "colour=blue", "--detach") == 2
    assert "was not started with --detach" in capsys.readouterr().err


def test_a_run_that_cannot_be_built_fails_after_its_attempts(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    workspace.configure(**json.loads((workspace.folder / "agent.yaml").read_text()), worker={"max_attempts": 2})
    assert workspace.agent("run", "Greet", "--detach") == 0
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as database:
        database.execute("DELETE FROM blobs")
    database.close()
    skill = workspace.folder / "skills" / "greeter" / "SKILL.md"
    skill.write_text(skill.read_text(encoding="utf-8") + "\nMore.\n", encoding="utf-8")

    assert workspace.agent("worker", "--once") == 0

    (row,) = rows(workspace, capsys)
    assert (row["status"], row["reason"]) == ("failed", "too_many_attempts")


def test_a_stopped_worker_releases_its_run(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    """The current step finishes in its grace period; the next worker continues without repeating it."""
    fifo = workspace.folder / "pipe"
    os.mkfifo(fifo)
    workspace.add_skill("waiter", "Wait for words.", wait=WAIT)
    model.follow(
        calls("script_run", skill_name="waiter", script_name="wait", args=[str(fifo)]),
        says("Done."),
    )
    assert workspace.agent("run", "Wait", "--detach") == 0
    worker = workspace.start("worker")
    try:
        with fifo.open("w") as stream:  # opens as soon as the script reads
            worker.send_signal(signal.SIGTERM)
            stream.write("words")
        _, err = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.communicate()

    assert worker.returncode == 0
    assert "in_progress, turn 1" in err
    (row,) = rows(workspace, capsys)
    assert (row["status"], row["driver"]) == ("in_progress", "")
    assert workspace.agent("worker", "--once") == 0
    assert [row["status"] for row in rows(workspace, capsys)] == ["completed"]
    assert Path(f"{fifo}.effects").read_text() == "x"


def test_passwords_of_a_broker_are_not_shown(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Done."))
    password = "hunter" + "22-broker"

    for url in (f"sqla+sqlite:///{password}", f"ftp://me:{password}@host/"):
        variables = {**os.environ, "CELERY_BROKER_URL": url}
        ended = run_agent("run", "Greet", "--detach", cwd=workspace.folder, env=variables)
        assert ended.returncode == 2
        assert "CELERY_BROKER_URL" in ended.stderr
        assert password not in ended.stdout + ended.stderr

    unreachable = {**os.environ, "AGENT_WORKER_BROKER_URL": f"redis://:{password}@127.0.0.1:1/0"}
    ended = run_agent("run", "Greet", "--detach", cwd=workspace.folder, env=unreachable)
    assert ended.returncode == 0
    assert "does not answer" in ended.stderr
    assert "workers find it there" in ended.stderr
    assert password not in ended.stdout + ended.stderr
    assert workspace.agent("worker", "--once") == 0
    assert [row["status"] for row in rows(workspace, capsys)] == ["completed"]


def test_a_detached_task_prints_its_id_and_a_worker_drives_it(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write(".agent/tasks/greet/TASK.md", "---\nname: Greet\n---\n\nGreet somebody.\n")
    model.follow(says("Done."))

    assert workspace.agent("task", "run", "greet", "--detach") == 0
    (run_id,) = workspace.run_ids()
    assert capsys.readouterr().out == f"{run_id}\n"
    assert model.received == []

    assert workspace.agent("worker", "--once") == 0

    assert {row["status"] for row in rows(workspace, capsys)} == {"completed"}
    assert len(model.received) == 1
    assert workspace.agent("task", "run", "greet", "--detach", "--timeout", "5") == 2
