"""Notifications: sent once per approval or run end, despite failures of receiver and process."""

import base64
import hashlib
import hmac
import json
import signal
import sqlite3
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cloned_folder import fill
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

type Capture = pytest.CaptureFixture[str]

SECRET = "a shared word"


@dataclass
class Receiver:
    url: str = ""
    status: int = 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])
    asked: threading.Event = field(default_factory=threading.Event)
    hold: threading.Event | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@contextmanager
def receiving() -> Generator[Receiver]:
    receiver = Receiver()

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.status
            receiver.asked.set()
            if receiver.hold is not None:
                receiver.hold.wait(30)
            if status == 200:
                receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            try:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()
            except OSError:
                return

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}/hook"
    try:
        yield receiver
    finally:
        if receiver.hold is not None:
            receiver.hold.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver(workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> Generator[Receiver]:
    monkeypatch.setenv("AGENT_NOTIFY_SECRET", SECRET)
    with receiving() as found:
        workspace.configure(model=use_model(model), runtime=QUICK, notify={"webhook_url": found.url})
        yield found


def make_due(workspace: Workspace) -> None:
    """Skip the backoff."""
    with sqlite3.connect(workspace.folder / "runs/state.db") as database:
        database.execute("UPDATE outbox SET due_at = '2000-01-01T00:00:00.000000+00:00'")


def test_approval_and_end_are_sent_with_a_signature(
    workspace: Workspace, model: ModelServer, receiver: Receiver, capsys: Capture
) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), says("Done with sk-ant-api03-" + "a" * 40))

    assert workspace.agent("run", "Write", "-q", "--profile", "guarded") == 3
    (wanted,) = receiver.messages
    assert (wanted["type"], wanted["status"]) == ("run.approval", "paused")
    assert workspace.agent("approvals", "approve", wanted["approvals"][0]) == 0
    assert workspace.agent("resume", "latest", "-q") == 0

    assert [message["type"] for message in receiver.messages] == ["run.approval", "run.ended"]
    assert "sk-ant" not in receiver.messages[1]["message"]
    headers, body = receiver.got[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.digest(SECRET.encode(), signed, hashlib.sha256)
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert json.loads(body)["id"] == headers["webhook-id"]
    assert workspace.agent("replay", "latest", "--execute") == 0
    assert len(receiver.got) == 2
    capsys.readouterr()
    assert workspace.agent("notify", "list", "--json") == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"sent"}


def test_message_waits_while_the_receiver_is_down_and_is_delivered_once(
    workspace: Workspace, model: ModelServer, receiver: Receiver, capsys: Capture
) -> None:
    receiver.status = 503
    model.follow(says("Done"))

    assert workspace.agent("run", "Look", "-q") == 0
    assert workspace.agent("notify", "send") == 1
    assert "503" in capsys.readouterr().err

    receiver.status = 200
    make_due(workspace)
    assert workspace.agent("notify", "send") == 0
    assert workspace.agent("notify", "send") == 0
    make_due(workspace)
    assert workspace.agent("run", "Look again", "-q") == 0

    assert [(message["type"], message["task"]) for message in receiver.messages] == [
        ("run.ended", "Look"),
        ("run.ended", "Look again"),
    ]


def test_process_killed_while_the_receiver_hangs_leaves_the_message_for_the_next(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    receiver.hold = threading.Event()
    receiver.status = 503
    model.follow(says("Done"))

    process = workspace.start("run", "Look", "-q")
    assert receiver.asked.wait(100)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=100)

    receiver.hold.set()
    receiver.status = 200
    make_due(workspace)
    assert workspace.agent("notify", "send") == 0
    assert workspace.agent("notify", "send") == 0
    assert [message["type"] for message in receiver.messages] == ["run.ended"]


def test_budget_warning_is_sent_once_at_80_percent(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    prices = "openai:\n  m: {window_tokens: 100000, prices: {input: 1000, output: 1000, as_of: 2026-10-10}}\n"
    workspace.write("facts.yaml", prices)
    workspace.configure(
        model={**use_model(model), "facts_file": "facts.yaml"},
        runtime=QUICK,
        notify={"webhook_url": receiver.url, "events": ["budget"]},
    )
    model.follow(*[calls("Glob", pattern=f"*.{n}") for n in range(3)], says("Done"))

    assert workspace.agent("run", "Look", "-q", "--max-cost-usd", "0.27") == 6

    (told,) = receiver.messages
    assert told["type"] == "run.budget"
    assert told["max_cost_usd"] == 0.27


def test_message_about_an_unwritten_entry_is_not_sent(
    workspace: Workspace, model: ModelServer, receiver: Receiver
) -> None:
    model.follow(says("Done"))
    assert workspace.agent("run", "Look", "-q") == 0
    with sqlite3.connect(workspace.folder / "runs/state.db") as database:
        database.execute("UPDATE outbox SET state = 'open', seq = seq + 1, due_at = '2000-01-01T00:00:00.000000+00:00'")

    assert workspace.agent("notify", "send") == 1
    assert len(receiver.got) == 1


def test_command_reads_the_message_and_has_no_key(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-value")
    script = workspace.folder.parent / "tell.py"
    script.write_text(
        "import os, sys\ntold = os.environ['AGENT_PROJECT_DIR'] + '/told'\n"
        "open(told, 'a').write(sys.stdin.read() + str('OPENAI_API_KEY' in os.environ))\n"
    )
    workspace.configure(
        model=use_model(model), runtime=QUICK, notify={"command": [sys.executable, str(script)], "events": ["ended"]}
    )
    model.follow(says("Done"))

    assert workspace.agent("run", "Look", "-q") == 0

    text = (workspace.folder / "told").read_text()
    assert text.endswith("}False")
    assert json.loads(text.removesuffix("False"))["type"] == "run.ended"


def test_webhook_without_a_secret_is_refused_before_the_run_starts(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.delenv("AGENT_NOTIFY_SECRET", raising=False)
    workspace.configure(model=use_model(model), notify={"webhook_url": "http://127.0.0.1:9/x"})

    assert workspace.agent("run", "Look") == 2

    assert "AGENT_NOTIFY_SECRET" in capsys.readouterr().err
    assert model.received == []


def test_clone_cannot_set_the_webhook(
    clone: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:

    with receiving() as receiver:
        monkeypatch.setenv("AGENT_NOTIFY_SECRET", SECRET)
        place = fill(clone, {"agent.yaml": json.dumps({"notify": {"webhook_url": receiver.url}})}, monkeypatch)
        model.follow(says("Done"))

        assert place.agent("run", "Look", "-q") == 0

        assert receiver.got == []
    assert "notify.webhook_url" in capsys.readouterr().err
