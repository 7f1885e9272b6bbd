from pathlib import Path

import pytest
from skill_files import found, write_file

from metier.definitions.task import TaskInput, load_task


def write_task(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        write_file(folder / f"{name}.md", text)
    return folder / "TASK.md"


def test_a_chain_of_steps_is_read_in_order_with_inputs_and_defaults(tmp_path: Path) -> None:
    first = """---
name: Release
description: Cut a release
agent: builder
skills: [changelog]
inputs:
  - name: version
    description: What to release
  - name: channel
    default: stable
  - name: note
    default: ""
next: ./publish.md
---
Do it.
"""
    second = "---\ntools: [Bash]\nagent: publisher\ntasks: [other]\n---\nPublish.\n"
    reading = load_task(write_task(tmp_path / "release", TASK=first, publish=second), id="ops/release")

    task = reading.task
    assert task is not None
    assert reading.problems == ()
    assert (task.id, task.name, task.description, task.agent) == ("ops/release", "Release", "Cut a release", "builder")
    assert task.inputs == (
        TaskInput(name="version", description="What to release"),
        TaskInput(name="channel", default="stable"),
        TaskInput(name="note", default=""),
    )
    assert [(step.name, step.body, step.agent) for step in task.steps] == [
        ("Release", "Do it.\n", "builder"),
        ("publish", "Publish.\n", "publisher"),
    ]
    assert (task.steps[0].skills, task.steps[1].tools, task.steps[1].skills) == (("changelog",), ("Bash",), None)
    assert [(each.kind, each.name, each.line) for each in reading.references] == [
        ("agent", "builder", 4),
        ("skill", "changelog", 5),
        ("agent", "publisher", 3),
        ("task", "other", 4),
    ]


@pytest.mark.parametrize(
    ("following", "code"),
    [
        ("absent.md", "next_missing"),
        ("../other/TASK.md", "next_outside"),
        ("/etc/passwd", "next_outside"),
        ("sub/step.md", "next_outside"),
        ("..\\other\\TASK.md", "next_outside"),
        ("~/x.md", "next_outside"),
        (".hidden.md", "next_outside"),
        ("step.txt", "next_outside"),
        ("TASK.md", "next_cycle"),
        ("task.md", "next_cycle"),
        ("linked.md", "next_outside"),
    ],
)
def test_a_next_step_must_be_another_file_in_the_same_folder(tmp_path: Path, following: str, code: str) -> None:
    write_file(tmp_path / "other" / "TASK.md", "---\nname: Other\n---\n")
    file = write_task(tmp_path / "t", TASK=f"---\nname: T\nnext: {following}\n---\n")
    (tmp_path / "t" / "linked.md").symlink_to(tmp_path / "other" / "TASK.md")

    reading = load_task(file)

    assert reading.task is None
    assert found(reading.problems) == [("error", code, 3)]


def test_a_longer_cycle_is_reported_at_its_last_step(tmp_path: Path) -> None:
    step = "---\nnext: {}\n---\n"
    file = write_task(tmp_path, TASK="---\nname: T\nnext: a.md\n---\n", a=step.format("b.md"), b=step.format("a.md"))

    (problem,) = load_task(file).problems

    assert (problem.code, problem.file, problem.line) == ("next_cycle", str(tmp_path / "b.md"), 2)


def test_every_step_is_checked_even_if_the_first_is_invalid(tmp_path: Path) -> None:
    file = write_task(
        tmp_path,
        TASK="---\nskils: x\nnext: two.md\n---\n",
        two="---\ninputs:\n  - name: x\nagnet: y\n---\n",
    )

    reading = load_task(file)

    assert reading.task is None
    assert found(reading.problems) == [
        ("error", "missing_name", 1),
        ("error", "unknown_key", 2),
        ("error", "inputs_in_step", 2),
        ("error", "unknown_key", 4),
    ]


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ("inputs: text", "not_a_list"),
        ("inputs:\n  - text", "not_a_mapping"),
        ("inputs:\n  - description: no name", "missing_name"),
        ("inputs:\n  - name: bad name", "input"),
        ("inputs:\n  - name: a\n    typ: b", "unknown_key"),
        ("inputs:\n  - name: a\n  - name: a", "duplicate_input"),
    ],
)
def test_invalid_inputs_are_errors(tmp_path: Path, inputs: str, code: str) -> None:
    reading = load_task(write_task(tmp_path, TASK=f"---\nname: T\n{inputs}\n---\n"))

    assert reading.task is None
    assert [problem.code for problem in reading.problems] == [code]
