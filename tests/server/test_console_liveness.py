"""Pages must not show a run as running if no process drives it, nor a healthy workspace if runs wait for nobody."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing

import anyio
import pytest
from console_client import ConsoleClient
from console_scene import fill_list
from model_server import ModelServer, calls, says
from run_workspace import Workspace
from running_server import RunningServer, serving

from agent_command import AGENT
from metier.server.state import ServerState


@pytest.fixture
def idle(workspace: Workspace) -> Iterator[RunningServer]:
    """A server that leaves its runs to workers, without any worker."""
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    workspace.configure(**settings, server={"concurrency": 0})
    with serving(workspace.folder) as running:
        yield running


def start_run(server: RunningServer) -> str:
    return str(server.post("/api/v1/runs", {"task": "Read the roadmap"}, status=201)["run_id"])


def lose_worker(state: ServerState, run_id: str) -> None:
    """Let a worker claim the run and disappear: its lease expires."""

    async def claim() -> None:
        lease = await state.runtime.store.take_lease(run_id, owner="worker-7", seconds=60)
        await state.runtime.store.update_run(lease, {"status": "in_progress"})
        await state.runtime.store.renew_lease(lease, seconds=0.000_001)

    anyio.run(claim)


def test_run_of_a_lost_worker_is_not_shown_as_running(idle: RunningServer) -> None:
    assert idle.state is not None
    run_id = start_run(idle)
    lose_worker(idle.state, run_id)

    with closing(ConsoleClient(idle)) as console:
        page = console.open(f"/runs/{run_id}")
        words = console.words()
        assert 'data-status="worker_lost"' in page
        assert "worker lost waiting to be resumed" in words
        assert "The worker worker-7 is lost" in words
        assert "running" not in words
        console.open("/runs?status=worker_lost")
        assert run_id in console.page
        console.open("/runs?status=queued")
        assert run_id not in console.page

    assert idle.get(f"/api/v1/runs/{run_id}")["worker_lost"] is True
    found = {
        status: [row["run_id"] for row in idle.get("/api/v1/runs", status=status)["items"]]
        for status in ("worker_lost", "in_progress", "queued", "interrupted")
    }
    assert found == {"worker_lost": [run_id], "in_progress": [run_id], "queued": [], "interrupted": []}
    assert idle.get("/api/v1/runs", not_status="worker_lost")["items"] == []


def test_run_that_no_worker_claimed_is_queued_and_not_lost(idle: RunningServer) -> None:
    run_id = start_run(idle)

    with closing(ConsoleClient(idle)) as console:
        assert 'data-status="queued"' in console.open(f"/runs/{run_id}")
        assert "worker lost" not in console.words()

    assert idle.get(f"/api/v1/runs/{run_id}")["worker_lost"] is False


def test_duration_of_a_run_without_a_driver_does_not_grow(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Write", path="notes.md", content="words"))
    workspace.agent("run", "Write the notes", "--profile", "guarded", "-q")
    (run_id,) = workspace.run_ids()
    log = workspace.folder / "runs" / run_id / "events.jsonl"
    # A process that is killed leaves a log that ends before the journal does.
    log.write_text(log.read_text().partition("\n")[0] + "\n")

    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        times = {read_time(console.open(f"/runs/{run_id}")) for _ in range(3)}

    assert len(times) == 1


def kill_during_a_step(workspace: Workspace, model: ModelServer) -> str:
    """Kill a run while its first command runs. Returns its ID."""
    model.follow(calls("Bash", command="touch started && sleep 600"), says("Never mind."))
    command = [AGENT, "run", "Wait", "--profile", "permissive", "-q"]
    process = subprocess.Popen(command, cwd=workspace.folder, stdin=subprocess.DEVNULL)
    while not (workspace.folder / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    (run_id,) = workspace.run_ids()
    return run_id


def test_step_of_a_killed_run_is_shown_as_interrupted_and_not_as_running(
    workspace: Workspace, model: ModelServer
) -> None:
    run_id = kill_during_a_step(workspace, model)

    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        page = console.open(f"/runs/{run_id}")
        detail = console.open(f"/runs/{run_id}/step?key=1.1")

    assert 'data-status="interrupted"' in page
    assert ">running<" not in page
    assert ">interrupted</span>" in detail


def test_interrupted_step_can_be_resolved_on_the_page_of_the_run(workspace: Workspace, model: ModelServer) -> None:
    run_id = kill_during_a_step(workspace, model)

    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        console.open(f"/runs/{run_id}")
        console.submit(f"/runs/{run_id}/resume")
        while "Did this step happen?" not in console.open(f"/runs/{run_id}"):
            pass
        console.submit(f"/runs/{run_id}/doubt", answer="skip")
        while 'data-status="completed"' not in console.open(f"/runs/{run_id}"):
            pass
        assert "Never mind." in console.words()


def test_dry_run_is_marked_on_its_page(workspace: Workspace, model: ModelServer) -> None:
    model.follow(says("I would read the notes."))
    workspace.agent("run", "Read the notes", "--dry-run", "-q")
    (run_id,) = workspace.run_ids()

    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        console.open(f"/runs/{run_id}")
        assert "dry run" in console.words()


def test_health_counts_interrupted_runs_separately_from_queued_runs(workspace: Workspace) -> None:
    fill_list(workspace.folder, count=40)

    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        console.open("/health")
        words = console.words()

    assert "Waiting for a worker 0 " in words
    assert re.search(r"Interrupted \d+ not in a queue", words)


def read_time(page: str) -> str:
    (shown,) = re.findall(r"<dt>Time</dt><dd>(.*?)</dd>", page)
    return str(shown)


def test_health_reports_queued_runs_without_a_worker_as_a_problem(idle: RunningServer) -> None:
    with closing(ConsoleClient(idle)) as console:
        console.open("/health")
        assert "waiting for a worker, the oldest" not in console.words()
        start_run(idle)

        console.open("/health")

        words = console.words()
        assert "No worker is running: 1 run is waiting for a worker, the oldest for" in words
        assert "Start a worker: agent worker" in words
        assert "No problems found" not in words


def test_metrics_have_the_age_of_the_oldest_waiting_run_and_counters_and_histograms(
    workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Done."))
    with serving(workspace.folder) as server, server.client() as client:
        run_id = start_run(server)
        while server.get(f"/api/v1/runs/{run_id}")["status"] != "completed":
            pass
        # The driver writes the index first, then closes the run's events and adds its usage to the totals.
        wanted = ("metier_runs_ended_total{", "metier_model_calls_total{")
        while not all(name in (text := client.get("/api/v1/metrics").text) for name in wanted):
            pass
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

    assert lines["metier_queue_oldest_seconds"] == "0"
    assert lines['metier_runs_ended_total{status="completed"}'] == "1"
    assert lines['metier_run_duration_seconds_bucket{le="+Inf"}'] == lines["metier_run_duration_seconds_count"] == "1"
    assert float(lines["metier_run_duration_seconds_sum"]) > 0
    assert lines['metier_http_requests_total{method="POST",status="2xx"}'] == "1"
    assert int(lines["metier_http_request_duration_seconds_count"]) >= 2
    assert lines['metier_model_calls_total{model="openai/m"}'] == "1"
    assert lines['metier_model_tokens_total{model="openai/m",kind="input"}'] == "100"
    assert "# TYPE metier_run_duration_seconds histogram" in text
    assert "# TYPE metier_model_calls_total counter" in text


def test_run_list_counts_all_runs_of_the_last_day(workspace: Workspace) -> None:
    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        assert server.state is not None
        fill_list(workspace.folder, count=2_105, minutes=0)

        console.open("/runs")

    assert "2,105 runs in the last 24 hours" in console.words()


def test_run_reopened_after_a_limit_is_not_shown_as_interrupted(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Glob", pattern="*"), says("Done."))
    workspace.agent("run", "Look around", "--max-turns", "1", "-q")
    assert workspace.agent("resume", "latest", "--max-turns", "5", "-q") == 0

    resumed = [event["payload"] for event in workspace.events() if event["event_type"] == "run_resumed"]
    assert [each["reason"] for each in resumed] == ["continued"]


def test_question_of_a_run_can_be_answered_on_its_page(workspace: Workspace, model: ModelServer) -> None:
    fields = {"type": "object", "properties": {"date": {"type": "string", "title": "Date"}}, "required": ["date"]}
    model.follow(calls("ask_user", question="When is the release?", fields=fields), says("Planned."))
    workspace.agent("run", "Plan the release", "-q")
    (run_id,) = workspace.run_ids()

    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        console.open(f"/runs/{run_id}")
        assert "When is the release?" in console.words()
        console.submit(f"/runs/{run_id}/answer", date="2026-12-01")

        assert console.status == 200
        assert f'href="/runs/{run_id}/prompt"' in console.page, "the same page again"
        assert "Answered. The run continues." in console.words()
        while server.get(f"/api/v1/runs/{run_id}")["status"] != "completed":
            pass


def test_limit_of_a_run_can_be_raised_on_its_page(workspace: Workspace, model: ModelServer) -> None:
    model.follow(calls("Glob", pattern="*"), says("Done."))
    workspace.agent("run", "Look around", "--max-turns", "1", "-q")
    (run_id,) = workspace.run_ids()

    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
        console.open(f"/runs/{run_id}")
        console.submit(f"/runs/{run_id}/raise", value="5")

        assert "The limit is raised." in console.words()
        while server.get(f"/api/v1/runs/{run_id}")["status"] != "completed":
            pass
