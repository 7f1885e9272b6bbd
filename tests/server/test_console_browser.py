"""The console in a real browser: live updates, a phone, two people, the keyboard, dark mode, hostile text, axe-core."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from browser import AXE, CHROMIUM, PHONE, WAIT_MILLISECONDS, Scene, Watched, open_scene, running_browser, sign_in
from console_scene import NOTES, run_everything, wait_for_approval
from model_server import Reply, calls, says
from playwright.sync_api import Browser, Page, expect

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with open_scene(tmp_path_factory.mktemp("browser"), run_everything) as opened:
        yield opened


@pytest.fixture
def roadmap(scene: Scene) -> Iterator[Path]:
    """A file that a run tries to change, with its original content."""
    yield scene.workspace.write("notes/roadmap.md", NOTES)
    scene.workspace.write("notes/roadmap.md", NOTES)


def test_a_task_can_be_started_by_its_form_and_watched_until_it_ends(browser: Browser, scene: Scene) -> None:
    context = browser.new_context()
    page = sign_in(context, scene.server)
    scene.model.follow(calls("Read", path="notes/roadmap.md"), says("The week was **good**."))
    page.goto(f"{scene.server.url}/tasks/weekly-report")
    page.get_by_label("Week").fill("2026-W03")
    page.get_by_label("Audience").select_option("board")

    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/runs/*")

    # Nothing loads the page again: what it shows arrives by its stream.
    expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=WAIT_MILLISECONDS)
    expect(page.locator("#body strong", has_text="good").first).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    entries = page.locator("#body").get_attribute("data-entries") or ""
    expect(page.locator("#moment")).to_have_attribute("data-number", entries, timeout=WAIT_MILLISECONDS)
    expect(page.get_by_role("slider")).to_have_value(entries)
    context.close()


def test_a_new_approval_appears_in_an_open_inbox_and_can_be_approved_on_a_phone(
    browser: Browser, scene: Scene, roadmap: Path
) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = sign_in(context, scene.server)
    with page.expect_response("**/inbox/list", timeout=WAIT_MILLISECONDS):  # the stream is open
        page.goto(f"{scene.server.url}/")
    wait_for_approval(scene.workspace, scene.model, task="Reorder it from a phone")
    card = page.locator("article", has_text="Reorder it from a phone")

    expect(card).to_be_visible(timeout=WAIT_MILLISECONDS)
    expect(card.locator(".diff .added")).to_contain_text("write the docs")
    approve, deny = (card.get_by_role("button", name=name, exact=True) for name in ("Approve", "Deny"))
    boxes = [cast("dict[str, float]", each.bounding_box()) for each in (approve, deny)]
    assert all(box["height"] >= 44 for box in boxes), "large enough for a thumb"
    assert abs(boxes[0]["y"] - boxes[1]["y"]) > boxes[0]["height"] + 12, "far enough apart"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    approve.tap()
    expect(page.locator("p[role=status]")).to_contain_text("Approved")
    expect(page.locator("article", has_text="Reorder it from a phone")).to_have_count(0, timeout=WAIT_MILLISECONDS)
    page.goto(f"{scene.server.url}/runs/{scene.workspace.run_ids()[-1]}")
    expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=WAIT_MILLISECONDS)

    assert roadmap.read_text().startswith("# Roadmap\n\n- write the docs")
    context.close()


def test_one_of_two_browsers_decides_and_the_other_sees_the_decision(
    browser: Browser, scene: Scene, roadmap: Path
) -> None:
    wait_for_approval(scene.workspace, scene.model, task="Two people look at this")
    # The second one has a page that does not update by itself.
    contexts = [browser.new_context(), browser.new_context(java_script_enabled=False)]
    first, second = (sign_in(context, scene.server) for context in contexts)
    for page in (first, second):
        page.goto(f"{scene.server.url}/")
    cards = [page.locator("article", has_text="Two people look at this") for page in (first, second)]
    cards[0].get_by_role("button", name="Deny", exact=True).click()
    expect(first.locator("p[role=status]")).to_contain_text("Denied")

    cards[1].get_by_role("button", name="Approve", exact=True).click()

    expect(second.get_by_role("alert")).to_contain_text("was already denied by")
    assert roadmap.read_text() == NOTES
    for context in contexts:
        context.close()


def test_approving_a_file_changed_after_its_diff_was_shown_is_rejected(
    browser: Browser, scene: Scene, roadmap: Path
) -> None:
    wait_for_approval(scene.workspace, scene.model, task="Change under the diff")
    context = browser.new_context(java_script_enabled=False)
    page = sign_in(context, scene.server)
    page.goto(f"{scene.server.url}/")
    roadmap.write_text(f"{NOTES}- one more\n")
    card = page.locator("article", has_text="Change under the diff")

    card.get_by_role("button", name="Approve", exact=True).click()

    expect(page.get_by_role("alert")).to_contain_text("The file changed since this diff was made")
    expect(page.get_by_role("button", name="Approve", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Deny", exact=True).click()
    assert roadmap.read_text() == f"{NOTES}- one more\n"
    context.close()


def test_arrow_keys_move_through_the_states_of_a_run_which_can_be_forked_there(browser: Browser, scene: Scene) -> None:
    context = browser.new_context()
    page = sign_in(context, scene.server)
    run_id = scene.workspace.run_ids()[0]
    page.goto(f"{scene.server.url}/runs/{run_id}")
    slider = page.get_by_role("slider")
    slider.focus()
    last = int(page.locator("#moment").get_attribute("data-number") or 0)

    page.keyboard.press("ArrowLeft")
    expect(page.locator("#moment")).to_have_attribute("data-number", str(last - 1))
    page.keyboard.press("Home")
    expect(page.locator("#moment")).to_have_attribute("data-number", "1")
    expect(page.locator("#moment")).to_contain_text("Entry 1: run started")
    for _ in range(last):
        if page.get_by_role("button", name="Fork after entry").count():
            break
        number = int(page.locator("#moment").get_attribute("data-number") or 0)
        page.keyboard.press("ArrowRight")
        expect(page.locator("#moment")).to_have_attribute("data-number", str(number + 1))
    scene.model.follow(says("Another answer."))
    page.get_by_role("button", name="Fork after entry").click()

    expect(page.locator("p[role=status]")).to_contain_text("This is the new run")
    expect(page.locator("#body")).to_have_attribute("data-status", "completed", timeout=WAIT_MILLISECONDS)
    expect(page.locator("#body")).to_contain_text("Another answer.")
    context.close()


def test_a_model_call_shows_its_request_and_reply_in_place(browser: Browser, scene: Scene) -> None:
    context = browser.new_context()
    page = sign_in(context, scene.server)
    run_id = scene.workspace.run_ids()[0]
    page.goto(f"{scene.server.url}/runs/{run_id}")
    page.locator("#tree a.line", has_text="gpt-5.6-luna").first.click()

    page.get_by_role("link", name="Request and reply").first.click()

    shown = page.locator(".exchange pre")
    expect(shown.first).to_contain_text("Sum up the notes of this week")
    expect(shown.last).to_contain_text("notes/roadmap.md")
    assert page.url == f"{scene.server.url}/runs/{run_id}?step=call-1", "the page is not left for it"
    context.close()


def test_the_theme_follows_the_system_and_a_choice_is_saved(browser: Browser, scene: Scene) -> None:
    context = browser.new_context(color_scheme="dark")
    page = sign_in(context, scene.server)
    page.goto(f"{scene.server.url}/runs")
    lightness = "() => getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)[0]"

    assert page.evaluate(lightness) < 60
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(lightness) > 200
    page.reload()
    assert page.evaluate(lightness) > 200
    context.close()


def test_an_approval_can_be_decided_with_the_keyboard_only(browser: Browser, scene: Scene, roadmap: Path) -> None:
    wait_for_approval(scene.workspace, scene.model, task="Decide me by keys")
    context = browser.new_context()
    page = sign_in(context, scene.server)
    page.goto(f"{scene.server.url}/")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.wait_for_url(f"{scene.server.url}/")
    card = page.locator("article", has_text="Decide me by keys")
    deny = card.get_by_role("button", name="Deny", exact=True)

    for _ in range(120):
        page.keyboard.press("Tab")
        if deny.evaluate("each => each === document.activeElement"):
            break
    page.keyboard.press("Enter")

    expect(page.locator("p[role=status]")).to_contain_text("Denied")
    assert roadmap.read_text() == NOTES
    context.close()


PAGES = (
    "/",
    "/runs",
    "/runs/RUN",
    "/runs/RUN/prompt",
    "/runs/RUN/at?k=3",
    "/runs/RUN/undo",
    "/runs/RUN/calls/1",
    "/runs/RUN/replay",
    "/runs?q=notes&cost=0",
    "/tasks",
    "/tasks/weekly-report",
    "/chat",
    "/skills?probe=sum+up+notes",
    "/skills/greeter",
    "/policy?tool=Bash&arguments={}",
    "/cost",
    "/health",
    "/schedules",
    "/evals",
    "/approvals/APPROVAL",
    "/no/such/page",
)


LIGHT = "axe.run(document, {resultTypes: ['violations']})"
DARK = "axe.run(document, {resultTypes: ['violations'], runOnly: ['color-contrast']})"
"""Of what axe-core looks at, only colours differ in the dark."""


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed")
def test_no_page_has_a_serious_accessibility_violation(browser: Browser, scene: Scene) -> None:
    context = browser.new_context(color_scheme="light", viewport=PHONE)
    page = sign_in(context, scene.server)
    page.goto(f"{scene.server.url}/")
    approval = page.locator("article[id^=approval-]").first.get_attribute("id") or ""
    faults: list[str] = []
    for path in PAGES:
        address = path.replace("RUN", scene.workspace.run_ids()[0]).replace(
            "APPROVAL", approval.removeprefix("approval-")
        )
        page.emulate_media(color_scheme="light")
        page.goto(scene.server.url + address)
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = list_serious(page, LIGHT)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{path} is wider than a phone"
        page.emulate_media(color_scheme="dark")
        found += list_serious(page, DARK)
        faults += [f"{path}: {each}" for each in found]
    context.close()

    assert faults == []


@pytest.mark.parametrize("path", ["/runs", "/cost", "/latency"])
def test_charts_fit_their_cards_on_a_phone_and_their_labels_do_not_overlap(
    path: str, browser: Browser, scene: Scene
) -> None:
    context = browser.new_context(viewport=PHONE)
    page = sign_in(context, scene.server)
    page.goto(scene.server.url + path)
    edges = "each => { const box = each.getBoundingClientRect(); return [box.left, box.right] }"

    chart = page.locator(".plot").first
    right = chart.evaluate(edges)[1]
    drawn = chart.locator("svg[role=img]")
    assert drawn.evaluate(edges)[1] <= right + 0.5
    labels = [each.evaluate(edges) for each in drawn.locator("text:visible").all()]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(labels)), labels
    context.close()


def list_serious(page: Page, question: str) -> list[str]:
    found = cast("dict[str, Any]", page.evaluate(question))
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]


def test_pages_are_complete_without_javascript(browser: Browser, scene: Scene) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = sign_in(context, scene.server)
    page.goto(f"{scene.server.url}/runs/{scene.workspace.run_ids()[0]}")

    page.locator("#tree a.line", has_text="roadmap.md").first.click()
    expect(page.get_by_text("ship the server").first).to_be_visible()
    page.get_by_role("link", name="Previous entry").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("State after entry")
    context.close()


def test_no_hostile_text_runs_or_sends_anything(browser: Browser, scene: Scene, roadmap: Path) -> None:
    """Through task text, tool output, file names, skill descriptions, diffs, Markdown of a model and errors."""
    payloads = cast(
        "tuple[str, ...]", json.loads((Path(__file__).parent / "hostile_texts.json").read_text(encoding="utf-8"))
    )
    everything = "\n\n".join(payloads)
    scene.workspace.write("notes/hostile.md", everything)
    scene.workspace.write("notes/<img src=x onerror=window.hit=1>.md", "x")
    scene.workspace.add_skill("hostile", json.dumps(everything[:900]), body=everything)
    scene.model.follow(
        Reply(text=everything, calls=(("Read", {"path": "notes/hostile.md"}), ("Glob", {"pattern": "notes/*.md"}))),
        calls("Read", path=f"notes/{payloads[0]}"),
        says(everything),
    )
    scene.workspace.agent("run", everything, "-q")
    scene.model.follow(calls("Write", path="notes/<svg onload=window.hit=1>.md", content=everything))
    scene.workspace.agent("run", "Write something hostile", "-q")
    run_id, asking = scene.workspace.run_ids()[-2:]
    context = browser.new_context()
    page = sign_in(context, scene.server)
    watched = Watched(page, scene.server)

    for path in ("/", "/runs", f"/runs/{run_id}", f"/runs/{asking}", f"/runs/{run_id}/prompt", f"/runs/{run_id}/at?k=8",
                 f"/runs/{run_id}/calls/1", f"/runs/{run_id}/replay", "/health", "/chat",
                 "/skills", "/skills/hostile", "/tasks", "/cost?by=task"):  # fmt: skip
        page.goto(scene.server.url + path)
        page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
        page.wait_for_load_state("load")
        assert page.evaluate("window.hit === undefined"), path
        assert page.locator("main script, main img, main iframe, main base, main link").count() == 0, path
        assert (
            page.locator("main [href^='javascript:' i], main [href^='data:' i], main form[action^='http']").count() == 0
        )
    for path in (f"/runs?status={payloads[0]}", f"/runs/{'%3Cscript%3E'}", f"/runs?q={payloads[1]}"):
        page.goto(scene.server.url + path)
        assert page.evaluate("window.hit === undefined"), path
    context.close()

    assert watched.strays == []
    assert watched.errors == []
