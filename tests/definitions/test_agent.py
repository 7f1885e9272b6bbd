from pathlib import Path

import pytest
from skill_files import found, write_file

from metier.definitions.agent import load_agent
from metier.definitions.references import resolve_list
from metier.definitions.text.yaml_text import Mapping


def test_every_field_of_an_agent_is_read(tmp_path: Path) -> None:
    text = """---
name: Builder
description: Builds things
metadata:
  team: {name: core}
model: claude-sonnet
allowed_models: [gpt-4.1]
temperature: 0.2
max_tokens: 4096
tools: [inherit, Bash]
tool_approvals:
  default: approve
skills: inherit
tasks: []
task_approvals: {rules: []}
profile: strict
---
You build.
"""
    reading = load_agent(write_file(tmp_path / "builder" / "AGENT.md", text), id="team/builder")

    agent = reading.agent
    assert agent is not None
    assert reading.problems == ()
    assert (agent.id, agent.name, agent.description, agent.body) == (
        "team/builder",
        "Builder",
        "Builds things",
        "You build.\n",
    )
    assert (agent.model, agent.allowed_models) == ("claude-sonnet", ("gpt-4.1",))
    assert (agent.temperature, agent.max_tokens, agent.profile) == (0.2, 4096, "strict")
    assert (agent.tools, agent.skills, agent.tasks) == (("inherit", "Bash"), ("inherit",), ())
    assert isinstance(agent.tool_approvals, Mapping)
    assert agent.tool_approvals.line == 12
    assert isinstance(agent.task_approvals, Mapping)
    assert agent.metadata == {"team": {"name": "core"}}


def test_all_problems_are_reported_together_with_lines_and_suggestions(tmp_path: Path) -> None:
    text = "---\nmodle: x\ntemperature: hot\nmax_tokens: 0\nprofile: gaurded\nmetadata: text\n---\n"

    reading = load_agent(write_file(tmp_path / "AGENT.md", text))

    assert reading.agent is None
    assert sorted(found(reading.problems)) == [
        ("error", "bad_value", 3),
        ("error", "bad_value", 4),
        ("error", "bad_value", 5),
        ("error", "missing_name", 1),
        ("error", "not_a_mapping", 6),
        ("error", "unknown_key", 2),
    ]
    hints = {problem.line: problem.hint for problem in reading.problems}
    assert hints[2] == "Did you mean 'model'?"
    assert hints[5] == "Did you mean 'guarded'?"


@pytest.mark.parametrize(
    "text", ["", "No front matter", "---\nname: [x\n---\n", "---\nname: x\n", "---\nname: x: y\n---\n"]
)
def test_own_definitions_are_not_repaired(tmp_path: Path, text: str) -> None:
    reading = load_agent(write_file(tmp_path / "AGENT.md", text))

    assert reading.agent is None
    assert all(problem.line for problem in reading.problems)


def test_an_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    assert found(load_agent(tmp_path / "AGENT.md").problems) == [("error", "unreadable", 1)]


@pytest.mark.parametrize(
    ("own", "inherited", "expected"),
    [
        (None, ("a", "b"), ("a", "b")),
        (("inherit",), ("a", "b"), ("a", "b")),
        (("inherit", "c", "a"), ("a", "b"), ("a", "b", "c")),
        (("c", "inherit"), ("a",), ("a", "c")),
        (("c", "c"), ("a", "b"), ("c",)),
        ((), ("a", "b"), ()),
        (None, (), ()),
    ],
)
def test_inherit_keeps_extends_or_replaces(
    own: tuple[str, ...] | None, inherited: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert resolve_list(own, inherited) == expected
