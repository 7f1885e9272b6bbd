"""The page of a long run in a browser: tree, step details, URL, search, failures, rerun, pager."""

from collections.abc import Iterator

import pytest
from browser import CHROMIUM, PHONE, WAIT_MILLISECONDS, Scene, open_scene, running_browser, sign_in
from model_server import ModelServer, Reply, calls, says
from playwright.sync_api import Browser, Page, ViewportSize, expect
from run_workspace import Workspace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]

TURNS = 12


def run_long(workspace: Workspace, model: ModelServer) -> None:
    """Run 12 turns with one search each; turn 4 also reads a missing file."""
    searches = [
        Reply(
            text="Now the middle of it." if turn == 6 else "",
            calls=(
                ("Grep", {"pattern": f"word-{turn}", "path": "notes"}),
                *((("Read", {"path": "notes/nowhere.md"}),) if turn == 4 else ()),
            ),
        )
        for turn in range(1, TURNS)
    ]
    model.follow(*searches, says("Found it."))
    workspace.agent("run", "Search for every word", "--max-turns", "20", "-q")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with open_scene(tmp_path_factory.mktemp("long"), run_long) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, scene: Scene) -> Iterator[Page]:
    context = browser.new_context(viewport=ViewportSize(width=1280, height=800))
    page = sign_in(context, scene.server)
    page.goto(f"{scene.server.url}/runs/{scene.workspace.run_ids()[0]}")
    yield page
    context.close()


def test_a_step_opens_next_to_the_tree_and_has_a_url(page: Page, scene: Scene, browser: Browser) -> None:
    page.locator("#tree a.line", has_text="word-7").click()

    detail = page.locator("#detail")
    expect(detail).to_contain_text("word-7")
    tree_box, detail_box = page.locator("#tree").bounding_box(), detail.bounding_box()
    assert tree_box is not None
    assert detail_box is not None
    assert detail_box["x"] >= tree_box["x"] + tree_box["width"]
    assert abs(detail_box["y"] - tree_box["y"]) < 5
    address = page.url
    assert "?step=7.1" in address
    page.locator("#tree a.line", has_text="word-9").click()
    expect(detail).to_contain_text("word-9")
    page.go_back()
    expect(detail).to_contain_text("word-7")
    other = browser.new_context(java_script_enabled=False)
    plain = sign_in(other, scene.server)
    plain.goto(address)
    expect(plain.locator("#detail")).to_contain_text("word-7")
    expect(plain.locator("#tree a.line[aria-current]")).to_contain_text("word-7")
    other.close()


def test_turns_collapse_and_expand(page: Page) -> None:
    row = page.locator("#tree a.line", has_text="word-3")
    expect(row).to_be_visible()

    page.locator("#turn-3 > summary").click()
    expect(row).to_be_hidden()
    page.get_by_role("button", name="Expand all").click()
    expect(row).to_be_visible()
    page.get_by_role("button", name="Collapse all").click()
    expect(page.locator("#tree a.line:visible")).to_have_count(0)
    page.locator("#detail a[rel=next]").click()
    expect(page.locator("#tree a.line[aria-current]")).to_be_visible()


def test_find_shows_only_matching_steps_and_enter_opens_the_next_one(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("word-1")

    expect(page.locator("#find-count")).to_have_text("3 found")
    expect(page.locator("#tree a.line:visible")).to_have_count(3)
    page.keyboard.press("Enter")
    expect(page.locator("#detail")).to_contain_text("word-1")
    page.keyboard.press("Enter")
    expect(page.locator("#detail")).to_contain_text("word-10")
    page.keyboard.press("Escape")
    expect(page.locator("#tree a.line", has_text="word-5")).to_be_visible()


def test_the_first_failure_is_one_click_away(page: Page) -> None:
    page.locator("#tree a.line", has_text="word-9").click()
    expect(page.locator("#detail")).to_contain_text("word-9")

    page.get_by_role("link", name="First failure").click()

    expect(page.locator("#detail")).to_contain_text("notes/nowhere.md")
    expect(page.locator("#tree a.line[aria-current]")).to_contain_text("nowhere.md")
    assert "?step=4.2" in page.url


def test_a_phone_shows_the_chosen_step_above_the_tree(browser: Browser, scene: Scene) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = sign_in(context, scene.server)
    page.goto(f"{scene.server.url}/runs/{scene.workspace.run_ids()[0]}")
    expect(page.locator("#detail")).to_be_hidden()

    page.locator("#tree a.line", has_text="word-7").tap()

    expect(page.locator("#detail")).to_contain_text("word-7")
    expect(page.locator("#detail")).to_be_in_viewport()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_a_run_can_be_rerun_from_a_step(page: Page, scene: Scene) -> None:
    page.locator("#tree a.line", has_text="word-8").click()
    expect(page.locator("#detail")).to_contain_text("word-8")
    scene.model.follow(calls("Grep", pattern="other-word", path="notes"), says("Another end."))

    page.locator("#detail summary", has_text="Rerun from here").click()
    page.get_by_role("button", name="Rerun").click()

    expect(page.locator("p[role=status]")).to_contain_text("This is the new run")
    expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=WAIT_MILLISECONDS)
    expect(page.locator("#body")).to_contain_text("Another end.")
    tree = page.locator("#tree")
    expect(tree).to_contain_text("word-7")
    expect(tree).to_contain_text("other-word")
    expect(tree).not_to_contain_text("word-9")


def test_calls_and_prompts_have_previous_and_next_instead_of_a_button_for_each_turn(page: Page, scene: Scene) -> None:
    run_id = scene.workspace.run_ids()[0]
    for path in ("calls/5", "prompt?turn=5"):
        page.goto(f"{scene.server.url}/runs/{run_id}/{path}")
        pager = page.get_by_role("navigation", name="Turns")
        expect(pager.get_by_role("link")).to_have_count(2)
        pager.get_by_role("link", name="Next").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("turn 6")
        pager.get_by_label("Turn", exact=True).fill("11")
        pager.get_by_role("button", name="Go").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("turn 11")
        pager.get_by_role("link", name="Previous").click()
        expect(page.get_by_role("heading", level=1)).to_contain_text("turn 10")


def test_the_text_of_a_reply_is_streamed(page: Page, scene: Scene) -> None:
    scene.model.halting.set()
    scene.model.follow(says("It is a long answer with many words that arrive one after the other."))
    page.goto(f"{scene.server.url}/tasks")
    page.get_by_label("Task", exact=True).fill("Stream an answer")
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/runs/*")
    try:
        draft = page.locator("#draft")
        expect(draft).to_contain_text("It is a", timeout=WAIT_MILLISECONDS)
        expect(draft).to_be_visible()
        expect(page.locator("#body")).to_have_attribute("data-status", "in_progress")
    finally:
        scene.model.halting.clear()
        scene.model.released.set()

    expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=WAIT_MILLISECONDS)
    expect(page.locator(".prose", has_text="one after the other").first).to_be_visible()
    expect(draft).to_be_hidden()
