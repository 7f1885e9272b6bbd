"""`agent run --detach` without a worker: one starts automatically and exits; `agent runs attach`."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from chat_pty import agent_terminal
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


def find_workers(folder: Path) -> list[int]:
    """Return worker processes that were started automatically in this folder."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_worker = b"--until-idle" in (process / "cmdline").read_bytes()
            if is_worker and (process / "cwd").readlink() == folder:
                found.append(int(process.name))
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def _tidy(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AGENT_WORKER_BROKER_URL", "CELERY_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AGENT_WORKER_IDLE_SECONDS", "1")
    yield
    for pid in find_workers(workspace.folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def statuses(workspace: Workspace, capsys: Capture) -> list[str]:
    capsys.readouterr()
    assert workspace.agent("runs", "list", "--json") == 0
    rows = cast("list[dict[str, Any]]", json.loads(capsys.readouterr().out))
    return [row["status"] for row in rows]


@pytest.mark.slow
def test_a_worker_starts_automatically_processes_the_queue_and_exits(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("Done."))

    for _ in range(2):
        assert workspace.agent("run", "Greet", "--detach") == 0
    wait_for(lambda: statuses(workspace, capsys) == ["completed"] * 2)

    # One worker for all of them: of several that started at once, one stays.
    wait_for(lambda: len(find_workers(workspace.folder)) <= 1)
    wait_for(lambda: find_workers(workspace.folder) == [])


def test_no_worker_starts_automatically_if_the_settings_disable_it(
    workspace: Workspace, model: ModelServer, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_WORKER_AUTOSTART", "false")
    model.follow(says("Done."))

    assert workspace.agent("run", "Greet", "--detach") == 0

    assert find_workers(workspace.folder) == []
    assert not (workspace.folder / "runs" / "worker.log").exists()
    assert statuses(workspace, capsys) == ["in_progress"]


@pytest.mark.slow
def test_a_user_who_attaches_to_a_run_sees_it_and_answers_its_questions(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(
        calls("ask_user", question="Which colour?", fields={"colour": "text"}),
        calls("script_run", skill_name="greeter", script_name="greet", args=["--loud"]),
        says("Blue it is."),
    )
    assert workspace.agent("run", "Paint", "--detach", "--profile", "guarded") == 0

    with agent_terminal(workspace.folder, "runs", "attach", "latest") as terminal:
        terminal.wait_for("colour> ")
        terminal.type("blue\r")
        terminal.wait_for("[y]es")
        terminal.type("y\r")
        terminal.wait_for("Blue it is.")
        assert terminal.wait_for_end() == 0

    assert statuses(workspace, capsys) == ["completed"]
    assert "blue" in json.dumps(model.received[1]["messages"])
