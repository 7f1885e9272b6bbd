"""The console without JavaScript: contents of pages, and effects of forms."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from console_client import ConsoleClient
from console_scene import NOTES, ask_question, prepare, wait_for_approval
from model_server import ModelServer, Reply, calls, running_model, says
from run_workspace import Workspace
from running_server import serving

from metier.server.console import pages
from metier.server.users import build_entry, make_token


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: ModelServer) -> Workspace:
    home, folder = tmp_path / "home", tmp_path / "notebook"
    home.mkdir()
    folder.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)
    monkeypatch.chdir(folder)
    return prepare(folder, model)


@pytest.fixture
def console(scene: Workspace) -> Iterator[ConsoleClient]:
    with serving(scene.folder) as server, closing(ConsoleClient(server)) as client:
        yield client


def wait_until_done(console: ConsoleClient, run_id: str) -> str:
    """Wait until the server completed the run, and return its page."""
    for _ in range(300):
        page = console.open(f"/runs/{run_id}")
        if re.search(r'data-status="(completed|failed|canceled)"', page):
            return page
        console.http.get("/api/v1/health")
    raise AssertionError(console.page)


def test_an_empty_inbox_is_reported(console: ConsoleClient) -> None:
    console.open("/")

    assert "Nothing is waiting for you" in console.words()


def test_an_approval_is_shown_with_its_diff_and_approving_it_lets_the_run_continue(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    wait_for_approval(scene, model)
    console.open("/")
    words = console.words()
    (name,) = re.findall(r'id="approval-(ap-\w+)"', console.page)

    assert "This will change the file notes/roadmap.md" in words
    assert "+- write the docs" in words
    assert (scene.folder / "notes/roadmap.md").read_text() == NOTES

    console.submit(f"/approvals/{name}", decision="approved", reason="as agreed")
    assert "Approved" in console.words()
    wait_until_done(console, scene.run_ids()[-1])

    assert (scene.folder / "notes/roadmap.md").read_text().startswith("# Roadmap\n\n- write the docs\n")
    assert "Approved by tester: as agreed" in console.open(f"/approvals/{name}") or "as agreed" in console.words()


def test_one_of_two_users_decides_and_the_other_sees_who_decided(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    wait_for_approval(scene, model)
    console.open("/")
    (name,) = re.findall(r'id="approval-(ap-\w+)"', console.page)
    first = console.page
    console.submit(f"/approvals/{name}", decision="denied", reason="not today")
    console.page = first  # the other one has had the page open meanwhile

    console.submit(f"/approvals/{name}", decision="approved")

    assert console.status == 409
    assert "was already denied by 'tester'" in console.words()
    assert (scene.folder / "notes/roadmap.md").read_text() == NOTES


def test_a_file_changed_after_its_diff_was_shown_is_not_approved(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    wait_for_approval(scene, model)
    console.open("/")
    (name,) = re.findall(r'id="approval-(ap-\w+)"', console.page)
    scene.write("notes/roadmap.md", NOTES + "- one more\n")

    console.submit(f"/approvals/{name}", decision="approved")

    assert console.status == 409
    assert "The file changed since this diff was made" in console.words()
    console.open("/")
    assert 'value="approved"' not in console.page, "there is no button that would be refused"


def test_a_script_can_be_approved_if_only_its_run_knows_its_files(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Greeted, kindly."))
    scene.agent("run", "Greet Ada", "-q")
    console.open("/")
    (name,) = re.findall(r'id="approval-(ap-\w+)"', console.page)

    console.submit(f"/approvals/{name}", decision="approved")

    assert "Greeted, kindly." in wait_until_done(console, scene.run_ids()[-1])


def test_an_edited_call_is_shown_with_its_new_diff_before_it_is_approved(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    wait_for_approval(scene, model)
    console.open("/")
    (name,) = re.findall(r'id="approval-(ap-\w+)"', console.page)
    console.open(f"/approvals/{name}")
    edited = '{"path": "notes/roadmap.md", "old": "- rest", "new": "- rest well"}'

    console.submit(f"/approvals/{name}/edit", arguments=edited, do="look")
    assert "+- rest well" in console.words()
    console.submit(f"/approvals/{name}/edit", arguments=edited, do="approve")
    wait_until_done(console, scene.run_ids()[-1])

    assert (scene.folder / "notes/roadmap.md").read_text() == NOTES.replace("- rest", "- rest well")


def test_edited_arguments_that_are_not_an_object_leave_the_approval_open(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    wait_for_approval(scene, model)
    console.open("/")
    (name,) = re.findall(r'id="approval-(ap-\w+)"', console.page)
    console.open(f"/approvals/{name}")

    console.submit(f"/approvals/{name}/edit", arguments="[1]", do="approve")

    assert console.status == 422
    assert 'value="approved"' in console.page


def test_several_approvals_can_be_decided_together(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    wait_for_approval(scene, model, task="One")
    wait_for_approval(scene, model, task="Two")
    console.open("/")
    marked = re.findall(r'name="approval" value="(ap-\w+:\w+)"', console.page)
    token = re.findall(r'name="csrf_token" value="(\w+)"', console.page)[0]

    answer = console.http.post("/inbox/many", data={"csrf_token": token, "decision": "denied", "approval": marked})

    assert (len(marked), answer.status_code) == (2, 303)
    assert 'id="approval-' not in console.open("/")


def test_a_question_is_a_form_and_its_answer_reaches_the_model(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    ask_question(scene, model)
    run_id = scene.run_ids()[-1]
    console.open("/")
    assert "When shall the release be, and where?" in console.words()

    console.submit(f"/runs/{run_id}/answer", date="2026-02-01", channel="stable", announce="true")
    wait_until_done(console, run_id)

    assert "2026-02-01" in str(model.received[-1]["messages"])


def test_raising_a_limit_in_the_inbox_continues_the_run(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    model.follow(calls("Read", path="notes/roadmap.md"), says("Done."))
    scene.agent("run", "Read it", "--max-turns", "1", "-q")
    run_id = scene.run_ids()[-1]
    console.open("/")
    assert "A limit is reached" in console.words()

    console.submit(f"/runs/{run_id}/raise", value="4")
    page = wait_until_done(console, run_id)

    assert 'data-status="completed"' in page


def test_a_run_shows_steps_and_the_state_at_an_entry_where_it_can_be_forked(
    scene: Workspace, model: ModelServer, console: ConsoleClient
) -> None:
    model.follow(calls("Read", path="notes/roadmap.md"), says("It is short."))
    scene.agent("run", "Read the roadmap", "-q")
    run_id = scene.run_ids()[-1]

    console.open(f"/runs/{run_id}")
    assert "ship the server" in console.words(), "the output of the step"
    assert "It is short." in console.words()
    forkable = next(k for k in range(2, 40) if "Fork after entry" in console.open(f"/runs/{run_id}/at?k={k}"))
    assert f"State after entry {forkable}" in console.words()
    model.follow(says("It has three lines."))
    assert ">Read the roadmap</textarea>" in console.page, "the message is there to be edited"
    console.submit(f"/runs/{run_id}/fork", task="Count the lines", model="another-model")
    forked = scene.run_ids()[-1]
    page = wait_until_done(console, forked)

    assert forked != run_id
    assert "It has three lines." in page
    assert model.received[-1]["model"] == "another-model"
    assert "Count the lines" in json.dumps(model.received[-1]["messages"])


def test_a_missing_entry_shows_an_error_page(scene: Workspace, model: ModelServer, console: ConsoleClient) -> None:
    model.follow(says("Hello."))
    scene.agent("run", "Say hello", "-q")

    console.open(f"/runs/{scene.run_ids()[-1]}/at?k=999")

    assert console.status == 400
    assert "has no entry 999" in console.words()


@pytest.mark.parametrize(
    ("query", "shown", "hidden"),
    [
        ("", ("Alpha", "Beta"), ()),
        ("q=alpha", ("Alpha",), ("Beta",)),
        ("q=-alpha", ("Beta",), ("Alpha",)),
        ("status=completed", ("Alpha",), ("Beta",)),
        ("status=-completed", ("Beta",), ("Alpha",)),
        ("q=status:failed", ("Beta",), ("Alpha",)),
        ("since=1h&model=gpt-5.6-luna", ("Alpha", "Beta"), ()),
        ("cost=1", (), ("Alpha", "Beta")),
    ],
)
def test_the_url_of_the_list_contains_its_filter(
    query: str, shown: tuple[str, ...], hidden: tuple[str, ...], listed: ConsoleClient
) -> None:
    page = listed.open(f"/runs?{query}")

    assert all(f">{task}</a>" in page for task in shown)
    assert not any(f">{task}</a>" in page for task in hidden)


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleClient]:
    """A console with a completed and a failed run."""
    with pytest.MonkeyPatch.context() as patch, running_model() as model:
        base = tmp_path_factory.mktemp("listed")
        (base / "home").mkdir()
        (base / "work").mkdir()
        patch.setenv("HOME", str(base / "home"))
        patch.setenv("OPENAI_API_KEY", "k" * 12)
        patch.chdir(base / "work")
        scene = prepare(base / "work", model)
        model.follow(says("Done."))
        scene.agent("run", "Alpha", "-q")
        model.follow(Reply(status=401))
        scene.agent("run", "Beta", "-q")
        with serving(scene.folder) as server, closing(ConsoleClient(server)) as client:
            yield client


def test_an_impossible_filter_is_rejected_with_the_valid_values(listed: ConsoleClient) -> None:
    listed.open("/runs?status=nearly")

    assert listed.status == 400
    assert "Use one of" in listed.words()


def test_shared_runs_and_exports_are_inert_downloads(listed: ConsoleClient) -> None:
    (run_id,) = re.findall(r'/runs/([\w-]+)" title="[^"]*">Alpha', listed.open("/runs"))

    for kind in ("share", "export"):
        answer = listed.http.get(f"/runs/{run_id}/{kind}")

        assert answer.status_code == 200
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox; frame-ancestors 'none'"


def test_the_vendored_scripts_match_their_page() -> None:
    folder = pages.STATIC / "vendor"
    told = dict(re.findall(r"\| `([\w.-]+)` \| `(\w{64})` \|", (folder / "README.md").read_text()))

    assert {file.name for file in folder.glob("*.js")} == set(told)
    for name, digest in told.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


def test_a_viewer_sees_the_inbox_without_buttons(scene: Workspace, model: ModelServer) -> None:
    token = make_token()
    settings = json.loads((scene.folder / "agent.yaml").read_text())
    scene.configure(**settings, server={"users": [build_entry("ada", "viewer", token)]})
    wait_for_approval(scene, model)
    with serving(scene.folder) as server, server.client("") as client:
        assert client.post("/login", data={"token": token}).status_code == 303
        page = client.get("/", headers={"accept": "text/html"}).text

        assert "This will change the file notes/roadmap.md" in page
        assert 'value="approved"' not in page
        assert "is read-only" in page


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("echo \x1b]0; touch made #\x07", "echo \\x1b]0; touch made #\\x07"),
        ("curl -u me:abc;touch${IFS}made x", "curl -u me:abc;touch${IFS}made x"),
        ("cat a\u202eb", "cat a\\u202eb"),
    ],
)
def test_an_approval_page_shows_everything_that_would_run(
    scene: Workspace, model: ModelServer, console: ConsoleClient, command: str, shown: str
) -> None:
    model.follow(calls("Bash", command=command), says("Done."))
    scene.agent("run", "Do it", "-q")
    console.open("/")
    (name,) = re.findall(r'id="approval-(ap-\w+)"', console.page)

    console.open(f"/approvals/{name}")

    assert shown in console.words()
