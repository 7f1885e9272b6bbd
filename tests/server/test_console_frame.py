"""The frame of the console: saved views, sign-out, and unknown requests."""

import json
import re
from collections.abc import Iterator
from contextlib import closing

import pytest
from console_client import ConsoleClient
from console_scene import prepare
from model_server import ModelServer, calls, running_model, says
from running_server import RunningServer, serving

from metier.server.users import build_entry, make_token


class Scene:
    def __init__(self, server: RunningServer, model: ModelServer, viewer: str) -> None:
        self.server, self.model, self.viewer = server, model, viewer


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A workspace with two runs, an owner, a viewer, and a server shared by these tests."""
    with pytest.MonkeyPatch.context() as patch, running_model() as model:
        base = tmp_path_factory.mktemp("frame")
        for name in ("home", "work"):
            (base / name).mkdir()
        patch.setenv("HOME", str(base / "home"))
        patch.setenv("OPENAI_API_KEY", "k" * 12)
        patch.chdir(base / "work")
        workspace = prepare(base / "work", model)
        viewer = make_token()
        settings = json.loads((workspace.folder / "agent.yaml").read_text())
        workspace.configure(**settings, server={"users": [build_entry("vera", "viewer", viewer)]})
        model.follow(calls("Read", path="notes/roadmap.md"), says("It is short."), says("Hello."))
        workspace.agent("run", "Read the roadmap", "-q")
        workspace.agent("run", "Say hello", "-q")
        with serving(workspace.folder) as server:
            yield Scene(server, model, viewer)


@pytest.fixture
def console(scene: Scene) -> Iterator[ConsoleClient]:
    with closing(ConsoleClient(scene.server)) as client:
        yield client


def list_views(page: str) -> dict[str, str]:
    return {name: address for address, name in re.findall(r'<a class="own" href="([^"]+)"[^>]*>([^<]+)</a>', page)}


def test_a_filter_can_be_saved_listed_and_removed(console: ConsoleClient) -> None:
    console.open("/runs?q=roadmap&status=completed")
    console.submit("/runs/views", name="  Done   with the roadmap ")
    views = list_views(console.page)

    assert views == {"Done with the roadmap": "/runs?q=roadmap&amp;status=completed"}
    assert "Read the roadmap" in console.words()
    assert "Say hello" not in console.words()
    console.open("/runs")
    assert list_views(console.page) == views
    console.open("/runs?q=roadmap&status=completed")
    console.submit("/runs/views/remove")
    assert list_views(console.page) == {}


def test_a_view_belongs_to_the_user_who_saved_it(scene: Scene, console: ConsoleClient) -> None:
    with closing(ConsoleClient(scene.server, token=scene.viewer)) as viewer:
        viewer.open("/runs?q=hello")
        viewer.submit("/runs/views", name="Greetings")
        assert list(list_views(viewer.page)) == ["Greetings"]

        console.open("/runs")

    assert list_views(console.page) == {}


def test_a_saved_view_needs_a_name_and_a_filter(console: ConsoleClient) -> None:
    console.open("/runs?q=hello")
    console.submit("/runs/views", name=" ")
    assert console.status == 400
    assert "name of the view is missing" in console.words()

    console.open("/runs?q=hello")
    console.submit("/runs/views", name="All", address="nothing=known")

    assert console.status == 400
    assert "no filter to save" in console.words()


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("cost=%3C0", set[str]()),
        ("cost=0", {"Read the roadmap", "Say hello"}),
        ("until=2020-01-01", set[str]()),
        ("since=2020-01-01", {"Read the roadmap", "Say hello"}),
        ("status=-completed", set[str]()),
        ("q=-until:2020-01-01+hello", {"Say hello"}),
    ],
)
def test_the_list_can_be_filtered_by_ranges_of_cost_and_time(
    console: ConsoleClient, address: str, shown: set[str]
) -> None:
    console.open(f"/runs?{address}")

    assert {task for task in ("Read the roadmap", "Say hello") if task in console.words()} == shown


def test_the_list_shows_tokens_and_cost_of_each_run(console: ConsoleClient) -> None:
    page = console.open("/runs?q=roadmap")

    assert re.search(r'<td class="num hide-medium">220</td>\s*<td class="num">\$0\.000\d+</td>', page), console.words()


def test_signing_out_ends_the_session_of_the_browser(console: ConsoleClient) -> None:
    console.open("/cost")
    console.submit("/logout")

    assert "Sign in" in console.words()
    assert "agent serve" in console.words()
    answer = console.http.get("/runs", headers={"accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?next=/runs")


def test_a_missing_path_returns_a_page_to_browsers_and_a_problem_to_programs(
    scene: Scene, console: ConsoleClient
) -> None:
    console.open("/no/such/page")
    assert console.status == 404
    assert "There is nothing at '/no/such/page'" in console.words()
    assert "Inbox" in console.words()

    with scene.server.client() as program:
        found = [program.get(path, headers={"accept": accept}) for path, accept in PROGRAMS]

    for answer in found:
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "not_found"


PROGRAMS = (("/no/such/page", "*/*"), ("/api/v1/nothing", "text/html"), ("/static/nothing.js", "text/html,*/*"))


def test_a_form_rejected_by_middleware_returns_a_page(console: ConsoleClient) -> None:
    answer = console.http.post("/tasks", data={"task": "x"}, headers={"accept": "text/html"})

    assert answer.status_code == 403
    assert answer.headers["content-type"].startswith("text/html")
    assert "The form does not belong to this session" in answer.text
    assert 'href="/"' in answer.text
