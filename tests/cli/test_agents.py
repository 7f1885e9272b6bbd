"""Effects of an `AGENT.md` on runs, and `agent agents`."""

import io
import json
from typing import Any

import pytest
from agent_files import add_agent, add_task
from model_server import ModelServer, calls, fails, says
from run_workspace import QUICK, Workspace, use_model

type Capture = pytest.CaptureFixture[str]


def offered(body: dict[str, Any]) -> set[str]:
    return {tool["function"]["name"] for tool in body.get("tools", [])}


def system_of(body: dict[str, Any]) -> str:
    return json.dumps([message for message in body["messages"] if message["role"] == "system"])


def test_an_agent_sets_instructions_model_decoding_and_profile_of_a_run(
    workspace: Workspace, model: ModelServer
) -> None:
    add_agent(
        workspace.folder, "desk/checker", "model: small", "temperature: 0.25", "max_tokens: 77", body="You check facts."
    )
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "--agent", "desk/checker", "Check this") == 0

    sent = model.received[0]
    assert (sent["model"], sent["temperature"]) == ("small", 0.25)
    assert 77 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
    assert "# Your role\\n\\nYou check facts." in system_of(sent)
    started = workspace.events()[0]["payload"]
    assert (started["agent"], started["model"], started["profile"]) == ("desk/checker", "small", "guarded")
    assert "agent:desk/checker" in started["pins"]


def test_a_skill_that_allows_none_of_the_agents_tools_is_reported_at_the_start(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    add_agent(workspace.folder, "reader", "tools: [Read]", "skills: [finder]")
    workspace.write(
        ".agent/skills/finder/SKILL.md", "---\nname: finder\ndescription: Finds it.\ntools: [Grep]\n---\nFind it.\n"
    )
    model.follow(says("Done."))

    assert workspace.agent("run", "--agent", "reader", "Find it") == 0

    sentence = "While skill 'finder' is in charge no tool is left: it lists Grep, and the agent has Read"
    told = [event["payload"] for event in workspace.events() if event["event_type"] == "skill_without_tools"]
    assert told == [{"skill_name": "finder", "message": sentence}]
    assert sentence in capsys.readouterr().err


def test_the_built_in_agent_has_every_tool(workspace: Workspace, model: ModelServer) -> None:
    add_agent(workspace.folder, "checker", "tools: []")
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "Check this") == 0

    assert {"Read", "Write", "WebFetch", "script_run"} <= offered(model.received[0])
    started = workspace.events()[0]["payload"]
    assert (started["agent"], started["profile"]) == ("", "permissive")


@pytest.mark.parametrize("way", ["file", "environment"])
def test_the_settings_can_name_a_default_agent(
    *, way: str, workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_agent(workspace.folder, "checker")
    add_agent(workspace.folder, "other")
    runtime = {**QUICK, "agent": "checker"} if way == "file" else QUICK
    workspace.configure(model=use_model(model), runtime=runtime)
    if way == "environment":
        monkeypatch.setenv("AGENT_RUNTIME_AGENT", "CHECKER")
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "Check") == 0
    assert workspace.agent("run", "-q", "--agent", "other", "Check") == 0

    agents = [workspace.events(run_id)[0]["payload"]["agent"] for run_id in workspace.run_ids()]
    assert sorted(agents) == ["checker", "other"]


def test_the_built_in_agent_can_be_named_next_to_a_default_one(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    add_agent(workspace.folder, "checker", "tools: []")
    workspace.configure(model=use_model(model), runtime={**QUICK, "agent": "checker"})
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "--agent", "built-in", "Check") == 0

    assert {"Read", "Write"} <= offered(model.received[0])
    assert workspace.events()[0]["payload"]["agent"] == ""
    assert workspace.agent("replay", "latest", "--execute") == 0
    arguments = '{"path": "a.md", "content": "x"}'
    assert workspace.agent("policy", "explain", "Write", "--args", arguments, "--agent", "built-in") == 0
    assert workspace.agent("prompt", "show", "Check", "--agent", "built-in") == 0
    capsys.readouterr()
    assert workspace.agent("agents", "show", "built-in") == 0
    assert "agent:    built-in\n" in capsys.readouterr().out


def test_a_chat_and_a_task_select_the_built_in_agent_like_a_run(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_agent(workspace.folder, "checker", "tools: []")
    add_task(workspace.folder, "tidy")
    workspace.configure(model=use_model(model), runtime={**QUICK, "agent": "checker"})
    model.follow(*[says("Done.")] * 6)

    def chat(lines: str, *words: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert workspace.agent("chat", "-q", "--context", "talk", *words) == 0

    assert workspace.agent("task", "run", "tidy", "-q", "--agent", "built-in") == 0
    chat("Hello\n", "--agent", "built-in")
    chat("And again\n")
    chat("/agent checker\nWho are you?\n/agent built-in\nAnd now?\n")

    assert ["Write" in offered(body) for body in model.received] == [True, True, True, False, True]


def test_a_workspace_agent_named_built_in_replaces_the_built_in_one(workspace: Workspace, model: ModelServer) -> None:
    add_agent(workspace.folder, "built-in", "tools: [Read]")
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "--agent", "built-in", "Check") == 0

    assert "Write" not in offered(model.received[0])
    assert workspace.events()[0]["payload"]["agent"] == "built-in"


def test_a_missing_agent_is_named_with_the_closest_match(workspace: Workspace, capsys: Capture) -> None:
    add_agent(workspace.folder, "checker")

    assert workspace.agent("run", "-q", "--agent", "cheker", "Check") == 2

    assert "No agent is called 'cheker'" in (said := capsys.readouterr().err)
    assert "checker" in said.partition("hint:")[2]
    assert workspace.run_ids() == []


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("tools: [Read, Grep]", {"Read", "Grep"}),
        ("tools: [inherit, Read]", {"Read", "Grep", "Write", "Edit", "Glob", "Bash", "WebFetch"}),
        ("tools: inherit", {"Read", "Grep", "Write", "Edit", "Glob", "Bash", "WebFetch"}),
        ("tools: []", set[str]()),
    ],
)
def test_only_the_tools_of_the_agent_are_offered_to_the_model(
    *, written: str, seen: set[str], workspace: Workspace, model: ModelServer
) -> None:
    add_agent(workspace.folder, "checker", written, "skills: []")
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "--agent", "checker", "Check") == 0

    assert offered(model.received[0]) - {"ask_user", "finish", "plan"} == seen


def test_a_call_to_a_tool_outside_the_agent_does_not_run(workspace: Workspace, model: ModelServer) -> None:
    add_agent(workspace.folder, "checker", "tools: [Read]", "profile: permissive")
    model.follow(calls("Write", path="a.txt", content="x"), says("I cannot."))

    assert workspace.agent("run", "-q", "--agent", "checker", "Write") == 0

    assert not (workspace.folder / "a.txt").exists()
    assert "Write" in json.dumps(model.received[1]["messages"][-1])


def test_the_skills_of_an_agent_are_the_only_ones_of_its_run(workspace: Workspace, model: ModelServer) -> None:
    workspace.add_skill("counter", "Count words.")
    add_agent(workspace.folder, "checker", "skills: [counter]")
    add_agent(workspace.folder, "adder", "skills: [inherit, workspace-inventory]")
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "--agent", "checker", "Count words") == 0
    assert workspace.agent("run", "-q", "--agent", "adder", "Count words") == 0

    first, second = (system_of(body) for body in model.received)
    assert "counter" in first
    assert "greeter" not in first
    assert all(name in second for name in ("counter", "greeter", "workspace-inventory"))


def test_rules_of_an_agent_restrict_the_rules_of_the_host(workspace: Workspace, model: ModelServer) -> None:
    policy = workspace.folder / ".agent" / "policy.yaml"
    add_agent(
        workspace.folder, "checker", "profile: permissive", "tool_approvals:", "  rules:", "    - tool: Write",
        "      verdict: deny", "      reason: A checker changes nothing",
    )  # fmt: skip
    policy.write_text("tool_approvals:\n  rules:\n    - tool: Write\n      allow: true\n", encoding="utf-8")
    model.follow(calls("Write", path="a.txt", content="x"), says("I may not."))

    assert workspace.agent("run", "-q", "--agent", "checker", "Write") == 0

    assert not (workspace.folder / "a.txt").exists()
    assert "A checker changes nothing" in json.dumps(model.received[1])


def test_an_agent_in_markdown_needs_approval_for_more_than_reading(workspace: Workspace, model: ModelServer) -> None:
    add_agent(workspace.folder, "checker")
    model.follow(calls("Write", path="a.txt", content="x"), says("Done."))

    assert workspace.agent("run", "-q", "--agent", "checker", "Write") == 3

    assert not (workspace.folder / "a.txt").exists()


@pytest.mark.parametrize(
    ("host", "own", "came_to"), [("strict", "permissive", "strict"), ("permissive", "guarded", "guarded")]
)
def test_an_agent_cannot_extend_the_profile_of_the_host(
    *, host: str, own: str, came_to: str, workspace: Workspace, capsys: Capture
) -> None:
    add_agent(workspace.folder, "checker", f"profile: {own}")
    workspace.configure(runtime={"profile": host})

    assert workspace.agent("agents", "show", "checker", "--json") == 0

    assert json.loads(capsys.readouterr().out)["profile"] == came_to


def test_a_model_outside_the_list_fails_before_any_call_and_names_the_list(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    add_agent(workspace.folder, "checker", "model: small", "allowed_models: [medium]")
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "--agent", "checker", "--model", "large", "Check") == 2

    said = capsys.readouterr().err
    assert "error: Model 'large' is not one that agent 'checker' may use\nhint: Use small or medium\n" in said
    assert (model.received, workspace.run_ids()) == ([], [])
    assert workspace.agent("run", "-q", "--agent", "checker", "--model", "medium", "Check") == 0
    assert model.received[0]["model"] == "medium"


def test_the_model_in_the_settings_is_used_if_the_agent_only_lists_others(
    workspace: Workspace, model: ModelServer
) -> None:
    add_agent(workspace.folder, "checker", "allowed_models: [medium]")
    model.follow(says("Done."))

    assert workspace.agent("run", "-q", "--agent", "checker", "--model", "large", "Check") == 2
    assert workspace.agent("run", "-q", "--agent", "checker", "--model", "m", "Check") == 0
    assert workspace.agent("run", "-q", "--agent", "checker", "Check") == 0

    assert [sent["model"] for sent in model.received] == ["m", "m"]


def test_fallbacks_outside_the_list_get_no_request(workspace: Workspace, model: ModelServer) -> None:
    add_agent(workspace.folder, "checker", "model: small", "allowed_models: [medium]")
    options = {**use_model(model), "fallback_models": ["large", "medium"]}
    workspace.configure(model=options, runtime={**QUICK, "max_llm_retries": 0})
    model.follow(fails(500), says("Done."))

    assert workspace.agent("run", "-q", "--agent", "checker", "Check") == 0

    assert [sent["model"] for sent in model.received] == ["small", "medium"]


def test_a_resumed_run_keeps_its_original_agent_and_reports_it(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    file = add_agent(workspace.folder, "checker", "model: small", "tools: [Write]", body="The old words.")
    model.follow(calls("Write", path="a.txt", content="x"), says("Done."))
    assert workspace.agent("run", "-q", "--agent", "checker", "Write") == 3
    approval = json.loads(_out(workspace, capsys, "approvals", "list", "--json"))[0]["approval_id"]
    assert workspace.agent("approvals", "approve", approval) == 0
    file.write_text("---\nname: x\nmodel: large\ntools: []\n---\nThe new words.\n", encoding="utf-8")

    assert workspace.agent("resume", "latest") == 0

    assert (workspace.folder / "a.txt").read_text(encoding="utf-8") == "x"
    assert model.received[1]["model"] == "small"
    assert "The old words." in system_of(model.received[1])
    used = [
        each["payload"]["definition"] for each in workspace.events() if each["event_type"] == "pinned_definition_used"
    ]
    assert used == ["agent:checker"]
    assert workspace.agent("replay", "latest", "--execute") == 0


def test_a_run_continues_without_the_file_of_its_agent(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    file = add_agent(workspace.folder, "checker", "tools: [Write]")
    model.follow(calls("Write", path="a.txt", content="x"), says("Done."))
    assert workspace.agent("run", "-q", "--agent", "checker", "Write") == 3
    approval = json.loads(_out(workspace, capsys, "approvals", "list", "--json"))[0]["approval_id"]
    assert workspace.agent("approvals", "approve", approval) == 0
    file.unlink()

    assert workspace.agent("resume", "latest") == 0


def test_replay_and_fork_keep_the_agent(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    add_agent(workspace.folder, "checker", "model: small", "tools: [Read]", "tool_approvals:", "  default: ask")
    (workspace.folder / "a.txt").write_text("text", encoding="utf-8")
    model.follow(calls("Read", path="a.txt"), says("Done."))
    assert workspace.agent("run", "-q", "--agent", "checker", "--model", "small", "Read it") == 3
    approval = json.loads(_out(workspace, capsys, "approvals", "list", "--json"))[0]["approval_id"]
    assert workspace.agent("approvals", "approve", approval) == 0
    assert workspace.agent("resume", "-q", "latest") == 0
    first = workspace.run_ids()[0]

    assert workspace.agent("replay", first, "--execute") == 0
    model.follow(calls("Read", path="a.txt"), says("Done."))
    assert workspace.agent("replay", first, "--fork-at", "3") == 3

    shown = json.loads(_out(workspace, capsys, "runs", "show", "latest", "--json"))
    assert shown["agent"] == {"id": "checker"}
    assert (shown["model"], shown["profile"]) == ("small", "guarded")
    assert "agent:   checker" in _out(workspace, capsys, "runs", "show", "latest")


def test_every_problem_of_an_agent_is_reported_with_its_line_before_the_start(
    workspace: Workspace, capsys: Capture
) -> None:
    file = add_agent(workspace.folder, "checker", "skills:", "  - greter", "tasks:", "  - weekly", "tools:", "  - Raed")
    add_task(workspace.folder, "weekly-report")

    assert workspace.agent("run", "-q", "--agent", "checker", "Check") == 2

    said = capsys.readouterr().err
    assert f"{file}:4: error: No skill is called 'greter'" in said
    assert f"{file}:6: error: No task is called 'weekly'" in said
    add_agent(workspace.folder, "checker", "tools:", "  - Raed")
    assert workspace.agent("run", "-q", "--agent", "checker", "Check") == 2
    assert f"{file}:4: error: No tool is called 'Raed'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "line", "sentence"),
    [
        ("web: example.com", 3, "Field 'web' must be a mapping"),
        ("web:\n  allow: ['https://example.com']", 4, "'https://example.com' is not a domain"),
        ("web:\n  allow:\n    - '*.example.com'", 5, "'*.example.com' is not a domain"),
        ("web:\n  alow: [example.com]", 4, "Unknown key 'alow'"),
        ("web:\n  allow: []", 4, "An empty list allows every domain"),
    ],
)
def test_domain_lists_are_validated(
    *, written: str, line: int, sentence: str, workspace: Workspace, capsys: Capture
) -> None:
    file = add_agent(workspace.folder, "checker", written)

    assert workspace.agent("run", "-q", "--agent", "checker", "Check") == 2

    assert f"{file}:{line}: error: {sentence}" in capsys.readouterr().err


def test_pages_come_only_from_the_domains_of_the_agent(workspace: Workspace, model: ModelServer) -> None:
    add_agent(
        workspace.folder, "checker", "profile: permissive", "web:", "  allow: [Example.com]", "  deny: [b.example.com]"
    )
    model.follow(
        calls("WebFetch", url="https://example.org/"), calls("WebFetch", url="https://a.b.example.com/"), says("Done.")
    )

    assert workspace.agent("run", "-q", "--agent", "checker", "Fetch") == 0

    assert "'example.org' is not among those that this agent may fetch from" in json.dumps(model.received[1])
    assert "'a.b.example.com' is denied by the settings of this agent" in json.dumps(model.received[2])


def test_list_shows_every_agent_and_marks_the_default(workspace: Workspace, capsys: Capture) -> None:
    add_agent(workspace.folder, "checker", "model: small", "description: Checks facts.")
    add_agent(workspace.folder, "desk/writer", "temprature: 1")
    workspace.configure(runtime={"agent": "checker"})

    assert workspace.agent("agents", "list") == 1

    out = capsys.readouterr().out
    assert "checker (default)  small, guarded  Checks facts.\n" in out
    assert "desk/writer  cannot be loaded\n" in out
    assert "AGENT.md:3: error: Unknown key 'temprature'" in out
    rows = json.loads(_out(workspace, capsys, "agents", "list", "--json", code=1))
    assert [(row["id"], row["loaded"], row["is_default"]) for row in rows] == [
        ("checker", True, True),
        ("desk/writer", False, False),
    ]


def test_list_marks_agents_and_tasks_with_dangling_references(workspace: Workspace, capsys: Capture) -> None:
    add_agent(workspace.folder, "checker", "skills: [gone]", "tools: [Raed]")
    workspace.write(".agent/tasks/weekly/TASK.md", "---\nname: Weekly\nagent: checker\n---\n\nDo it.\n")

    (agent,) = json.loads(_out(workspace, capsys, "agents", "list", "--json", code=1))
    (task,) = json.loads(_out(workspace, capsys, "task", "list", "--json", code=1))

    assert (agent["loaded"], agent["usable"]) == (True, False)
    assert [problem["code"] for problem in agent["problems"]] == ["unknown_skill", "unknown_tool"]
    assert (task["loaded"], task["usable"]) == (True, False)
    assert "  is invalid; see `agent check tasks weekly`" in _out(workspace, capsys, "task", "list", code=1)
    assert "checker  any model, guarded  cannot be used: " in _out(workspace, capsys, "agents", "list", code=1)


def test_show_prints_the_resolved_agent_and_the_source_of_each_value(workspace: Workspace, capsys: Capture) -> None:
    add_task(workspace.folder, "weekly")
    (workspace.folder / ".agent" / "tool-access.json").write_text('{"Grep": false}', encoding="utf-8")
    file = add_agent(
        workspace.folder, "checker", "model: small", "tools: [Read, Grep, notes/search]", "skills: [inherit]",
        "tasks:", "  - weekly", "tool_approvals:", "  - tool: Read", "    allow: true",
    )  # fmt: skip

    shown = json.loads(_out(workspace, capsys, "agents", "show", "checker", "--json"))

    assert shown["model"]["name"] == "small"
    assert shown["profile"] == "guarded"
    assert [(tool["name"], tool["source"], tool["line"]) for tool in shown["tools"]] == [
        ("Grep", "built in", 4),
        ("Read", "built in", 4),
    ]
    assert shown["tools"][0]["note"] == "turned off in 'tool-access.json'"
    assert shown["missing_tools"] == ["notes/search"]
    assert [(skill["name"], skill["line"]) for skill in shown["skills"]] == [("greeter", None)]
    assert [(task["name"], task["line"]) for task in shown["tasks"]] == [("weekly", 7)]
    assert shown["rules"] == [
        {"scope": "agent", "number": 1, "subject": "Read", "verdict": "allow", "file": str(file), "line": 9}
    ]
    text = _out(workspace, capsys, "agents", "show", "checker")
    assert "tool:     Read  built in, AGENT.md line 4\n" in text
    assert "skill:    greeter  directory: skills/greeter/SKILL.md, inherited\n" in text
    assert "rule:     agent 1: allow Read" in text


def test_show_of_the_built_in_agent_needs_no_file(workspace: Workspace, capsys: Capture) -> None:
    shown = json.loads(_out(workspace, capsys, "agents", "show", "--json"))

    assert (shown["id"], shown["file"], shown["profile"]) == ("", None, "permissive")
    assert {"Read", "script_run"} <= {tool["name"] for tool in shown["tools"]}


def _out(workspace: Workspace, capsys: Capture, *args: str, code: int = 0) -> str:
    capsys.readouterr()
    assert workspace.agent(*args) == code
    return capsys.readouterr().out
