"""One run on the console: requests, replies, files, verdicts, replay, undo, and child runs."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from html import unescape

import pytest
from console_client import ConsoleClient
from console_scene import prepare
from model_server import ModelServer, calls, running_model, says
from run_workspace import Workspace
from running_server import serving

from metier.definitions.policy_file import POLICY_FILE

STEP = "---\nname: {name}\n{next}---\n\n{body}\n"


class Scene:
    def __init__(self, workspace: Workspace, model: ModelServer, console: ConsoleClient) -> None:
        self.workspace, self.model, self.console = workspace, model, console
        self.written, self.task = (run_id for run_id in workspace.run_ids() if not run_id.startswith("child-"))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A run that wrote a file, a task with two steps as runs, and a server shared by these tests."""
    with pytest.MonkeyPatch.context() as patch, running_model() as model:
        base = tmp_path_factory.mktemp("run")
        for name in ("home", "work"):
            (base / name).mkdir()
        patch.setenv("HOME", str(base / "home"))
        patch.setenv("OPENAI_API_KEY", "k" * 12)
        patch.chdir(base / "work")
        workspace = prepare(base / "work", model)
        settings = json.loads((workspace.folder / "agent.yaml").read_text())
        settings["runtime"]["profile"] = "permissive"
        workspace.configure(**settings)
        workspace.write(POLICY_FILE, "tool_approvals:\n  rules:\n    - {tool: Write, allow: true}\n")
        model.follow(
            calls("Write", path="notes/week.md", content="# Week\n\n<script>alert(1)</script>\n"), says("Written.")
        )
        workspace.agent("run", "Write the week", "-q")
        workspace.write(
            ".agent/tasks/two/TASK.md", STEP.format(name="Look", next="next: report.md\n", body="Look around.")
        )
        workspace.write(".agent/tasks/two/report.md", STEP.format(name="Report", next="", body="Report it."))
        model.follow(
            calls("Write", path="notes/looked.md", content="seen\n"),
            says("I looked."),
            calls("Read", path="notes/roadmap.md"),
            says("I reported."),
        )
        assert workspace.agent("task", "run", "two") == 0
        with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
            yield Scene(workspace, model, console)


def read_boxes(page: str) -> list[str]:
    return [unescape(text) for text in re.findall(r'<pre class="box" tabindex="0">(.*?)</pre>', page, re.DOTALL)]


def test_a_model_call_shows_its_full_request_and_reply(scene: Scene) -> None:
    scene.console.open(f"/runs/{scene.written}?step=call-1")
    assert f'hx-get="/runs/{scene.written}/calls/1"' in scene.console.page

    page = scene.console.open(f"/runs/{scene.written}/calls/1")
    request, reply = (json.loads(text) for text in read_boxes(page))

    assert "exactly as sent" in scene.console.words()
    assert "Write the week" in json.dumps(request["messages"])
    assert {tool["name"] for tool in request["tools"]} >= {"Write", "Read"}
    assert reply["parts"][-1]["arguments"]["path"] == "notes/week.md"
    part = scene.console.http.get(f"/runs/{scene.written}/calls/2", headers={"hx-request": "true"}).text
    assert "<html" not in part
    assert "Written." in part


def test_a_turn_without_a_model_call_is_rejected(scene: Scene) -> None:
    scene.console.open(f"/runs/{scene.written}/calls/9")

    assert scene.console.status == 400
    assert "It has turns 1 to 2" in scene.console.words()


def test_a_step_shows_its_verdict_rule_and_effect_class(scene: Scene) -> None:
    scene.console.open(f"/runs/{scene.written}")
    words = scene.console.words()

    assert "Verdict allowed, by" in words
    assert re.search(r"Effect \w+", words)


def test_a_file_of_a_run_can_be_downloaded_until_it_changes(scene: Scene) -> None:
    scene.console.open(f"/runs/{scene.written}")
    (address,) = re.findall(
        rf'href="(/runs/{scene.written}/artifacts/\w+)" download>notes/week.md<', scene.console.page
    )

    answer = scene.console.http.get(address)

    assert answer.content == b"# Week\n\n<script>alert(1)</script>\n"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith('attachment; filename="week.md"')
    assert "sandbox" in answer.headers["content-security-policy"]
    scene.workspace.write("notes/week.md", "another text")
    scene.console.open(address)
    assert scene.console.status == 409
    assert "no longer what the run wrote" in scene.console.words()
    scene.workspace.write("notes/week.md", "# Week\n\n<script>alert(1)</script>\n")


def test_a_hash_not_written_by_the_run_is_rejected(scene: Scene) -> None:
    scene.console.open(f"/runs/{scene.written}/artifacts/{'0' * 64}")

    assert scene.console.status == 400
    assert "wrote no file of this hash" in scene.console.words()


def test_steps_of_child_runs_are_in_the_waterfall_with_their_changes_and_calls(scene: Scene) -> None:
    page = scene.console.open(f"/runs/{scene.task}")
    rows = re.findall(r'<a class="line[^"]*" id="row-([^"]+)" href="([^"#]+)#detail"', page)
    names = [name for name, _ in rows]
    children = {name.rpartition("-")[0] for name in names} - {"", scene.task}

    assert scene.console.words().count("child run") >= 2
    assert len(names) == len(set(names))
    assert len({address for _, address in rows}) == len(rows)
    assert len(children) >= 2
    details = [scene.console.open(unescape(address)) for _, address in rows]
    assert any(re.search(r'<span class="t">\+?seen', each) for each in details)
    calls = {call for each in details for call in re.findall(r'hx-get="(/runs/[^"]+/calls/\d+)"', each)}
    assert {call.split("/")[2] for call in calls} <= children
    for call in calls:
        scene.console.open(call)
        assert scene.console.status == 200


def test_a_replay_is_equal_or_shows_the_first_difference(scene: Scene) -> None:
    scene.console.open(f"/runs/{scene.written}")
    assert f'href="/runs/{scene.written}/replay"' in scene.console.page
    scene.console.open(f"/runs/{scene.written}/replay")
    assert "Replay matches." in scene.console.words()
    assert "nothing was executed" in scene.console.words()

    skill = scene.workspace.folder / "skills/greeter/SKILL.md"
    before = skill.read_text()
    skill.write_text(before.replace("kindly", "coldly"))
    scene.console.open(f"/runs/{scene.written}/replay?files=current")
    words = scene.console.words()
    skill.write_text(before)

    assert "The replay differs at entry" in words
    assert "Recorded" in words
    assert "skill:greeter" in words
    assert "Replay matches." in (scene.console.open(f"/runs/{scene.written}/replay") and scene.console.words())


def test_undo_shows_changes_and_conflicts_and_restores_selected_files(
    scene: Scene,
) -> None:
    file = scene.workspace.write("notes/week.md", "mine\n")
    scene.console.open(f"/runs/{scene.written}/undo")
    assert "changed since" in scene.console.words()
    assert "1 file that changed since, too" in scene.console.words()
    scene.console.submit(f"/runs/{scene.written}/undo")
    assert file.read_text() == "mine\n"

    scene.console.open(f"/runs/{scene.written}/undo")
    scene.console.submit(f"/runs/{scene.written}/undo", overwrite="true")

    assert not file.exists()
