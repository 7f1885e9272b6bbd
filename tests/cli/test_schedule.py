"""`agent schedule` and `.agent/schedules.yaml`, with a worker that fires due schedules."""

import json
import sqlite3
import subprocess
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from cloned_folder import fill
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]

FILE = """schedules:
  digest:
    cron: "0 6 * * *"
    timezone: Europe/Berlin
    prompt: Write the digest.
"""
TASK = "---\nname: Greet\ninputs:\n  - name: who\n---\n\nGreet {{inputs.who}}.\n"


@pytest.fixture(autouse=True)
def _no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENT_WORKER_BROKER_URL", "CELERY_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")


def read(workspace: Workspace, capsys: Capture, *words: str) -> Any:
    capsys.readouterr()
    assert workspace.agent(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def let_time_pass(workspace: Workspace, **times: float) -> None:
    """Move the last check of the schedules back by this time."""
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as database:
        moments = database.execute("SELECT name, decided_to FROM schedule_marks")
        for name, decided in moments.fetchall():
            earlier = datetime.fromisoformat(decided) - timedelta(**times)
            text = earlier.astimezone(UTC).isoformat(timespec="microseconds")
            database.execute("UPDATE schedule_marks SET since = ?, decided_to = ? WHERE name = ?", (text, text, name))
    database.close()


def test_a_worker_fires_a_due_schedule_once_and_records_it(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Written."))
    assert workspace.agent("schedule", "add", "digest", "Write the digest", "--every", "1h") == 0
    out = capsys.readouterr().out
    assert "added:   digest  every 3600 s" in out
    assert workspace.agent("worker", "--once") == 0
    assert model.received == []
    let_time_pass(workspace, hours=1)

    assert workspace.agent("worker", "--once") == 0
    assert workspace.agent("worker", "--once") == 0

    (run_id,) = workspace.run_ids()
    (firing,) = read(workspace, capsys, "schedule", "show", "digest")["firings"]
    assert (firing["outcome"], firing["run_id"], firing["status"]) == ("started", run_id, "completed")
    assert len(model.received) == 1
    assert "Write the digest" in json.dumps(model.received[0])


def test_missed_times_are_skipped_or_caught_up_once(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Written."))
    for name, missed in (("forgets", "skip"), ("makes-up", "once")):
        assert workspace.agent("schedule", "add", name, "Go", "--every", "1h", "--missed", missed) == 0
    let_time_pass(workspace, hours=5, minutes=30)

    assert workspace.agent("worker", "--once") == 0

    listed = {name: read(workspace, capsys, "schedule", "show", name)["firings"] for name in ("forgets", "makes-up")}
    assert [firing["outcome"] for firing in listed["forgets"]] == ["missed"] * 5
    assert [firing["outcome"] for firing in listed["makes-up"]] == ["started", *["missed"] * 4]
    assert len(workspace.run_ids()) == 1


@pytest.mark.parametrize(
    ("overlap", "outcomes", "statuses"),
    [
        ("skip", ["skipped", "started"], ["paused"]),
        ("queue", ["due", "started"], ["paused"]),
        ("cancel", ["started", "started"], ["canceled", "paused"]),
    ],
)
def test_a_due_time_during_a_paused_run_follows_the_overlap_rule(
    workspace: Workspace, model: ModelServer, capsys: Capture, overlap: str, outcomes: list[str], statuses: list[str]
) -> None:
    """A run that waits for an approval has not ended."""
    model.follow(*[calls("script_run", skill_name="greeter", script_name="greet", args=[str(n)]) for n in range(9)])
    words = ("--every", "1m", "--overlap", overlap, "--profile", "guarded")
    assert workspace.agent("schedule", "add", "greet", "Greet", *words) == 0
    assert workspace.agent("schedule", "run-now", "greet") == 0
    assert workspace.agent("worker", "--once") == 0
    let_time_pass(workspace, minutes=1)

    for _ in range(3):
        assert workspace.agent("worker", "--once") == 0

    shown = read(workspace, capsys, "schedule", "show", "greet")
    assert sorted(firing["outcome"] for firing in shown["firings"]) == outcomes
    rows = read(workspace, capsys, "runs", "list")
    assert sorted(row["status"] for row in rows) == statuses


def test_a_paused_schedule_does_not_fire_and_does_not_catch_up(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    assert workspace.agent("schedule", "add", "often", "Go", "--every", "1m", "--missed", "once") == 0
    assert workspace.agent("schedule", "pause", "often") == 0
    let_time_pass(workspace, minutes=10)
    assert workspace.agent("worker", "--once") == 0
    assert read(workspace, capsys, "schedule", "show", "often")["next"] == []

    assert workspace.agent("schedule", "resume", "often") == 0
    assert workspace.agent("worker", "--once") == 0

    assert workspace.run_ids() == []
    assert workspace.agent("schedule", "remove", "often") == 0
    assert workspace.agent("schedule", "show", "often") == 2
    assert "No schedule is called 'often'" in capsys.readouterr().err


def test_a_schedule_can_be_run_now_and_keeps_its_times(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    workspace.write(
        ".agent/tasks/greet/TASK.md", "---\nname: Greet\ninputs:\n  - name: who\n---\n\nGreet {{inputs.who}}.\n"
    )
    model.follow(says("Done."))
    words = ("--task", "greet", "--input", "who=Ada", "--cron", "@yearly")
    assert workspace.agent("schedule", "add", "yearly", *words) == 0
    before = read(workspace, capsys, "schedule", "show", "yearly")["next"]

    started = read(workspace, capsys, "schedule", "run-now", "yearly")
    assert workspace.agent("worker", "--once") == 0

    shown = read(workspace, capsys, "schedule", "show", "yearly")
    assert shown["next"] == before
    (firing,) = shown["firings"]
    assert (firing["run_id"], firing["status"], firing["reason"]) == (started["run_id"], "completed", "by hand")
    assert "Greet Ada" in json.dumps(model.received[0])


def test_an_invalid_schedule_is_rejected_when_added_and_a_later_failure_is_recorded(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    assert workspace.agent("schedule", "add", "a", "Go", "--every", "1h", "--agent", "ghost") == 2
    assert workspace.agent("schedule", "add", "a", "Go", "--cron", "61 * * * *") == 2
    assert "is not a cron expression" in capsys.readouterr().err
    assert workspace.agent("schedule", "add", "a", "Go", "--cron", "0 3 * *") == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert "'0 3 * *' is not a cron expression" in error
    assert "'0 3 * * *' is every day at 03:00" in hint
    agent = workspace.write(".agent/agents/writer/AGENT.md", "---\nname: writer\ndescription: Writes.\n---\n\nWrite.\n")
    assert workspace.agent("schedule", "add", "a", "Go", "--every", "1m", "--agent", "writer") == 0
    assert workspace.agent("schedule", "add", "a", "Go", "--every", "1m") == 2
    agent.unlink()
    let_time_pass(workspace, minutes=1)

    assert workspace.agent("worker", "--once") == 0

    assert "schedule a: no run was started" in capsys.readouterr().err
    (firing,) = read(workspace, capsys, "schedule", "show", "a")["firings"]
    assert firing["outcome"] == "failed"
    assert "writer" in firing["reason"]


def test_schedules_of_a_file_are_listed_fired_and_checked(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    workspace.write(".agent/schedules.yaml", FILE)
    (listed,) = cast("list[dict[str, Any]]", read(workspace, capsys, "schedule", "list"))
    assert (listed["name"], listed["origin"], listed["firings"]) == ("digest", "file", [])
    assert workspace.agent("schedule", "remove", "digest") == 2
    assert "defined in schedules.yaml" in capsys.readouterr().err
    let_time_pass(workspace, days=1)
    workspace.write(".agent/schedules.yaml", FILE + "    missed: once\n")

    assert workspace.agent("worker", "--once") == 0
    assert len(workspace.run_ids()) == 1

    workspace.write(".agent/schedules.yaml", FILE + "    overlap: pile\n    task: ghost\n    colour: red\n")
    assert workspace.agent("schedule", "list") == 1
    err = capsys.readouterr().err
    assert "schedules.yaml:8: error: Unknown key 'colour'" in err
    assert workspace.agent("validate") == 1


def test_schedules_of_a_clone_fire_only_after_it_is_trusted_unchanged(
    clone: Workspace, model: ModelServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.follow(says("Done."))
    clone = fill(clone, {".agent/schedules.yaml": FILE + "    missed: once\n"}, monkeypatch)
    (shown,) = cast("list[dict[str, Any]]", read(clone, capsys, "schedule", "list"))
    assert "not trusted" in shown["withheld"]
    let_time_pass(clone, days=1)
    assert clone.agent("worker", "--once") == 0
    assert clone.agent("schedule", "run-now", shown["name"]) == 2
    assert clone.run_ids() == []

    assert clone.agent("trust") == 0
    assert "Write the digest" in capsys.readouterr().out
    assert clone.agent("worker", "--once") == 0
    assert len(clone.run_ids()) == 1

    (clone.folder / ".agent" / "schedules.yaml").write_text(FILE.replace("digest", "other"), encoding="utf-8")
    (shown,) = cast("list[dict[str, Any]]", read(clone, capsys, "schedule", "list"))
    assert "changed since you trusted" in shown["withheld"]


def test_an_unreadable_schedule_is_listed_and_does_not_stop_a_worker(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    for name in ("newer", "plain"):
        assert workspace.agent("schedule", "add", name, "Go", "--every", "1m") == 0
    let_time_pass(workspace, minutes=1)
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as database:
        database.execute(
            """UPDATE schedules SET definition = '{"name": "newer", "moon": "full"}' WHERE name = 'newer'"""
        )
    database.close()

    assert workspace.agent("worker", "--once") == 0

    listed = cast("list[dict[str, Any]]", read(workspace, capsys, "schedule", "list"))
    assert [len(schedule["firings"]) for schedule in listed] == [0, 1]
    assert "cannot be used" in listed[0]["withheld"]


def test_a_running_worker_fires_a_schedule(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    assert workspace.agent("schedule", "add", "tick", "Go", "--every", "1s") == 0
    worker = workspace.start("worker")
    try:
        assert worker.stderr is not None
        for line in worker.stderr:
            if "completed" in line:
                break
    finally:
        worker.terminate()
        try:
            worker.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.communicate()

    assert workspace.run_ids()
