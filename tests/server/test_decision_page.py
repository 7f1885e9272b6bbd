"""The pages without the console's frame on a phone: the link of a message, its outcomes, and the sign-in form."""

import os
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
from browser import CHROMIUM, PHONE, WAIT_MILLISECONDS, running_browser
from model_server import ModelServer, calls, says
from playwright.sync_api import Browser, Page, expect
from run_workspace import Workspace
from running_server import RunningServer

from metier.runtime.notify.links import DecisionLinks, DecisionRight

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]

SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
COMMAND = "rm -rf build && make all " + " ".join(f"--with-a-long-option-{number}=value" for number in range(40))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture
def phone(browser: Browser) -> Iterator[Page]:
    """A tab on a phone that is not signed in."""
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.set_default_timeout(WAIT_MILLISECONDS)
    yield page
    context.close()


class Asked:
    """An approval of a run, and links to decide it."""

    def __init__(self, server: RunningServer, model: ModelServer, command: str) -> None:
        model.follow(calls("Bash", command=command), says("Done."))
        self.run_id = server.post("/api/v1/runs", {"task": "Build the project", "profile": "guarded"}, status=201)[
            "run_id"
        ]
        while not (found := server.get("/api/v1/approvals")["items"]):
            pass
        assert server.config is not None
        self._server, self._links = server, DecisionLinks(server.config.private)
        self._approval_id = str(found[0]["approval_id"])

    def issue(self) -> str:
        """Return the address of a new link."""
        right = DecisionRight(approval_id=self._approval_id, decider="Kim")
        return f"{self._server.url}/decide/{self._links.issue(right)}"

    def cancel(self) -> None:
        self._server.post(f"/api/v1/runs/{self.run_id}/cancel")

    def expire_links(self) -> None:
        for file in self._links.folder.glob("decide-*"):
            os.utime(file, (1, 1))


@pytest.fixture
def asked(workspace: Workspace, server: RunningServer, model: ModelServer) -> Asked:
    return Asked(server, model, COMMAND)


def check_design(page: Page) -> None:
    """Check that the page has the console's design and fits the phone."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no horizontal scrolling"
    cut = "each => each.clientWidth && each.scrollWidth > each.clientWidth + 1"
    assert page.evaluate(f"[...document.querySelectorAll('main *')].filter({cut}).length") == 0, "all text wraps"
    lightness = "each => Number(getComputedStyle(each).backgroundColor.match(/\\d+/)[0])"
    page.emulate_media(color_scheme="dark")
    assert page.locator("body").evaluate(lightness) < 60
    page.emulate_media(color_scheme="light")
    assert page.locator("body").evaluate(lightness) > 200
    card = page.get_by_role("main")
    box = card.bounding_box()
    assert box is not None
    assert box["width"] > 0.85 * PHONE["width"]
    assert card.evaluate("each => getComputedStyle(each).borderRadius") != "0px"
    expect(page.locator(".brand")).to_have_text("Metier")


def test_approval_link_shows_the_whole_command_and_distinct_buttons(asked: Asked, phone: Page) -> None:
    phone.goto(asked.issue())

    check_design(phone)
    approve, deny = (phone.get_by_role("button", name=name) for name in ("Approve", "Deny"))
    # The buttons stick to the bottom of the screen, however long the command is.
    for button in (approve, deny):
        box = button.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= PHONE["height"]
        assert box["height"] >= 44
    for scheme in SCHEMES:
        phone.emulate_media(color_scheme=scheme)
        colors = [button.evaluate("each => getComputedStyle(each).backgroundColor") for button in (approve, deny)]
        assert colors[0] != colors[1]
    command = phone.locator("pre", has_text="--with-a-long-option-39").first
    expect(command).to_be_visible()
    assert command.evaluate("each => each.scrollWidth <= each.clientWidth"), "the command wraps"
    expect(phone.locator(".pill", has_text="risk")).to_be_visible()


@pytest.mark.parametrize(
    ("button", "title", "outcome"),
    [("Approve", "Approved", "The run continues with this call"), ("Deny", "Denied", "This call is not executed")],
)
def test_decision_is_confirmed_with_its_call(button: str, title: str, outcome: str, asked: Asked, phone: Page) -> None:
    phone.goto(asked.issue())
    phone.get_by_label("Reason").fill("as agreed")

    phone.get_by_role("button", name=button).tap()

    expect(phone.get_by_role("heading", name=title)).to_be_visible()
    expect(phone.get_by_role("status")).to_contain_text(outcome)
    expect(phone.get_by_role("main")).to_contain_text("rm -rf build")
    expect(phone.get_by_role("main")).to_contain_text("Reason: as agreed")
    check_design(phone)


def decide_by_another_link(page: Page, asked: Asked) -> str:
    link = asked.issue()
    page.goto(asked.issue())
    page.get_by_role("button", name="Deny").tap()
    expect(page.get_by_role("heading", name="Denied")).to_be_visible()
    return link


def decide_by_this_link(page: Page, asked: Asked) -> str:
    link = asked.issue()
    page.goto(link)
    page.get_by_role("button", name="Deny").tap()
    expect(page.get_by_role("heading", name="Denied")).to_be_visible()
    return link


def cancel_the_run(page: Page, asked: Asked) -> str:
    del page
    asked.cancel()
    return asked.issue()


def let_the_link_expire(page: Page, asked: Asked) -> str:
    del page
    link = asked.issue()
    asked.expire_links()
    return link


@pytest.mark.parametrize(
    ("prepare", "title", "outcome"),
    [
        (decide_by_another_link, "Already decided", "This call was already denied by Kim"),
        (decide_by_this_link, "Invalid link", "This link was already used or has expired"),
        (let_the_link_expire, "Invalid link", "This link was already used or has expired"),
        (cancel_the_run, "Expired", "The run was canceled"),
    ],
)
def test_link_that_decides_nothing_says_why(
    prepare: Callable[[Page, Asked], str], title: str, outcome: str, asked: Asked, phone: Page
) -> None:
    phone.goto(prepare(phone, asked))

    expect(phone.get_by_role("heading", name=title)).to_be_visible()
    expect(phone.get_by_role("alert")).to_contain_text(outcome)
    expect(phone.get_by_role("button")).to_have_count(0)
    check_design(phone)


def test_sign_in_page_explains_a_wrong_token_and_signs_in_with_the_right_one(
    server: RunningServer, phone: Page
) -> None:
    phone.goto(f"{server.url}/login?next=/cost")
    check_design(phone)
    phone.get_by_label("Token").fill("not-" * 60)
    phone.get_by_role("button", name="Sign in").tap()
    expect(phone.get_by_role("alert")).to_contain_text("This token is not valid on this server")
    check_design(phone)

    phone.get_by_label("Token").fill(server.token)
    phone.get_by_role("button", name="Sign in").tap()

    phone.wait_for_url(f"{server.url}/cost")


def test_used_sign_in_link_says_so(server: RunningServer, phone: Page) -> None:
    phone.goto(f"{server.url}/login?code=unknown")

    expect(phone.get_by_role("alert")).to_contain_text("This link was already used or has expired")
    check_design(phone)
