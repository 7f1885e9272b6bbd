"""Lists and charts of the console in a browser: rows, times, bulk actions, schedules, audit, latency."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from browser import CHROMIUM, PHONE, WAIT_MILLISECONDS, Scene, open_scene, running_browser, sign_in
from console_scene import fill_list, keep_evals, run_everything, wait_for_approval
from model_server import ModelServer, says
from playwright.sync_api import Browser, Page, ViewportSize, expect
from run_workspace import Workspace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="chromium is not installed"),
]

ZONE = "America/New_York"


def fill(workspace: Workspace, model: ModelServer) -> None:
    run_everything(workspace, model)
    wait_for_approval(workspace, model, task="Ask a second time")
    workspace.agent("schedule", "add", "nightly", "Sum up the day", "--cron", "0 6 * * *")
    workspace.agent("schedule", "add", "report", "Sum up the week", "--every", "6h")
    keep_evals(workspace.folder)
    fill_list(workspace.folder, count=40)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with open_scene(tmp_path_factory.mktemp("lists"), fill) as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, scene: Scene) -> Iterator[Page]:
    context = browser.new_context(viewport=ViewportSize(width=1280, height=800), timezone_id=ZONE)
    yield sign_in(context, scene.server)
    context.close()


def get_height(page: Page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return box["height"]


def get_widths(page: Page, inner: str, outer: str) -> tuple[float, float]:
    boxes = [page.locator(selector).first.bounding_box() for selector in (inner, outer)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    return boxes[0]["width"], boxes[1]["width"]


def test_runs_have_one_line_each_and_relative_times(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/runs")

    heights = page.locator("tr.row-link").evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
    assert max(heights) <= 44
    started = page.locator("tr.row-link time").first
    ages = page.locator("tr.row-link time").all_inner_texts()
    assert all(re.fullmatch(r"just now|\d+ (min|h) ago", age) for age in ages)
    assert any(age.endswith("h ago") for age in ages)
    moment = datetime.fromisoformat(started.get_attribute("datetime") or "").astimezone(ZoneInfo(ZONE))
    assert f"{moment.day}" in (started.get_attribute("title") or "")


def test_pages_of_the_navigation_have_icons(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/runs")
    links = page.get_by_role("navigation", name="Pages", exact=True).get_by_role("link")

    assert links.count() >= 10
    assert all(links.nth(number).locator("svg.icon path").count() == 1 for number in range(links.count()))


@pytest.mark.parametrize("path", ["/runs", "/cost", "/latency"])
def test_charts_fill_the_page_and_have_axes(page: Page, scene: Scene, path: str) -> None:
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 800})
        page.goto(f"{scene.server.url}{path}")
        plot, main = get_widths(page, ".plot", "main")

        assert plot >= 0.8 * main - 60
        labels = page.locator(".plot .axis-y text").all_text_contents()
        assert len(labels) >= 2
        assert re.search(r"\d", labels[-1])
        assert page.locator(".plot svg[role=img] text").count() >= 1
        # On a phone every second label is hidden.
        shown = page.locator(".plot text:visible")
        sizes = shown.evaluate_all("each => each.map(text => text.getBoundingClientRect().height)")
        assert all(9 <= size <= 18 for size in sizes), "text is not scaled with the chart"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_selected_approvals_are_counted_in_a_bar_that_stays_in_view(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/")
    bar = page.locator("#many")
    marks = page.get_by_role("checkbox", name="Mark this approval")
    total = marks.count()
    assert total >= 3

    expect(bar).to_be_in_viewport(ratio=1)
    expect(bar.get_by_role("button", name="Approve selected")).to_be_disabled()
    marks.first.check()
    expect(bar).to_contain_text(f"1 of {total} selected")
    bar.get_by_role("button", name="Select all").click()
    expect(bar).to_contain_text(f"{total} of {total} selected")
    page.mouse.wheel(0, 500)
    expect(bar).to_be_in_viewport(ratio=1)
    bar.get_by_role("button", name="Select none").click()
    page.locator("article", has_text="Ask a second time").get_by_role("checkbox").check()
    bar.get_by_role("button", name="Deny selected").click()
    expect(page.locator("p[role=status]")).to_contain_text("decided")
    expect(page.locator("article", has_text="Ask a second time")).to_have_count(0)


def test_bar_for_selected_approvals_leaves_room_on_a_phone_until_one_is_selected(page: Page, scene: Scene) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{scene.server.url}/")
    bar = page.locator("#many")

    assert get_height(page, "#many") < 0.1 * 844
    expect(bar.get_by_role("button", name="Approve selected")).to_be_hidden()
    page.get_by_role("checkbox", name="Mark this approval").first.check()
    expect(bar.get_by_role("button", name="Approve selected")).to_be_visible()
    expect(bar).to_be_in_viewport(ratio=1)


def test_bars_of_evals_have_the_colors_of_other_charts(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/evals")
    color = "element => getComputedStyle(element).fill"

    assert page.locator(".spark rect:not(.base)").first.evaluate(color) != "rgb(0, 0, 0)"


def test_decisions_are_listed_with_their_user_and_call(page: Page, scene: Scene) -> None:
    wait_for_approval(scene.workspace, scene.model, task="Audit this one")
    page.goto(f"{scene.server.url}/")
    card = page.locator("article", has_text="Audit this one")
    card.get_by_label("Reason").fill("Not before Friday")
    card.get_by_role("button", name="Deny", exact=True).click()
    expect(page.locator("p[role=status]")).to_contain_text("Denied")

    page.get_by_role("link", name="Audit").first.click()

    row = page.locator("tbody tr").first
    for text in ("roadmap.md", "denied", "tester", "Not before Friday", "just now"):
        expect(row).to_contain_text(text)
    page.get_by_label("Decision").select_option("approved")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tr", has_text="Not before Friday")).to_have_count(0)
    page.goto(f"{scene.server.url}/audit?by=nobody")
    expect(page.locator("main")).to_contain_text("No decision matches")


def test_a_schedule_is_added_with_local_times_and_removed(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/schedules")
    upcoming = page.locator("#schedule-nightly dd time").first
    moment = datetime.fromisoformat(upcoming.get_attribute("datetime") or "")
    assert moment.astimezone(UTC).hour == 6
    expect(upcoming).to_have_text(f"{moment.astimezone(ZoneInfo(ZONE)):%Y-%m-%d %H:%M}")
    expect(page.locator(".head")).to_contain_text(ZONE)

    page.locator("summary", has_text="Add a schedule").click()
    expect(page.get_by_label("Time zone")).to_have_value(ZONE)
    page.get_by_label("Name").fill("morning")
    page.get_by_label("Task in your own words").fill("Read the news")
    page.get_by_label("Cron expression").first.fill("30 7 * * mon-fri")
    page.get_by_role("button", name="Add", exact=True).click()

    expect(page.locator("p[role=status]")).to_contain_text("added")
    card = page.locator("#schedule-morning")
    expect(card).to_contain_text("Read the news")
    expect(card.locator("dd time").first).to_have_text(re.compile("07:30$"))
    card.get_by_role("button", name="Remove").click()
    expect(page.locator("#schedule-morning")).to_have_count(0)


def test_interval_of_a_schedule_is_shown_in_its_largest_unit(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/schedules")

    expect(page.locator("#schedule-report")).to_contain_text("every 6 h")


def test_a_schedule_with_a_mistake_is_refused_with_the_reason(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/schedules")
    page.locator("summary", has_text="Add a schedule").click()
    page.get_by_label("Name").fill("wrong")
    page.get_by_label("Task in your own words").fill("Read the news")
    page.get_by_label("Cron expression").first.fill("every day")
    page.get_by_role("button", name="Add", exact=True).click()

    expect(page.locator("main")).to_contain_text("The schedule cannot be used")


def test_matching_runs_are_canceled_together_after_a_confirmation(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/runs?q=release")
    page.get_by_role("link", name="Cancel…").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 run?")
    expect(page.locator("tbody")).to_contain_text("Plan the release")
    page.get_by_role("button", name="Cancel 1 run").click()

    expect(page.locator("p[role=status]")).to_contain_text("being canceled")
    expect(page.locator("tr", has_text="Plan the release")).to_contain_text("canceled", timeout=WAIT_MILLISECONDS)
    page.goto(f"{scene.server.url}/runs/bulk?do=cancel&q=release")
    expect(page.get_by_role("heading", level=1)).to_have_text("Nothing to cancel")


def test_failed_runs_of_a_filter_are_retried_together(page: Page, scene: Scene) -> None:
    scene.model.follow(says("It worked this time."))
    page.goto(f"{scene.server.url}/runs?status=failed&model=gpt-5.6-luna&until=2000-01-01")
    expect(page.locator("main")).to_contain_text("No run matches")
    page.goto(f"{scene.server.url}/runs/bulk?do=retry&q=Compare_the_quarterly&cost=<0.001")

    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 1 run?")
    page.get_by_role("button", name="Retry 1 run").click()

    expect(page.locator("p[role=status]")).to_contain_text("queued")
    row = page.locator("tr.row-link", has_text="Compare_the_quarterly").first
    expect(row).to_contain_text("completed", timeout=WAIT_MILLISECONDS)


def test_latency_has_percentiles_of_runs_and_model_calls(page: Page, scene: Scene) -> None:
    page.goto(f"{scene.server.url}/latency?since=4w")

    expect(page.locator("dl.tiles")).to_contain_text("p95")
    heads = page.locator("table").first.locator("th").all_inner_texts()
    assert heads == ["Model", "Runs", "p50", "p90", "p95", "p99", "Longest"]
    expect(page.locator("table").first).to_contain_text("gpt-5.6-luna")
    expect(page.get_by_role("heading", name=re.compile("Model calls of the latest"))).to_be_visible()
    page.get_by_role("link", name="agent", exact=True).click()
    expect(page.locator("table").first).to_contain_text("quarterly-figures-of-every-region")


def test_lists_fit_a_phone(browser: Browser, scene: Scene) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = sign_in(context, scene.server)
    for path in ("/runs", "/audit", "/latency", "/schedules", "/runs/bulk?do=cancel", "/cost"):
        page.goto(f"{scene.server.url}{path}")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    context.close()
