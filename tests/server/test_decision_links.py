"""A message about an approval has a link while a server runs; it decides once, as a named user."""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model
from running_server import TLS, RunningServer, serving_process
from test_notify import Receiver, receiving

SECRET = "a shared word"
WAIT_SECONDS = 100.0


def wait_for[T](find: Callable[[], T | None]) -> T:
    until = time.monotonic() + WAIT_SECONDS
    while (found := find()) is None:
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.05)
    return found


def find_message(receiver: Receiver, kind: str, number: int = 0) -> dict[str, Any] | None:
    found = [message for message in receiver.messages if message["type"] == kind]
    return found[number] if len(found) > number else None


def find_status(server: RunningServer, run_id: str, status: str) -> str | None:
    return status if server.get(f"/api/v1/runs/{run_id}")["status"] == status else None


@pytest.fixture
def told(workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("AGENT_NOTIFY_SECRET", SECRET)
    model.follow(calls("Write", path="a.txt", content="x"), says("Done"))
    return workspace


def open_link(url: str) -> httpx2.Response:
    return httpx2.get(url, headers={"accept": "text/html"}, timeout=WAIT_SECONDS, trust_env=False, verify=TLS)


def decide(url: str, word: str, seen: str, **headers: str) -> httpx2.Response:
    form = {"decision": word, "hash": seen, "reason": "fine"}
    return httpx2.post(url, data=form, headers=headers, timeout=WAIT_SECONDS, trust_env=False, verify=TLS)


def read_hash(page: httpx2.Response) -> str:
    found = re.search(r'name="hash" value="([0-9a-f]{64})"', page.text)
    assert found is not None, page.text
    return found[1]


def test_link_of_a_message_decides_its_approval_once_and_grants_nothing_else(
    told: Workspace, model: ModelServer, tmp_path: Path
) -> None:
    with receiving() as receiver:
        told.configure(
            model=use_model(model), runtime=QUICK, notify={"webhook_url": receiver.url, "decider": "Kim at the phone"}
        )
        with serving_process(told.folder) as served:
            server = served.running
            run_id = server.post("/api/v1/runs", {"task": "write a note", "profile": "guarded"}, status=201)["run_id"]
            message = wait_for(lambda: find_message(receiver, "run.approval"))
            (link,) = message["links"]
            word = link["url"].rpartition("/")[2]

            assert link["approval_id"] == message["approvals"][0]
            assert link["url"].startswith(f"{server.url}/decide/")
            page = open_link(link["url"])
            assert (page.status_code, open_link(link["url"]).status_code) == (200, 200)
            assert "a.txt" in page.text
            assert "Kim at the phone" in page.text
            # It is no key to anything else, and what is kept of it is not it.
            assert open_link(f"{server.url}/runs/{run_id}").status_code == 303
            bearer = {"authorization": f"Bearer {word}"}
            refused = httpx2.get(
                f"{server.url}/api/v1/runs", headers=bearer, timeout=WAIT_SECONDS, trust_env=False, verify=TLS
            )
            assert refused.status_code == 401
            kept = [path for path in tmp_path.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
            assert kept == []
            assert decide(link["url"], "approved", "0" * 64).status_code == 409
            seen = read_hash(page)
            assert decide(link["url"], "approved", seen, origin="https://elsewhere.example").status_code == 403
            assert find_status(server, run_id, "paused") == "paused"

            assert decide(link["url"], "approved", seen).status_code == 200

            assert wait_for(lambda: find_status(server, run_id, "completed"))
            assert decide(link["url"], "denied", seen).status_code == 404
            assert open_link(link["url"]).status_code == 404
            (approval,) = server.get("/api/v1/approvals", status="")["items"]
    assert (approval["status"], approval["decided_by"]) == ("approved", "Kim at the phone")
    assert (told.folder / "a.txt").read_text() == "x"


def test_file_changed_since_its_diff_can_only_be_denied_by_link_or_api(told: Workspace, model: ModelServer) -> None:
    told.write("a.txt", "as the diff shows it\n")
    with receiving() as receiver:
        told.configure(model=use_model(model), runtime=QUICK, notify={"webhook_url": receiver.url})
        with serving_process(told.folder) as served:
            server = served.running
            server.post("/api/v1/runs", {"task": "write a note", "profile": "guarded"}, status=201)
            (link,) = wait_for(lambda: find_message(receiver, "run.approval"))["links"]
            seen = read_hash(open_link(link["url"]))
            told.write("a.txt", "changed meanwhile\n")

            assert decide(link["url"], "approved", seen).status_code == 409
            refused = server.post(f"/api/v1/approvals/{link['approval_id']}/approve", {"hash": seen}, status=409)
            assert refused["code"] == "file_changed"
            assert decide(link["url"], "denied", seen).status_code == 200
    assert (told.folder / "a.txt").read_text() == "changed meanwhile\n"


def test_expired_or_used_link_decides_nothing(told: Workspace, model: ModelServer, tmp_path: Path) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), calls("Write", path="b.txt", content="x"), says("Done"))
    with receiving() as receiver:
        told.configure(model=use_model(model), runtime=QUICK, notify={"webhook_url": receiver.url})
        with serving_process(told.folder) as served:
            server = served.running
            server.post("/api/v1/runs", {"task": "write notes", "profile": "guarded"}, status=201)
            first = wait_for(lambda: find_message(receiver, "run.approval"))["links"][0]
            seen = read_hash(open_link(first["url"]))
            server.post(f"/api/v1/approvals/{first['approval_id']}/approve", {"hash": seen})
            late = open_link(first["url"])
            second = wait_for(lambda: find_message(receiver, "run.approval", 1))["links"][0]
            for file in (tmp_path / "home/.agent/servers").rglob("decide-*"):
                os.utime(file, (1, 1))
            old = open_link(second["url"])

            assert (late.status_code, "approved" in late.text) == (409, True)
            assert decide(first["url"], "denied", seen).status_code == 404
            assert old.status_code == 404
            assert server.get("/api/v1/approvals")["items"][0]["approval_id"] == second["approval_id"]


def test_message_has_no_link_while_no_server_runs(told: Workspace, model: ModelServer) -> None:
    with receiving() as receiver:
        told.configure(model=use_model(model), runtime=QUICK, notify={"webhook_url": receiver.url})

        assert told.agent("run", "Write", "-q", "--profile", "guarded") == 3

        assert "links" not in receiver.messages[0]
