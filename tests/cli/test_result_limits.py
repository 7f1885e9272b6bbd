"""Documented size limits apply to content: a label never costs content, and no limit is applied twice."""

import pytest
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model
from test_json_decisions import find_events

OUTPUT = "python3 -c \"import sys; sys.stdout.write('o' * {out}); sys.stderr.write('e' * {err}); sys.exit({code})\""


def read_result(model: ModelServer, index: int = -1) -> str:
    """Return the last tool result as sent."""
    (*_, result) = [each for each in model.received[index]["messages"] if each["role"] == "tool"]
    return result["content"]


@pytest.mark.parametrize(("most", "code", "label"), [(50_000, 0, "[stderr]"), (30_000, 3, "[exit code 3]")])
def test_command_output_at_the_limit_arrives_complete(
    workspace: Workspace, model: ModelServer, *, most: int, code: int, label: str
) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK, shell={"max_output_chars": most})
    command = OUTPUT.format(out=most - 100, err=100, code=code)
    model.follow(calls("Bash", command=command), says("Done."))

    assert workspace.agent("run", "Print", "--profile", "permissive") == 0

    text = read_result(model)
    assert (text.count("o" * (most - 100)), text.count("e" * 100)) == (1, 1)
    assert label in text
    assert "omitted" not in text


def test_longer_command_output_is_truncated_to_the_limit_once(workspace: Workspace, model: ModelServer) -> None:
    workspace.configure(model=use_model(model), runtime=QUICK, shell={"max_output_chars": 50_000})
    model.follow(calls("Bash", command=OUTPUT.format(out=60_000, err=1, code=3)), says("Done."))

    assert workspace.agent("run", "Print", "--profile", "permissive") == 0

    text = read_result(model).removeprefix("Error: ")
    assert len(text) == 50_000 + len("\n[stderr]\n") + len("\n[exit code 3]")
    assert text.count("omitted") == 1
    assert text.endswith("[stderr]\ne\n[exit code 3]")


@pytest.mark.parametrize("size", [900, 90_000])
def test_a_reference_at_the_limit_arrives_complete_with_its_content_size(
    workspace: Workspace, model: ModelServer, size: int
) -> None:
    text = "word\n" * (size // 5)
    references = workspace.folder / "skills" / "greeter" / "references"
    references.mkdir()
    (references / "long.md").write_text(text, encoding="utf-8")
    limits = {"disclosure_max_reference_bytes": size, "disclosure_max_reference_tokens": 100_000}
    workspace.configure(model=use_model(model), runtime=QUICK, skills=limits)
    model.follow(
        calls("use_skill", skill="greeter", reason="It greets"),
        calls("read_skill_files", paths=["references/long.md"]),
        says("Done."),
    )

    assert workspace.agent("run", "Greet somebody kindly", "--profile", "permissive") == 0

    assert text in read_result(model)
    (stage,) = [each for each in find_events(workspace, "skill_disclosure_loaded") if each["stage"] == 2]
    assert stage["total_bytes"] == size
    assert not stage["files"][0]["truncated"]


def test_a_truncated_reference_with_its_marker_is_within_the_limit(workspace: Workspace, model: ModelServer) -> None:
    references = workspace.folder / "skills" / "greeter" / "references"
    references.mkdir()
    (references / "long.md").write_text("word\n" * 500, encoding="utf-8")
    (references / "line.md").write_text("x" * 5000, encoding="utf-8")
    workspace.configure(model=use_model(model), runtime=QUICK, skills={"disclosure_max_reference_bytes": 1000})
    model.follow(
        calls("use_skill", skill="greeter", reason="It greets"),
        calls("read_skill_files", paths=["references/long.md"]),
        calls("read_skill_files", paths=["references/line.md"]),
        says("Done."),
    )

    assert workspace.agent("run", "Greet somebody kindly", "--profile", "permissive") == 0

    sizes = [each["total_bytes"] for each in find_events(workspace, "skill_disclosure_loaded") if each["stage"] == 2]
    assert all(990 <= size <= 1000 for size in sizes), sizes
