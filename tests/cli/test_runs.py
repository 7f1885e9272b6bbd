"""`agent runs` and `agent replay --event-stream`: find, show, follow, end and print runs."""

import json
import os
from pathlib import Path

import anyio
import pytest
from model_server import ModelServer, calls, says
from run_workspace import WAIT, Workspace

from agent_command import run_agent
from metier.cli.shared.open_host import open_host
from metier.runtime.runs import open_runtime
from metier.store.base import RunRow

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fifo(workspace: Workspace, model: ModelServer) -> Path:
    workspace.add_skill("waiter", "Wait for somebody.", wait=WAIT)
    path = workspace.folder / "pipe"
    os.mkfifo(path)
    model.follow(calls("script_run", skill_name="waiter", script_name="wait", args=[str(path)]), says("Done."))
    return path


def test_the_list_is_newest_first_and_can_be_filtered(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."), calls("ask_user", question="Which?"))
    workspace.agent("run", "first", "-q")
    workspace.agent("run", "second", "-q")
    capsys.readouterr()

    assert workspace.agent("runs", "list", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["task"], row["status"]) for row in rows} == {("first", "completed"), ("second", "input_required")}

    assert workspace.agent("runs", "list", "--status", "input_required") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("second")
    assert workspace.agent("runs", "list", "--limit", "1", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert workspace.agent("runs", "list", "--status", "odd") == 2


def leave_run(run_id: str, *, queue: str = "", is_claimed: bool = False) -> None:
    """Create a run that no process drives. A claimed one was started by a worker that was lost."""

    async def leave() -> None:
        async with open_runtime(open_host(None)) as runtime:
            now = runtime.host.clock.now()
            row = RunRow(
                run_id=run_id,
                context_id=run_id,
                status="pending",
                task="Go",
                queue=queue,
                created_at=now,
                updated_at=now,
            )
            await runtime.store.create_run(row)
            if is_claimed:
                lease = await runtime.store.take_lease(run_id, owner="worker-7", seconds=60)
                await runtime.store.update_run(lease, {"status": "in_progress"})
                await runtime.store.renew_lease(lease, seconds=0.000_001)

    anyio.run(leave)


def test_every_status_that_the_list_shows_is_accepted_as_a_filter(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    workspace.agent("run", "Greet", "-q")
    leave_run("20990101-000000-killed", is_claimed=True)
    leave_run("20990101-000000-queued", queue="default")
    leave_run("20990101-000000-lost", queue="default", is_claimed=True)
    capsys.readouterr()
    assert workspace.agent("runs", "list") == 0
    shown = {line.split()[1]: line for line in capsys.readouterr().out.splitlines()}
    assert set(shown) == {"completed", "interrupted", "queued", "worker_lost"}

    for status, line in shown.items():
        assert workspace.agent("runs", "list", "--status", status) == 0
        assert capsys.readouterr().out.splitlines() == [line], status
    assert workspace.agent("runs", "list", "--status", "in_progress", "--json") == 0
    listed = {(row["status"], row["interrupted"], row["worker_lost"]) for row in json.loads(capsys.readouterr().out)}
    assert listed == {("in_progress", True, False), ("in_progress", False, True)}
    assert workspace.agent("runs", "list", "--status", "") == 2


def test_a_rare_status_is_found_behind_many_other_runs(workspace: Workspace, capsys: Capture) -> None:
    async def fill() -> None:
        async with open_runtime(open_host(None)) as runtime:
            now = runtime.host.clock.now()
            for number in range(30):
                row = RunRow(
                    run_id=f"20990101-000000-{number:04}", context_id="c", status="pending", task="Go",
                    queue="" if number in (0, 1) else "default", created_at=now, updated_at=now,
                )  # fmt: skip
                await runtime.store.create_run(row)

    anyio.run(fill)

    assert workspace.agent("runs", "list", "--status", "interrupted", "--limit", "2") == 0

    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "20990101-000000-0001", "20990101-000000-0000",
    ]  # fmt: skip


def test_a_workspace_without_runs_has_an_empty_list(workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "list", "--json") == 0

    assert json.loads(capsys.readouterr().out) == []


def test_show_prints_steps_cost_and_how_to_answer(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(
        calls("script_run", skill_name="greeter", script_name="greet"), calls("ask_user", question="Which one?")
    )
    workspace.agent("run", "Greet", "-q")
    capsys.readouterr()

    assert workspace.agent("runs", "show", "latest") == 0
    out = capsys.readouterr().out
    assert "\n✓ script_run greeter" in out
    assert "\n    hello from the script\n" in out
    assert "waiting: Which one?" in out
    assert f"next:    agent resume {workspace.run_ids()[0]} --input answer=…" in out

    assert workspace.agent("runs", "show", "latest", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["waits_for"] == {"kind": "input", "reason": "Which one?", "run_id": shown["run_id"]}
    assert shown["steps"][0]["status"] == "succeeded"


def test_watch_follows_a_run_driven_by_another_process(workspace: Workspace, fifo: Path) -> None:
    driver = workspace.start("run", "Wait")
    pipe = os.open(fifo, os.O_WRONLY)
    watcher = workspace.start("runs", "watch", "latest", "--json")
    assert watcher.stdout is not None
    seen: list[str] = []
    while "step_started" not in seen:
        seen.append(json.loads(watcher.stdout.readline())["event_type"])
    os.write(pipe, b"go")
    os.close(pipe)
    rest, _ = watcher.communicate(timeout=100)
    driver.communicate(timeout=100)

    seen += [json.loads(line)["event_type"] for line in rest.splitlines()]
    assert (watcher.returncode, driver.returncode) == (0, 0)
    assert seen == workspace.event_types()


def test_cancel_ends_a_paused_run(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("ask_user", question="Which?"))
    workspace.agent("run", "Count", "-q")
    capsys.readouterr()

    assert workspace.agent("runs", "cancel", "latest") == 0
    assert capsys.readouterr().out.endswith("is canceled\n")
    assert workspace.agent("runs", "cancel", "latest") == 2
    assert workspace.agent("resume", "latest", "-q") == 1

    failed = workspace.events()[-1]["payload"]
    assert (failed["reason"], failed["status"]) == ("canceled", "canceled")
    assert (
        json.loads((workspace.folder / "runs" / workspace.run_ids()[0] / "run.json").read_text())["status"]
        == "canceled"
    )


def test_cancel_ends_an_old_row_without_a_journal(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    run_id = "20260101-000000-killed"
    leave_run(run_id)

    assert workspace.agent("runs", "cancel", run_id) == 0

    assert capsys.readouterr().out == f"{run_id} is canceled\n"
    assert workspace.agent("resume", run_id, "-q") != 0
    assert model.received == []


def test_cancel_ends_a_run_of_another_process_with_its_children(
    workspace: Workspace, fifo: Path, capsys: Capture
) -> None:
    driver = workspace.start("run", "Wait")
    pipe = os.open(fifo, os.O_WRONLY)

    assert workspace.agent("runs", "cancel", "latest", "--json") == 0

    assert json.loads(capsys.readouterr().out)["status"] == "canceled"
    _, err = driver.communicate(timeout=100)
    assert driver.returncode == 1
    assert "Canceled by" in err
    with pytest.raises(BrokenPipeError):
        os.write(pipe, b"x")
    os.close(pipe)
    assert not list((workspace.folder / "runs" / workspace.run_ids()[0]).glob("cancel*"))


def test_replay_prints_the_stored_events_without_requests(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))
    workspace.agent("run", "Greet", "-q")
    capsys.readouterr()

    assert workspace.agent("replay", "latest", "--event-stream", "--speed", "1000") == 0
    assert "run_finished" in capsys.readouterr().out
    assert workspace.agent("replay", "latest", "--json") == 0
    shown = [json.loads(line)["event_type"] for line in capsys.readouterr().out.splitlines()]

    assert shown == workspace.event_types()
    assert len(model.received) == 1


def test_a_damaged_log_is_named_with_its_line(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("Done."))
    workspace.agent("run", "Greet", "-q")
    path = workspace.folder / "runs" / workspace.run_ids()[0] / "events.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{broken\n", *lines[2:]]))

    done = run_agent("replay", "latest", cwd=workspace.folder)

    assert done.returncode == 1
    assert "Line 2" in done.stderr


def test_cost_of_a_model_without_a_price_is_unknown_and_not_zero(
    workspace: Workspace, model: ModelServer, capfd: pytest.CaptureFixture[str]
) -> None:
    model.follow(says("done"))
    workspace.agent("run", "Do it", "--output-format", "json")
    outcome = json.loads(capfd.readouterr().out)
    workspace.agent("runs", "list")
    listed = capfd.readouterr().out
    workspace.agent("runs", "show", "latest")
    shown = capfd.readouterr().out

    assert outcome["cost_usd"] is None
    assert "cost unknown" in listed
    assert "cost unknown" in shown
    assert "$0.000" not in listed + shown
