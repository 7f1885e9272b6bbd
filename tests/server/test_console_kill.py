"""A page that is open while the server, and with it the driver of the run, is killed: it goes on where it was."""

import json
import os
import signal
import socket
from pathlib import Path

import pytest
from browser import CHROMIUM, WAIT_MILLISECONDS, running_browser
from console_scene import prepare
from model_server import ModelServer, calls, says
from playwright.sync_api import expect
from running_server import serving_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
    pytest.mark.timeout(240),
]


def test_no_event_is_lost_or_doubled_on_a_page_over_a_kill_of_server_and_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer
) -> None:
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    workspace = prepare(tmp_path / "work", model)
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    workspace.configure(**settings, worker={"lease_seconds": 2, "sweep_seconds": 1})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    same = {"AGENT_SERVER_SECRET": "s" * 40, "AGENT_SERVER_TOKEN": "t" * 40}
    model.follow(calls("Read", path="notes/lost.md"), calls("Read", path="notes/roadmap.md"), says("It is **short**."))
    model.silent.set()
    with running_browser() as browser:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MILLISECONDS)
        with serving_process(workspace.folder, "--port", port, **same) as served:
            url = served.running.url
            page.goto(f"{url}/login")
            page.get_by_label("Token").fill(same["AGENT_SERVER_TOKEN"])
            page.get_by_role("button", name="Sign in").click()
            page.goto(f"{url}/tasks")
            page.get_by_label("Task", exact=True).fill("Read the roadmap")
            page.get_by_role("button", name="Start").click()
            page.wait_for_url("**/runs/*")
            expect(page.locator("#body")).to_contain_text("model", timeout=WAIT_MILLISECONDS)
            assert model.asked.wait(30)
            os.kill(served.process.pid, signal.SIGKILL)
            served.process.wait(30)
        model.silent.clear()
        model.released.set()
        with serving_process(workspace.folder, "--port", port, **same):
            # The page is not loaded again: its stream comes back by itself.
            expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=90_000)
            expect(page.locator("#body strong", has_text="short").first).to_be_visible()
            rows = page.locator("#body details[id^=row-]").evaluate_all("all => all.map(each => each.id)")
            steps = page.locator("#body summary", has_text="roadmap.md").count()
            page.close()

    assert len(rows) == len(set(rows))
    assert steps == 1
