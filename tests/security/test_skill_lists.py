"""`tools:`, `skills:` and `tasks:` of a skill restrict a run while the skill is active."""

import json
from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.approval.profile import ProfilePolicy
from metier.cli.main import run
from metier.decisions import ActionStep
from metier.definitions.references import find_limit
from metier.runtime.workspace.agents import resolve_agent
from metier.runtime.workspace.policy import PolicySources, build_policy
from metier.testing.scripted import ToolCall, calls, says
from metier.tools.toolbox import Toolbox

pytestmark = pytest.mark.anyio


def skill(name: str, *lines: str) -> dict[str, str]:
    head = "\n".join(("---", f"name: {name}", f"description: Does {name} work.", *lines, "---"))
    return {f".agent/skills/{name}/SKILL.md": f"{head}\n# {name}\n\nDo it.\n"}


CONTROL = {"use_skill", "read_skill_files", "skill_search", "ask_user", "finish", "plan"}


async def test_an_active_skill_restricts_tools_to_its_list(tmp_path: Path) -> None:
    put(tmp_path, {**skill("reader", "tools: [Read]"), "a.txt": "hello\n"})
    script = [
        call("use_skill", skill="reader", reason="x"),
        call("Write", path="b.txt", content="x"),
        call("Read", path="a.txt"),
        says("Done."),
    ]
    drill = Drill(tmp_path, script, profile="permissive")

    state = await drill.run()

    assert state.status == "completed"
    assert {"Read", "Write", "Bash"} <= drill.offered(0)
    assert [drill.offered(turn) for turn in (1, 2, 3)] == [CONTROL | {"Read"}] * 3
    assert drill.told[1] == "'Write' is not among the tools of skill 'reader', which is in charge"
    assert "hello" in drill.told[2]
    assert not (tmp_path / "b.txt").exists()


async def test_an_unlisted_call_in_the_reply_that_activates_the_skill_is_denied(tmp_path: Path) -> None:
    """The tool was offered when the model chose it; the active skill at execution time counts."""
    put(tmp_path, skill("reader", "tools: [Read]"))
    both = calls(
        ToolCall("use_skill", {"skill": "reader", "reason": "x"}), ToolCall("Write", {"path": "b.txt", "content": "x"})
    )
    drill = Drill(tmp_path, [both, says("Done.")], profile="permissive")

    await drill.run()

    assert drill.told[1] == "Not run: 'Write' is not among the tools of skill 'reader', which is in charge"
    assert not (tmp_path / "b.txt").exists()


@pytest.mark.parametrize("line", ["tools: inherit", "tools: [inherit, Nothing]", "license: MIT"])
async def test_a_skill_with_inherit_removes_no_tools(tmp_path: Path, line: str) -> None:
    put(tmp_path, skill("worker", line))
    drill = Drill(tmp_path, [call("use_skill", skill="worker", reason="x"), says("Done.")], profile="permissive")

    await drill.run()

    assert drill.offered(1) == drill.offered(0)


async def test_an_empty_list_leaves_only_control_tools(tmp_path: Path) -> None:
    put(tmp_path, skill("talker", "tools: []"))
    drill = Drill(tmp_path, [call("use_skill", skill="talker", reason="x"), says("Done.")], profile="permissive")

    await drill.run()

    assert drill.offered(1) == CONTROL


async def test_a_skill_cannot_add_tools_to_its_agent(tmp_path: Path) -> None:
    put(tmp_path, skill("writer", "tools: [Read, Write, Bash]"))
    put(tmp_path, {".agent/agents/clerk/AGENT.md": "---\nname: Clerk\ntools: [Read]\n---\nRead.\n"})
    script = [call("use_skill", skill="writer", reason="x"), call("Write", path="b.txt", content="x"), says("Done.")]
    drill = Drill(tmp_path, script, agent="clerk")

    await drill.run()

    assert drill.offered(0) == CONTROL - {"plan"} | {"Read"}
    assert drill.offered(1) == CONTROL - {"plan"} | {"Read"}
    assert not (tmp_path / "b.txt").exists()


async def test_the_next_skill_uses_its_own_list(tmp_path: Path) -> None:
    put(tmp_path, {**skill("reader", "tools: [Read]"), **skill("finder", "tools: [Grep, Glob]")})
    script = [
        call("use_skill", skill="reader", reason="x"),
        call("use_skill", skill="finder", reason="x"),
        says("Done."),
    ]
    drill = Drill(tmp_path, script, profile="permissive")

    await drill.run()

    assert [drill.offered(turn) - CONTROL for turn in (1, 2)] == [{"Read"}, {"Grep", "Glob"}]


async def test_a_skill_hands_over_only_to_listed_skills(tmp_path: Path) -> None:
    put(tmp_path, {**skill("a", "skills: [b]"), **skill("b"), **skill("wide")})
    script = [
        call("use_skill", skill="a", reason="x"),
        call("use_skill", skill="wide", reason="x"),
        call("use_skill", skill="b", reason="x"),
        says("Done."),
    ]
    drill = Drill(tmp_path, script, profile="permissive")

    state = await drill.run()

    assert drill.told[1] == "Not run: 'wide' is not among the skills of skill 'a', which is in charge"
    assert state.used_skills == ["a", "b"]


async def test_the_list_applies_to_json_decisions(tmp_path: Path) -> None:
    put(tmp_path, {**skill("a", "skills: []"), **skill("wide")})

    def choose(name: str) -> str:
        actions = [{"type": "call_tool", "params": {"tool": "Glob", "arguments": {"pattern": "*"}}}]
        return json.dumps(
            {
                "selected_skill": name,
                "reasoning_summary": "x",
                "required_disclosure_paths": [],
                "planned_actions": actions,
            }
        )

    drill = Drill(tmp_path, [says(choose("a")), says(choose("wide")), says("Done.")], profile="permissive")

    state = await drill.run()

    assert state.used_skills == ["a"]


async def test_tasks_not_listed_by_a_skill_are_denied(tmp_path: Path) -> None:
    put(tmp_path, skill("a", "tasks: [Weekly/Report]"))
    drill = Drill(tmp_path, [])
    agent = resolve_agent(drill.host, "")
    tools = Toolbox()
    permissive = ProfilePolicy("permissive", tools)
    policy = build_policy(
        agent.packages, tools, workspace=tmp_path, profile=permissive, sources=PolicySources(host=b"")
    )

    def judge(task: str) -> str:
        action = ActionStep(type="call_tool", params={"tool": "run_task", "arguments": {"task": task, "inputs": {}}})
        return policy.judge(action, skill="a").decision

    assert [judge("weekly/report"), judge("other")] == ["allow", "deny"]


def test_explain_shows_what_the_list_of_a_skill_denies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path, skill("reader", "tools: [Read]"))
    monkeypatch.chdir(tmp_path)

    code = run(["policy", "explain", "Bash", "--args", '{"command": "ls"}', "--skill", "reader", "--json"])

    shown = json.loads(capsys.readouterr().out)
    assert code == 0
    assert shown["verdict"] == "deny"
    assert shown["reason"] == "'Bash' is not among the tools of skill 'reader', which is in charge"


def test_only_a_list_without_inherit_restricts() -> None:
    assert [find_limit(own) for own in (None, ("inherit",), ("inherit", "X"), ("X",), ())] == [
        None, None, None, ("X",), (),
    ]  # fmt: skip
