"""`agent prompt show`: layers with their sources, and turns rebuilt from the journal."""

import hashlib
import json
from typing import Any, cast

import pytest
from agent_files import add_agent, add_task
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


def shown(workspace: Workspace, capsys: Capture, *args: str) -> dict[str, Any]:
    capsys.readouterr()
    assert workspace.agent("prompt", "show", *args, "--json") == 0
    return cast("dict[str, Any]", json.loads(capsys.readouterr().out))


def by_name(prompt: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {layer["name"]: layer for layer in prompt["layers"]}


def write_context(workspace: Workspace, **files: str) -> None:
    folder = workspace.folder / "context"
    folder.mkdir(exist_ok=True)
    names = {"base": "system_prompt.md", "soul": "soul.json", "profile": "user_profile.json"}
    for name, text in files.items():
        (folder / names[name]).write_text(text, encoding="utf-8")


def test_every_layer_is_shown_in_order_with_source_hash_and_cost(workspace: Workspace, capsys: Capture) -> None:
    write_context(workspace, base="Be brief.", soul='{"tone": "dry"}', profile='{"name": "Ada"}')
    file = add_agent(workspace.folder, "checker", body="You check facts.")

    prompt = shown(workspace, capsys, "Greet Ada", "--agent", "checker")

    names = [layer["name"] for layer in prompt["layers"]]
    assert names == [
        "tools",
        "operating",
        "base",
        "safety",
        "soul",
        "profile",
        "agent",
        "catalog",
        "task",
        "environment",
    ]
    layers = by_name(prompt)
    assert [layers[name]["source"] for name in ("base", "safety", "soul", "profile", "agent", "task")] == [
        "context/system_prompt.md", "built in", "context/soul.json", "context/user_profile.json",
        ".agent/agents/checker/AGENT.md", "the request",
    ]  # fmt: skip
    assert layers["agent"]["source_sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert layers["soul"]["text"] == '# Who you are\n\n{"tone": "dry"}'
    assert layers["base"]["sha256"] == hashlib.sha256(b"Be brief.").hexdigest()
    assert all(layer["tokens"] > 0 for layer in prompt["layers"])
    assert sum(layer["tokens"] for layer in prompt["layers"]) == prompt["tokens"]
    assert workspace.run_ids() == []


def test_built_in_instructions_are_used_without_agents_skills_and_context_files(
    workspace: Workspace, capsys: Capture
) -> None:
    workspace.configure(skills={"dir": "nowhere"})

    layers = by_name(shown(workspace, capsys, "Do it"))

    assert list(layers) == ["tools", "operating", "safety", "task", "environment"]
    assert layers["operating"]["source"] == "built in"
    assert "## How you work" in layers["operating"]["text"]


def test_a_task_is_shown_with_its_file_and_its_agent(workspace: Workspace, capsys: Capture) -> None:
    add_agent(workspace.folder, "checker", body="You check facts.")
    add_task(workspace.folder, "weekly")
    file = workspace.folder / ".agent" / "tasks" / "weekly" / "TASK.md"
    file.write_text("---\nname: weekly\nagent: checker\n---\nCount the notes.\n", encoding="utf-8")

    prompt = shown(workspace, capsys, "--task", "weekly")

    task = by_name(prompt)["task"]
    assert (prompt["agent"], task["text"], task["source"]) == (
        "checker",
        "Count the notes.",
        ".agent/tasks/weekly/TASK.md",
    )
    assert workspace.agent("prompt", "show", "--task", "wekly") == 2


def test_the_prompt_shown_for_a_step_is_the_prompt_of_its_run(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    add_agent(workspace.folder, "checker", body="You check facts.")
    first = (
        "---\nname: Weekly\nskills: []\ntools: [Read]\ninputs:\n  - {name: day, default: Friday}\nnext: tell.md\n---\n"
    )
    workspace.write(".agent/tasks/weekly/TASK.md", f"{first}\nCount the notes of {{{{inputs.day}}}}.\n")
    criteria = "acceptance:\n  - It is short\n"
    workspace.write(
        ".agent/tasks/weekly/tell.md", f"---\nname: Tell\nagent: checker\ntools: [Grep]\n{criteria}---\n\nTell it.\n"
    )
    model.follow(says("Counted."), says("Told."))

    before = [shown(workspace, capsys, "--task", "weekly", *more) for more in ((), ("--step", "tell"))]
    assert workspace.agent("task", "run", "weekly", "--json", "-q") == 0
    children = [child["run_id"] for child in json.loads(capsys.readouterr().out)["children"]]
    after = [shown(workspace, capsys, "--run", child, "--turn", "1") for child in children]

    assert [each["request_hash"] for each in before] == [each["recorded_hash"] for each in after]
    layers = by_name(before[1])
    assert [layers[name]["source"] for name in ("task", "step")] == [
        ".agent/tasks/weekly/TASK.md",
        ".agent/tasks/weekly/tell.md",
    ]
    assert "It is short" in layers["step"]["text"]
    assert workspace.agent("prompt", "show", "--task", "weekly", "--step", "told") == 2
    assert "Task 'weekly' has no step 'told'" in capsys.readouterr().err
    assert workspace.agent("prompt", "show", "--run", "latest") == 2
    assert f"Show one of them: {children[0]}, {children[1]}" in capsys.readouterr().err


def test_the_prompt_shown_before_a_run_is_the_prompt_of_the_run(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    write_context(workspace, base="Be brief.")
    model.follow(says("Done."))

    before = shown(workspace, capsys, "Greet")
    assert workspace.agent("run", "-q", "Greet") == 0
    after = shown(workspace, capsys, "--run", "latest")

    assert before["request_hash"] == after["request_hash"] == after["recorded_hash"]
    sent = json.dumps(model.received[0]["messages"])
    layers = [layer["text"] for layer in after["layers"] if layer["name"] != "tools"]
    assert [text for text in layers if json.dumps(text)[1:-1] not in sent] == []


def test_each_turn_is_rebuilt_as_sent_despite_changed_files(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    write_context(workspace, base="The old words.", soul='{"tone": "dry"}')
    file = add_agent(workspace.folder, "checker", "profile: permissive", body="You check facts.")
    model.follow(
        calls("use_skill", skill="greeter"),
        calls("script_run", skill_name="greeter", script_name="greet"),
        says("Done."),
    )
    assert workspace.agent("run", "-q", "--agent", "checker", "Greet") == 0
    write_context(workspace, base="The new words.")
    file.unlink()

    turns = [shown(workspace, capsys, "--run", "latest", "--turn", str(turn)) for turn in (1, 2, 3)]

    composed = [each["payload"] for each in workspace.events() if each["event_type"] == "prompt_composed"]
    assert [turn["request_hash"] for turn in turns] == [payload["request_hash"] for payload in composed]
    assert [turn["is_exact"] for turn in turns] == [True, True, True]
    assert by_name(turns[2])["base"]["text"] == "The old words."
    assert by_name(turns[1])["disclosed"]["source"].startswith("greeter:")
    assert by_name(turns[2])["run"]["source"] == "2 turns before this one"
    assert "run" not in by_name(turns[0])


def test_two_turns_are_compared_to_the_first_byte_that_differs(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(calls("Glob", pattern="*.md"), calls("Glob", pattern="*.txt"), says("Done."))
    assert workspace.agent("run", "-q", "Look") == 0

    compared = shown(workspace, capsys, "--run", "latest", "--turn", "2", "--against", "3")

    difference = compared["against"]["difference"]
    assert (difference["first"], difference["second"]) == ("", "exchange 2, assistant")
    assert difference["offset"] == difference["first_bytes"] < difference["second_bytes"]
    assert difference["second_text"].startswith('{"role":"assistant"')
    assert compared["against"]["is_exact"]
    same = shown(workspace, capsys, "--run", "latest", "--turn", "2", "--against", "2")
    assert same["against"]["difference"] is None
    assert workspace.agent("prompt", "show", "--run", "latest", "--turn", "2", "--against", "3") == 0
    assert f"differ from byte {difference['offset']} on" in capsys.readouterr().out


def test_an_oversized_file_is_truncated_with_a_marker_and_the_run_reports_it(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    write_context(workspace, soul=json.dumps({"story": "x" * 20_000}))
    model.follow(says("Done."))

    prompt = shown(workspace, capsys, "Greet")
    assert workspace.agent("run", "-q", "Greet") == 0

    soul = by_name(prompt)["soul"]["text"]
    assert soul.endswith("[… 8013 characters left out: at most 12000 of this layer are used …]")
    assert prompt["problems"][0]["message"] == "Layer 'soul' is cut: 8013 characters are left out"
    cut = [each["payload"] for each in workspace.events() if each["event_type"] == "prompt_layer_cut"]
    assert [(payload["layer"], payload["source"]) for payload in cut] == [("soul", "context/soul.json")]


@pytest.mark.parametrize(
    ("name", "data", "line", "sentence"),
    [
        ("soul.json", b'{\n"a": }', 2, "The file is not JSON: Expecting value"),
        ("user_profile.json", b"\n\xff", 2, "The file is not UTF-8"),
        ("system_prompt.md", b"x" * 1_000_001, 1, "The file is larger than 1000000 bytes"),
    ],
)
def test_an_unusable_context_file_prevents_the_start_of_a_run(
    *, name: str, data: bytes, line: int, sentence: str, workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    file = workspace.folder / "context" / name
    file.parent.mkdir()
    file.write_bytes(data)

    assert workspace.agent("run", "-q", "Greet") == 2

    assert f"{file}:{line}: error: {sentence}" in capsys.readouterr().err
    assert model.received == []


@pytest.mark.parametrize(
    "arguments", [["--turn", "1"], ["--run", "latest", "--agent", "x"], ["--run", "latest", "--turn", "9"]]
)
def test_meaningless_option_combinations_are_rejected(
    *, arguments: list[str], workspace: Workspace, model: ModelServer
) -> None:
    model.follow(says("Done."))
    assert workspace.agent("run", "-q", "Greet") == 0

    assert workspace.agent("prompt", "show", *arguments) == 2
