"""An open page resumes after a kill of the server and the driver."""

import json
import signal
import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, WAIT_MILLISECONDS, running_browser
from console_scene import prepare
from model_server import ModelServer, calls, says
from playwright.sync_api import Browser, Page, expect
from running_server import WAIT_SECONDS, serving_process

from agent_command import AGENT
from services.ports import find_free_ports

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]

SAME: dict[str, Any] = {"AGENT_SERVER_SECRET": "s" * 40, "AGENT_SERVER_TOKEN": "t" * 40}
"""A server that comes back knows the sessions of the one before."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@contextmanager
def working_process(folder: Path) -> Generator["subprocess.Popen[bytes]"]:
    """Start `agent worker` as a process."""
    process = subprocess.Popen(
        [AGENT, "worker"], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(WAIT_SECONDS)


def kill(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(WAIT_SECONDS)


def start_run(page: Page, url: str) -> None:
    page.goto(f"{url}/login")
    page.get_by_label("Token").fill(SAME["AGENT_SERVER_TOKEN"])
    page.get_by_role("button", name="Sign in").click()
    page.goto(f"{url}/tasks")
    page.get_by_label("Task", exact=True).fill("Read the roadmap")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/runs/*")


def read_rows(page: Page) -> list[str]:
    """Return the waterfall without times, which differ between runs."""
    return page.locator("#body a[id^=row-]").evaluate_all(
        "all => all.map(each => each.id + ' ' + each.querySelector('.what').innerText)"
    )


@pytest.mark.parametrize("driver", ["server", "worker"])
def test_a_page_loses_or_duplicates_no_event_when_server_and_driver_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer, browser: Browser, driver: str
) -> None:
    """The driver is the server itself, or a worker that is killed too."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    workspace = prepare(tmp_path / "work", model)
    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    places = {} if driver == "server" else {"server": {"concurrency": 0}}
    workspace.configure(**settings, **places, worker={"sweep_seconds": 1})
    port = str(find_free_ports(1)[0])
    model.follow(calls("Read", path="notes/lost.md"), calls("Read", path="notes/roadmap.md"), says("It is **short**."))
    model.silent.set()
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)

    with (
        serving_process(workspace.folder, "--port", port, **SAME) as served,
        working_process(workspace.folder) if driver == "worker" else nullcontext() as worker,
    ):
        start_run(page, served.running.url)
        expect(page.locator("#body")).to_contain_text("model", timeout=WAIT_MILLISECONDS)
        assert model.asked.wait(WAIT_SECONDS)
        if worker is not None:
            kill(worker)
        kill(served.process)
        # The page says "running" from before: it must also say that this is no longer known.
        banner = page.locator("#offline")
        expect(banner).to_contain_text("Connection to the server lost")
        # There is no server yet. Once there is one, the page may be back before the click.
        banner.get_by_role("button", name="Retry now").click()
        expect(banner).to_be_visible()
    model.silent.clear()
    model.released.set()
    with (
        serving_process(workspace.folder, "--port", port, **SAME),
        working_process(workspace.folder) if driver == "worker" else nullcontext(),
    ):
        # The page is not loaded again: its stream comes back by itself.
        expect(banner).to_be_hidden()
        expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=WAIT_MILLISECONDS)
        expect(page.locator("#body strong", has_text="short").first).to_be_visible()
        rows = read_rows(page)
        steps = sum("roadmap.md" in row for row in rows)
        page.reload()
        loaded = read_rows(page)
        context.close()

    assert rows == loaded, "the page that stayed open shows what a page shows that is loaded now"
    assert len({row.partition(" ")[0] for row in rows}) == len(rows)
    assert steps == 1


def test_retry_now_connects_to_a_server_that_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer, browser: Browser
) -> None:
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    workspace = prepare(tmp_path / "work", model)
    port = str(find_free_ports(1)[0])
    model.follow(says("Done."))
    model.silent.set()
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    page.clock.install()
    banner = page.locator("#offline")

    with serving_process(workspace.folder, "--port", port, **SAME) as served:
        start_run(page, served.running.url)
        expect(page.locator("#body")).to_contain_text("model", timeout=WAIT_MILLISECONDS)
        assert model.asked.wait(WAIT_SECONDS)
        # From here on no timer of the page runs, so it makes no attempt of its own.
        page.clock.pause_at(page.evaluate("Date.now() + 1000"))
        kill(served.process)
        expect(banner).to_be_visible(timeout=WAIT_MILLISECONDS)
    model.silent.clear()
    model.released.set()
    with serving_process(workspace.folder, "--port", port, **SAME):
        expect(banner).to_be_visible()

        banner.get_by_role("button", name="Retry now").click()

        expect(banner).to_be_hidden(timeout=WAIT_MILLISECONDS)
        expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=WAIT_MILLISECONDS)
        context.close()
