"""A rule that denies `Read` for a path covers every way to read the file."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import JsonValue
from workspaces import Drill, call, put

from metier.cli.main import run
from metier.testing.scripted import says

pytestmark = pytest.mark.anyio

SECRET = "the-hidden-word"
DENY = "tool_approvals:\n- {tool: Read, allow: false, reason: Hands off, when: {path: {startsWith: private/}}}\n"
FILES = {
    ".agent/policy.yaml": DENY,
    "private/notes.md": f"{SECRET}\n",
    "private/AGENTS.md": f"{SECRET}\n",
    "private/open.txt": "nothing\n",
    "docs/open.md": "an open word\n",
    "AGENTS.md": "# Project\n\n@docs/open.md\n@private/notes.md\n@docs/link.md\n",
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    put(folder, FILES)
    (folder / "docs/link.md").symlink_to("../private/notes.md")
    return folder


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("Read", {"path": "private/notes.md"}),
        ("Grep", {"pattern": "hidden"}),
        ("Grep", {"pattern": "hidden", "path": "private"}),
        ("Grep", {"pattern": "hidden", "path": "private/notes.md"}),
        ("Grep", {"pattern": "hidden", "path": "docs/link.md"}),
        ("Grep", {"pattern": "hidden", "context": 5, "glob": "**/*.md"}),
    ],
)
async def test_no_tool_shows_a_file_denied_for_read(
    workspace: Path, tool: str, arguments: Mapping[str, JsonValue]
) -> None:
    drill = Drill(workspace, [call(tool, **arguments), says("done")])

    await drill.run()

    assert SECRET not in drill.told[0]


async def test_a_search_for_names_omits_files_denied_for_read(workspace: Path) -> None:
    drill = Drill(workspace, [call("Glob", pattern="**/*.md"), says("done")])

    await drill.run()

    assert "docs/open.md" in drill.told[0]
    assert "private" not in drill.told[0]


async def test_a_search_in_a_denied_file_names_the_rule(workspace: Path) -> None:
    drill = Drill(workspace, [call("Grep", pattern="x", path="private/notes.md"), says("done")])

    await drill.run()

    assert "Hands off" in drill.told[0]


async def test_imports_of_project_instructions_omit_denied_files(workspace: Path) -> None:
    drill = Drill(workspace, [says("done")])

    await drill.run()

    told = repr(drill.provider.requests[0])
    assert "an open word" in told
    assert SECRET not in told


async def test_instructions_in_a_denied_folder_are_not_read(workspace: Path) -> None:
    put(workspace, {"private/sub/AGENTS.md": f"{SECRET}\n", "private/sub/new.txt": ""})
    allow = "- {tool: Write, allow: true}\n"
    put(workspace, {".agent/policy.yaml": DENY + allow})
    drill = Drill(workspace, [call("Write", path="private/sub/new.txt", content="x"), says("done")])

    await drill.run()

    assert SECRET not in repr(drill.provider.requests[-1])


async def test_skill_files_denied_for_read_are_not_disclosed(workspace: Path) -> None:
    rule = "tool_approvals:\n- {tool: Read, allow: false, reason: Hands off, when: {path: {contains: /closed}}}\n"
    skill = "---\nname: notes\ndescription: Write notes about a thing.\n---\n# Notes\n\nSee references/closed.md.\n"
    put(
        workspace,
        {
            ".agent/policy.yaml": rule,
            "skills/notes/SKILL.md": skill,
            "skills/notes/references/closed.md": f"{SECRET}\n",
            "skills/notes/references/open.md": "an open word\n",
        },
    )
    wanted = call("read_skill_files", paths=["references/closed.md", "references/open.md"])
    drill = Drill(workspace, [call("use_skill", skill="notes"), wanted, says("done")])

    await drill.run("write notes")

    assert "an open word" in drill.told[1]
    assert "Hands off" in drill.told[1]
    assert SECRET not in drill.told[1]


def test_a_mention_of_a_denied_file_is_refused(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(workspace)

    assert run(["run", "look at @private/notes.md"]) == 2

    assert "Hands off" in capsys.readouterr().err


async def test_a_rule_for_all_tools_does_not_deny_allowed_searches(workspace: Path) -> None:
    rules = 'tool_approvals:\n- {tool: Grep, allow: true}\n- {tool: "*", allow: false}\n'
    put(workspace, {".agent/policy.yaml": rules})
    drill = Drill(workspace, [call("Grep", pattern="open word"), says("done")])

    await drill.run()

    assert "docs/open.md" in drill.told[0]
