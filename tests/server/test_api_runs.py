"""Runs over HTTP: start, follow, decide, answer, cancel, fork, export, and recovery after a server kill."""

import itertools
import json
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import Workspace
from running_server import RunningServer, serving_process

ASK = calls("ask_user", question="Which colour?", fields={"properties": {"colour": {"type": "string"}}})
WRITE = calls("Write", path="note.txt", content="hello\n")


@contextmanager
def streaming(server: RunningServer, run_id: str, last_event_id: str = "") -> Generator[Iterator[dict[str, str]]]:
    """Yield the events of a run: `event`, `id` and `data`."""
    headers = {"accept": "text/event-stream", **({"last-event-id": last_event_id} if last_event_id else {})}
    with (
        server.client() as client,
        client.stream("GET", f"/api/v1/runs/{run_id}/events", headers=headers, timeout=60) as answer,
    ):
        assert answer.status_code == 200
        yield _parse(answer)


def _parse(answer: httpx2.Response) -> Iterator[dict[str, str]]:
    fields: dict[str, str] = {}
    for line in answer.iter_lines():
        name, _, value = line.partition(": ")
        if line and name:
            fields[name] = value
        elif not line and fields:
            yield fields
            fields = {}


def wait_until(server: RunningServer, run_id: str, *statuses: str) -> dict[str, Any]:
    """Follow the run until it ends or pauses, and return its status."""
    for _ in range(600):
        found = server.get(f"/api/v1/runs/{run_id}")
        if found["status"] in statuses and not found["driver"]:
            return found
        with streaming(server, run_id) as events:
            for event in events:
                if event["event"] in ("end", "run_paused", "approval_requested", "input_requested", "run_finished"):
                    break
    raise AssertionError(f"the run does not come to {statuses}")


def start(server: RunningServer, task: str = "greet me", **body: object) -> str:
    return str(server.post("/api/v1/runs", {"task": task, **body}, status=201)["run_id"])


def test_a_run_can_be_started_followed_and_read(server: RunningServer, model: ModelServer) -> None:
    model.follow(calls("use_skill", skill="greeter", reason="fits"), says("Hello there."))

    run_id = start(server)
    with streaming(server, run_id) as events:
        seen = list(events)
    found = server.get(f"/api/v1/runs/{run_id}")
    listed = server.get("/api/v1/runs", status="completed")
    entries = server.get(f"/api/v1/runs/{run_id}/entries")
    view = server.get(f"/api/v1/runs/{run_id}/view")

    assert (seen[0]["event"], seen[-1]["event"]) == ("run_started", "end")
    assert (found["status"], found["result"], found["exit_code"]) == ("completed", "Hello there.", 0)
    assert [row["run_id"] for row in listed["items"]] == [run_id]
    assert (entries["items"][0]["seq"], entries["items"][0]["kind"]) == (1, "run_started")
    assert (view["status"], view["answer"]) == ("completed", "Hello there.")


def test_a_schema_with_a_backtracking_pattern_does_not_block_the_server(
    server: RunningServer, model: ModelServer
) -> None:
    text = json.dumps("a" * 60 + "!")
    model.follow(says(text), says(text))

    run_id = start(server, output_schema={"pattern": "^(a+)+$"})

    assert wait_until(server, run_id, "failed")["status"] == "failed"
    assert server.get("/api/v1/health")["status"] == "ok"


def test_a_schema_pattern_without_linear_time_matching_is_rejected(server: RunningServer) -> None:
    refused = server.post("/api/v1/runs", {"task": "x", "output_schema": {"pattern": "(a)\\1"}}, status=400)

    assert "the pattern '(a)\\\\1' cannot be used" in refused["detail"]


def test_a_stream_resumes_after_the_last_event_without_gaps_or_duplicates(
    server: RunningServer, model: ModelServer
) -> None:
    model.follow(calls("use_skill", skill="greeter", reason="fits"), says("Hello."))
    run_id = start(server)
    with streaming(server, run_id) as events:
        whole = [event["id"] for event in events if "id" in event]

    for cut in (1, len(whole) // 2, len(whole) - 1):
        with streaming(server, run_id, whole[cut - 1]) as events:
            rest = [event["id"] for event in events if "id" in event]

        assert whole[:cut] + rest == whole
    assert len(set(whole)) == len(whole)


def test_an_approval_is_decided_over_http_and_the_run_continues(
    workspace: Workspace, model: ModelServer, server: RunningServer
) -> None:
    model.follow(WRITE, says("Written."))
    run_id = start(server, "write a note", profile="guarded")
    wait_until(server, run_id, "paused")

    waiting = server.get("/api/v1/approvals")["items"]
    decided = server.post(f"/api/v1/approvals/{waiting[0]['approval_id']}/approve", {"hash": waiting[0]["hash"]})
    found = wait_until(server, run_id, "completed")

    assert (decided["status"], decided["decided_by"]) == ("approved", "tester")
    assert found["result"] == "Written."
    assert (workspace.folder / "note.txt").read_text() == "hello\n"
    again = server.post(f"/api/v1/approvals/{waiting[0]['approval_id']}/deny", status=409)
    assert (again["code"], again["exit_code"]) == ("approval_closed", 10)
    assert "already approved by 'tester'" in again["detail"]


def test_an_approval_of_a_different_call_than_the_shown_one_is_rejected(
    server: RunningServer, model: ModelServer
) -> None:
    model.follow(WRITE, says("Written."))
    wait_until(server, start(server, "write a note", profile="guarded"), "paused")
    waiting = server.get("/api/v1/approvals")["items"][0]

    problem = server.post(f"/api/v1/approvals/{waiting['approval_id']}/approve", {"hash": "0" * 64}, status=409)

    assert problem["code"] == "call_changed"
    problem = server.post(f"/api/v1/approvals/{waiting['approval_id']}/approve", {}, status=422)
    assert problem["code"] == "hash_missing"
    assert server.get("/api/v1/approvals")["items"], "it still waits"


def test_a_question_is_answered_over_http(server: RunningServer, model: ModelServer) -> None:
    model.follow(ASK, says("Blue it is."))
    run_id = start(server)
    asked = wait_until(server, run_id, "input_required")

    wrong = server.post(f"/api/v1/runs/{run_id}/answer", {"doubt": "done"}, status=400)
    server.post(f"/api/v1/runs/{run_id}/answer", {"values": {"colour": "blue"}})
    found = wait_until(server, run_id, "completed")

    assert asked["question"]["question"] == "Which colour?"
    assert "has no step in doubt" in wrong["detail"]
    assert found["result"] == "Blue it is."


def test_a_run_started_in_a_terminal_continues_in_the_server(
    workspace: Workspace, server: RunningServer, model: ModelServer
) -> None:
    model.follow(ASK, says("Red."))
    assert workspace.agent("run", "choose a colour", "--quiet") == 4
    run_id = workspace.run_ids()[-1]

    server.post(f"/api/v1/runs/{run_id}/answer", {"values": {"colour": "red"}})

    assert wait_until(server, run_id, "completed")["result"] == "Red."


def test_a_run_is_canceled_once(server: RunningServer, model: ModelServer) -> None:
    model.follow(ASK)
    run_id = start(server)
    wait_until(server, run_id, "input_required")

    ended = server.post(f"/api/v1/runs/{run_id}/cancel")
    problem = server.post(f"/api/v1/runs/{run_id}/cancel", status=409)

    assert (ended["status"], problem["code"]) == ("canceled", "run_ended")


def test_a_run_is_forked_and_exported(server: RunningServer, model: ModelServer, tmp_path: Path) -> None:
    model.follow(calls("use_skill", skill="greeter", reason="fits"), says("First."), says("Second."))
    run_id = start(server)
    wait_until(server, run_id, "completed")

    wrong = server.post(f"/api/v1/runs/{run_id}/fork", {"at": 1000}, status=400)
    forked = server.post(f"/api/v1/runs/{run_id}/fork", {"at": 1}, status=201)
    wait_until(server, str(forked["run_id"]), "completed")
    with server.client() as client:
        exported = client.get(f"/api/v1/runs/{run_id}/export")

    assert (wrong["code"], forked["parent_run_id"]) == ("usage_error", run_id)
    assert exported.headers["content-disposition"].startswith("attachment;")
    assert "sandbox" in exported.headers["content-security-policy"]
    file = tmp_path / "run.metier-run"
    file.write_bytes(exported.content)
    assert file.stat().st_size > 500


def test_an_idempotency_key_starts_one_run_and_rejects_a_different_request(
    server: RunningServer, model: ModelServer
) -> None:
    model.follow(says("Done."))
    headers = {"idempotency-key": "abc"}
    with server.client() as client:
        answers = [client.post("/api/v1/runs", json={"task": "greet me"}, headers=headers) for _ in range(3)]
        other = client.post("/api/v1/runs", json={"task": "something else"}, headers=headers)

    assert [each.status_code for each in answers] == [201, 201, 201]
    assert len({each.json()["run_id"] for each in answers}) == 1
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(server.get("/api/v1/runs")["items"]) == 1


def test_runs_are_listed_with_filters_and_pages(server: RunningServer, model: ModelServer) -> None:
    model.follow(says("Done."))
    ids = [start(server, task) for task in ("count apples", "count pears", "weigh apples")]
    for run_id in ids:
        wait_until(server, run_id, "completed")

    def find(**wanted: str | int) -> list[str]:
        return [row["run_id"] for row in server.get("/api/v1/runs", **wanted)["items"]]

    first = server.get("/api/v1/runs", limit=2)
    second = server.get("/api/v1/runs", limit=2, cursor=first["next"])

    assert [row["run_id"] for row in (*first["items"], *second["items"])] == ids[::-1]
    assert find(text="APPLES", not_text="weigh") == [ids[0]]
    assert find(status="completed", model="m", since="1h") == ids[::-1]
    assert find(not_status="completed") == find(agent="no-such-agent") == find(until="1h") == []
    with server.client() as client:
        assert client.get("/api/v1/runs", params={"since": "soon"}).json()["code"] == "usage_error"
        assert client.get("/api/v1/runs", params={"colour": "red"}).status_code == 422


def test_problems_have_the_codes_and_hints_of_the_command_line(
    server: RunningServer, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    with server.client() as client:
        problem = client.get("/api/v1/runs/20990101-000000-abcdefabcdef")
    assert workspace.agent("runs", "show", "20990101-000000-abcdefabcdef") == 2

    said, told = capsys.readouterr().err, problem.json()
    assert (problem.status_code, told["code"], told["exit_code"]) == (404, "run_unknown", 2)
    assert (told["detail"] in said, told["hint"] in said) == (True, True)


def test_a_killed_server_loses_nothing_and_another_one_continues(workspace: Workspace, model: ModelServer) -> None:
    settings = cast("dict[str, Any]", json.loads((workspace.folder / "agent.yaml").read_text()))
    workspace.configure(**settings, worker={"sweep_seconds": 0.2})
    replies: list[Reply] = [calls("use_skill", skill="greeter", reason=str(number)) for number in range(3)]
    model.follow(*replies, says("Done."))
    with serving_process(workspace.folder) as first:
        run_id = start(first.running)
        with streaming(first.running, run_id) as events:
            before: list[str] = []
            for event in events:
                before += [event["id"]] if "id" in event else []
                if event["event"] == "llm_request_sent":
                    model.silent.set()
                    break
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(100)
    model.silent.clear()
    model.released.set()

    with serving_process(workspace.folder) as second:
        with streaming(second.running, run_id, before[-1]) as events:
            after = [event["id"] for event in events if "id" in event]
        found = second.running.get(f"/api/v1/runs/{run_id}")
        with streaming(second.running, run_id) as events:
            whole = [event["id"] for event in events if "id" in event]

    assert (found["status"], found["result"]) == ("completed", "Done.")
    assert before + after == whole


def test_a_run_that_killed_its_server_twice_is_paused_until_resumed(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = cast("dict[str, Any]", json.loads((workspace.folder / "agent.yaml").read_text()))
    workspace.configure(**settings, worker={"sweep_seconds": 0.2})
    model.silent.set()
    run_id = ""
    for life in (1, 2):
        with serving_process(workspace.folder) as server:
            run_id = run_id or start(server.running)
            with streaming(server.running, run_id) as events:
                # The stream begins with the events of the server before.
                sent = (event for event in events if event["event"] == "llm_request_sent")
                assert len(list(itertools.islice(sent, life))) == life
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(100)
    model.silent.clear()
    model.released.set()

    with serving_process(workspace.folder) as third:
        found = wait_until(third.running, run_id, "paused")
        entries = third.running.get(f"/api/v1/runs/{run_id}/entries")

    assert "2 processes in a row died" in str(entries["items"][-1])
    assert found["status"] == "paused"
    model.follow(says("Done."))
    assert workspace.agent("resume", run_id, "-q") == 0
    assert capsys.readouterr().out.strip() == "Done."
