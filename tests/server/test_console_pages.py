"""The other pages of the console: prompt, tasks, chat, skills, policy, cost, health, schedules."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from console_client import ConsoleClient
from console_scene import prepare
from model_server import ModelServer, calls, running_model, says
from run_workspace import Workspace
from running_server import serving


class Scene:
    def __init__(self, workspace: Workspace, model: ModelServer, console: ConsoleClient) -> None:
        self.workspace, self.model, self.console = workspace, model, console

    def wait_until(self, path: str, pattern: str) -> str:
        for _ in range(300):
            page = self.console.open(path)
            if re.search(pattern, page):
                return page
        raise AssertionError(self.console.words())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One workspace with a run of two turns, and a server shared by these tests."""
    with pytest.MonkeyPatch.context() as patch, running_model() as model:
        base = tmp_path_factory.mktemp("pages")
        (base / "home").mkdir()
        (base / "work").mkdir()
        patch.setenv("HOME", str(base / "home"))
        patch.setenv("OPENAI_API_KEY", "k" * 12)
        patch.chdir(base / "work")
        workspace = prepare(base / "work", model)
        model.follow(calls("Read", path="notes/roadmap.md"), says("It is short."))
        workspace.agent("run", "Read the roadmap", "-q")
        workspace.agent("schedule", "add", "nightly", "Sum up the day", "--cron", "0 6 * * *")
        with serving(workspace.folder) as server, closing(ConsoleClient(server)) as console:
            yield Scene(workspace, model, console)


def test_a_prompt_shows_its_layers_and_cache_breaks(scene: Scene) -> None:
    run_id = scene.workspace.run_ids()[0]

    scene.console.open(f"/runs/{run_id}/prompt?turn=2")
    words = scene.console.words()

    assert "exactly as sent" in words
    assert "The first byte that differs from turn 1" in words
    assert "can be cached" in words
    assert "not cached" in words
    assert 'class="broke"' in scene.console.page, "where the cache breaks is marked in the bar"
    assert re.search(r"tools [^$]*\$0\.000\d+", words), "each layer has a price"


def test_task_inputs_are_json_and_invalid_ones_are_rejected_with_every_problem(scene: Scene) -> None:
    scene.console.open("/tasks/weekly-report")
    form = scene.console.page

    scene.console.submit("/tasks/weekly-report", json='{"audience": "moon"}', mode="live")
    assert scene.console.status == 400
    assert "input 'week' is missing" in scene.console.words()

    scene.console.page = form
    scene.model.follow(says("Done."))
    scene.console.submit("/tasks/weekly-report", json='{"week": "2026-W03"}', mode="dry_run")
    assert scene.console.status == 200
    assert "/runs/" in scene.console.page


def test_a_message_starts_a_conversation_whose_answer_appears_in_it(scene: Scene) -> None:
    scene.model.follow(calls("Read", path="notes/budget.md"), says("Ask **Ada**."))
    scene.console.open("/chat")

    scene.console.submit("/chat", message="What about the budget?")
    (context,) = re.findall(r'action="/chat/([\w-]+)"', scene.console.page)
    page = scene.wait_until(f"/chat/{context}", "<strong>Ada</strong>")

    assert "What about the budget?" in page
    listed = scene.wait_until("/chat", "completed")
    assert re.search(rf'href="/chat/{context}">What about the budget\?</a>', listed), "it is known by its last message"
    assert "notes/budget.md" in page, "the step stands in the conversation"


def test_approvals_and_questions_can_be_answered_in_the_conversation(scene: Scene) -> None:
    edit = calls("Edit", path="notes/budget.md", old="Ask Ada.", new="Ask Ben.")
    asks = calls("ask_user", question="Which month?", fields={"type": "object", "properties": {"month": {}}})
    scene.model.follow(edit, asks, says("It is **June** then."))
    scene.console.open("/chat")
    scene.console.submit("/chat", message="Change the budget")
    (context,) = re.findall(r'action="/chat/([\w-]+)"', scene.console.page)
    page = scene.wait_until(f"/chat/{context}", r'id="approval-ap-')
    (approval,) = re.findall(r'id="approval-(ap-\w+)"', page)
    assert "Ask Ben." in scene.console.words()

    scene.console.submit(f"/approvals/{approval}", decision="approved")
    assert "Approved. The run continues." in scene.console.words()
    assert f'action="/chat/{context}"' in scene.console.page, "the person is still in the conversation"
    page = scene.wait_until(f"/chat/{context}", r"(?s)Which month\?.*/answer")
    (run_id,) = re.findall(r'action="/runs/([\w-]+)/answer"', page)
    scene.console.submit(f"/runs/{run_id}/answer", month="June")

    assert f'action="/chat/{context}"' in scene.console.page
    scene.wait_until(f"/chat/{context}", "<strong>June</strong>")
    assert (scene.workspace.folder / "notes/budget.md").read_text() == "# Budget\n\nAsk Ben.\n"


def test_a_decision_redirects_only_to_a_conversation(scene: Scene) -> None:
    scene.model.follow(calls("Edit", path="notes/budget.md", old="Budget", new="Costs"), says("Done."))
    scene.console.open("/tasks")
    scene.console.submit("/tasks", task="Rename it", mode="live")
    page = scene.wait_until("/", r'id="approval-ap-')
    (approval,) = re.findall(r'id="approval-(ap-\w+)"', page)

    scene.console.submit(f"/approvals/{approval}", decision="denied", back="//elsewhere.example/chat/x")

    assert "Everything that is waiting" in scene.console.words()


def test_a_request_shows_the_matching_skills(scene: Scene) -> None:
    page = scene.console.open("/skills?probe=sum+up+the+notes+as+a+report")

    assert re.search(r'href="/skills/weekly-report">weekly-report</a>\s*<span class="muted">', page)


def test_a_skill_shows_its_capabilities(scene: Scene) -> None:
    scene.console.open("/skills/greeter")

    assert "scripts/greet.py" in scene.console.words()
    assert "Tree now" in scene.console.words()


def test_draft_rules_show_the_past_calls_they_change_before_saving(scene: Scene) -> None:
    file = Path(scene.workspace.folder) / ".agent/policy.yaml"
    rules = "tool_approvals:\n  rules:\n    - {tool: Read, allow: false}\n"
    scene.console.open("/policy")
    assert 'value="save"' not in scene.console.page, "nothing is saved that was not tried"

    scene.console.submit("/policy", rules=rules, do="try")
    words = scene.console.words()
    assert "would be decided differently" in words
    assert "notes/roadmap.md" in words
    assert not file.exists()

    scene.console.submit("/policy", rules=rules, saved="", do="save")
    assert file.read_text() == rules
    file.unlink()


def test_invalid_rules_are_rejected_and_not_saved(scene: Scene) -> None:
    scene.console.open("/policy")

    scene.console.submit("/policy", rules="tool_approvals: {rules: [{tool: Nothing, allow: maybe}]}", do="save")

    assert scene.console.status == 422
    assert not (scene.workspace.folder / ".agent/policy.yaml").exists()


def test_a_call_is_explained_with_the_verdict_of_every_scope(scene: Scene) -> None:
    scene.console.open('/policy?tool=Bash&arguments={"command": "git push"}')

    assert "Approval required" in scene.console.words()


def test_costs_are_grouped_by_the_url_parameters(scene: Scene) -> None:
    scene.console.open("/cost?by=task&since=24h")
    assert "Read the roadmap" in scene.console.words()
    assert "By day and task" in scene.console.words()
    assert re.search(
        r'<g><title>[^<]*Read the roadmap[^<]*</title><rect class="hit"[^>]*/><rect class="k1"', scene.console.page
    )

    scene.console.open("/cost?by=moon")
    assert scene.console.status == 400


def test_health_shows_the_findings_of_doctor(scene: Scene) -> None:
    scene.console.open("/health")

    assert "SQLite" in scene.console.words() or "sqlite" in scene.console.words()
    assert "Providers" in scene.console.words()


def test_health_shows_the_driver_of_a_run_and_the_queue(scene: Scene) -> None:
    scene.model.silent.set()
    scene.console.open("/tasks")
    scene.console.submit("/tasks", task="Take your time", mode="live")
    page = scene.wait_until("/health", r"(?s)Processes that drive runs.*Leases.*<td class=\"num\">1</td>")
    scene.model.silent.clear()
    scene.model.released.set()

    assert "Take your time" in page


def test_health_lists_mcp_servers_and_their_acceptance(scene: Scene) -> None:
    scene.console.open("/health")
    assert "MCP servers None configured." in scene.console.words()
    file = scene.workspace.write(".mcp.json", '{"mcpServers": {"library": {"command": "library-server"}}}')
    scene.console.open("/health")
    file.unlink()

    assert "library off not accepted, so it is not started" in scene.console.words()


def test_a_schedule_can_be_paused_and_resumed(scene: Scene) -> None:
    scene.console.open("/schedules")
    assert "Sum up the day" in scene.console.words()

    scene.console.submit("/schedules/nightly", do="pause")
    assert "paused" in scene.console.words()
    scene.console.submit("/schedules/nightly", do="resume")
    assert "active" in scene.console.words()
