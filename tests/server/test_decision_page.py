"""The page behind the link of a message, on a phone."""

from collections.abc import Iterator
from typing import Literal

import pytest
from browser import CHROMIUM, WAIT_MILLISECONDS, running_browser
from model_server import ModelServer, calls, says
from playwright.sync_api import Browser, ViewportSize, expect
from run_workspace import Workspace
from running_server import RunningServer

from metier.runtime.notify.links import DecisionLinks, DecisionRight

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]

PHONE = ViewportSize(width=390, height=844)
COMMAND = "rm -rf build && make all " + " ".join(f"--with-a-long-option-{number}=value" for number in range(40))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


def ask(server: RunningServer, model: ModelServer) -> str:
    """Return the address of the link."""
    model.follow(calls("Bash", command=COMMAND), says("Done."))
    server.post("/api/v1/runs", {"task": "Build the project", "profile": "guarded"}, status=201)
    while not (found := server.get("/api/v1/approvals")["items"]):
        pass
    assert server.config is not None
    right = DecisionRight(approval_id=found[0]["approval_id"], decider="Kim")
    return f"{server.url}/decide/{DecisionLinks(server.config.private).issue(right)}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_approval_link_shows_the_whole_command_and_distinct_buttons_on_a_phone(
    workspace: Workspace, server: RunningServer, model: ModelServer, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    link = ask(server, model)
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    page.goto(link)

    approve, deny = (page.get_by_role("button", name=name) for name in ("Approve", "Deny"))
    # The buttons stick to the bottom of the screen, however long the command is.
    for button in (approve, deny):
        box = button.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= PHONE["height"]
        assert box["height"] >= 44
    colors = [button.evaluate("each => getComputedStyle(each).backgroundColor") for button in (approve, deny)]
    assert colors[0] != colors[1]
    command = page.locator("pre", has_text="--with-a-long-option-39").first
    expect(command).to_be_visible()
    assert command.evaluate("each => each.scrollWidth <= each.clientWidth"), "the command wraps"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator(".pill", has_text="risk")).to_be_visible()

    approve.tap()

    expect(page.get_by_role("heading", name="Approved")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("The run continues")
    context.close()
