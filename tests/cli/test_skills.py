import json
import os
from pathlib import Path

import pytest

from metier.cli.main import run

GOOD = "---\nname: {name}\ndescription: Does {name}.\n---\n# Title\n\nText\n\n## Usage\n\nMore\n"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project of a new user."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(work)
    return work


def add(folder: Path, text: str | bytes | None = None) -> Path:
    folder.mkdir(parents=True)
    content = GOOD.format(name=folder.name) if text is None else text
    (folder / "SKILL.md").write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def test_list_shows_skills_with_their_source_and_warns_of_hidden_ones(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(workspace / ".agent/skills/notes")
    add(Path.home() / ".agent/skills/notes")
    add(Path.home() / ".agents/skills/other")

    code = run(["skills", "list", "--all"])

    out, err = capsys.readouterr()
    assert code == 0
    assert "notes  [workspace]  active  Does notes." in out.splitlines()
    assert "other  [user]  inactive  Does other." in out.splitlines()
    assert "shadowed_skill" in err


def test_add_names_a_home_folder_that_cannot_be_written(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add(workspace / "mine/notes")
    # A file instead of the folder, because root may write to any folder.
    (Path.home() / ".agent").write_text("")

    assert run(["skills", "add", str(folder), "--yes"]) == 1

    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: Cannot write to the folder of installed skills")
    assert hint == "hint: Make it writable, or set HOME to another folder"


def test_list_as_json_is_only_json_on_stdout(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add(workspace / "more/notes")

    assert run(["skills", "list", "--json", "--skills-dir", "more"]) == 0

    listed = {skill["name"]: skill for skill in json.loads(capsys.readouterr().out)}
    assert listed["notes"]["source"] == "folder"
    assert listed["notes"]["path"] == str(folder / "SKILL.md")


def test_list_of_a_missing_folder_is_a_usage_error(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["skills", "list", "--skills-dir", "absent"]) == 2
    assert "'absent' does not exist" in capsys.readouterr().err


def test_inspect_shows_front_matter_and_sections(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(workspace / ".agent/skills/my-notes")

    code = run(["skills", "inspect", "My_Notes", "--show-frontmatter", "--show-sections"])

    lines = capsys.readouterr().out.splitlines()
    assert code == 0
    assert "name:          my-notes" in lines
    assert "description: Does my-notes." in lines
    assert "Title  #title  lines 5-11, 30 bytes" in lines
    assert "  Usage  #usage  lines 9-11, 15 bytes" in lines


def test_inspect_as_json_has_the_full_tree(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add(workspace / "somewhere/notes")
    (folder / "scripts").mkdir()
    (folder / "scripts" / "Go.py").write_text("raise SystemExit('never run')")

    assert run(["skills", "inspect", "somewhere/notes", "--json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["scripts"]) == ("notes", ["go.py"])
    assert shown["frontmatter"] == "name: notes\ndescription: Does notes.\n"
    assert [child["slug"] for child in shown["sections"][0]["children"]] == ["usage"]


def test_show_lists_the_reference_files_with_title_and_size(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = add(workspace / "somewhere/notes")
    (folder / "references" / "deep").mkdir(parents=True)
    (folder / "references" / "style.md").write_text("# Style of\x1b notes\n\nBe brief.\n")
    (folder / "references" / "deep" / "plain.txt").write_text("Only a sentence.\n")
    (folder / "references" / "image.png").write_bytes(b"\x89PNG\0\0")
    (folder / "references" / ".hidden.md").write_text("# Hidden\n")
    (folder / "references" / "link.md").symlink_to("/etc/passwd")

    assert run(["skills", "inspect", "somewhere/notes", "--json"]) == 0
    index = json.loads(capsys.readouterr().out)["references_index"]
    assert run(["skills", "inspect", "somewhere/notes"]) == 0
    shown = capsys.readouterr().out

    assert [(file["path"], file["title"].replace("\x1b", ""), file["bytes"]) for file in index] == [
        ("references/deep/plain.txt", "Only a sentence.", 17),
        ("references/image.png", "", 6),
        ("references/style.md", "Style of notes", 29),
    ]
    assert "references:    references/deep/plain.txt (Only a sentence., 17 bytes), references/image.png" in shown
    assert "\x1b" not in shown


def test_linked_references_folder_is_not_listed(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add(workspace / "somewhere/notes")
    (folder / "references").symlink_to("/etc")

    assert run(["skills", "inspect", "somewhere/notes", "--json"]) == 0

    assert json.loads(capsys.readouterr().out)["references_index"] == []


def test_inspect_of_an_unknown_name_suggests_the_closest_match(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(workspace / ".agent/skills/notes")

    assert run(["skills", "inspect", "note"]) == 2
    assert "hint: Did you mean 'notes'?" in capsys.readouterr().err


def test_a_skill_cannot_send_control_sequences_to_the_terminal(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(workspace / ".agent/skills/evil", '---\nname: evil\ndescription: "a\\e[2Jb\\u202ec\\a"\n---\n')

    run(["skills", "list"])
    run(["skills", "inspect", "evil", "--show-frontmatter"])

    out = capsys.readouterr().out
    assert "ab\\u202ec\\x07" in out
    assert not {"\x1b", "\u202e", "\x07"} & set(out)


def test_validate_prints_the_documented_json(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(workspace / "good")
    add(workspace / "odd", "---\nname: Odd\ndescription: d\n---\n")
    add(workspace / "bad", "---\n- list\n---\n")

    code = run(["skills", "validate", "good", "odd/SKILL.md", "bad", "--json"])

    assert code == 1
    assert json.loads(capsys.readouterr().out) == [
        {"path": "good/SKILL.md", "name": "good", "loaded": True, "problems": []},
        {
            "path": "odd/SKILL.md",
            "name": "Odd",
            "loaded": True,
            "problems": [
                {"severity": "warning", "code": "name_case", "line": 2, "message": "Name 'Odd' must be lower case"},
                {
                    "severity": "warning",
                    "code": "name_folder",
                    "line": 2,
                    "message": "Name 'Odd' differs from the folder 'odd'",
                },
            ],
        },
        {
            "path": "bad/SKILL.md",
            "name": None,
            "loaded": False,
            "problems": [
                {
                    "severity": "error",
                    "code": "not_a_mapping",
                    "line": 2,
                    "message": "The front matter is not a mapping",
                }
            ],
        },
    ]


def test_problem_in_the_code_of_a_skill_names_its_file(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(workspace / "good")
    (workspace / "good" / "impl.py").write_text("x = 1\n", encoding="utf-8")

    run(["skills", "validate", "good", "--json"])

    (verdict,) = json.loads(capsys.readouterr().out)
    (problem,) = verdict["problems"]
    assert (problem["code"], Path(problem["file"]).name) == ("impl_without_execute", "impl.py")


def test_validate_exit_codes(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(workspace / "good")
    add(workspace / "odd", "---\nname: Odd\ndescription: d\n---\n")
    (workspace / "empty").mkdir()

    assert run(["skills", "validate", "good", "odd"]) == 0
    assert run(["skills", "validate", "--strict", "good"]) == 0
    assert run(["skills", "validate", "--strict", "odd"]) == 1
    assert run(["skills", "validate", "empty"]) == 1
    assert run(["skills", "validate", "absent"]) == 2
    assert run(["skills", "validate"]) == 2
    assert "no 'SKILL.md'" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["# Only text\n", "---\nname: broken\n---\n\nDo it.\n", "---\nname: [x\ndescription: d\n---\n"]
)
def test_validate_rejects_an_own_skill_that_runs_do_not_load(
    text: str, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(workspace / "skills" / "broken", text)
    add(workspace / ".claude" / "skills" / "broken", text)

    assert run(["skills", "validate", "skills"]) == 1
    assert "0 of 1 skills can be loaded" in capsys.readouterr().err
    assert run(["skills", "validate", ".claude/skills"]) == 0


def test_validate_checks_every_file_of_a_collection(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("a", "b/c", ".claude/skills/d", "e", "e/assets/f"):
        add(workspace / "all" / place)
    (workspace / "all" / "g").mkdir()
    (workspace / "all" / "g" / "SKILL.md").symlink_to("nowhere")

    assert run(["skills", "validate", "all", "--json"]) == 1

    verdicts = {verdict["path"]: verdict["loaded"] for verdict in json.loads(capsys.readouterr().out)}
    assert verdicts == {
        "all/.claude/skills/d/SKILL.md": True,
        "all/a/SKILL.md": True,
        "all/b/c/SKILL.md": True,
        "all/e/SKILL.md": True,
        "all/e/assets/f/SKILL.md": True,
        "all/g/SKILL.md": False,
    }


def test_validate_checks_the_current_folder(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(add(workspace / "good"))

    assert run(["skills", "validate", ".", "SKILL.md", "--strict"]) == 0


def test_validate_does_not_block_on_a_pipe(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace / "pipe").mkdir()
    os.mkfifo(workspace / "pipe" / "SKILL.md")

    assert run(["skills", "validate", "pipe"]) == 1
    assert run(["skills", "validate", "pipe/SKILL.md"]) == 1


def test_to_prompt_prints_the_reference_block(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = add(workspace / "notes")

    assert run(["skills", "to-prompt", "notes", "notes/SKILL.md"]) == 0

    skill = (
        "<skill>\n<name>\nnotes\n</name>\n<description>\nDoes notes.\n</description>\n"
        f"<location>\n{folder / 'SKILL.md'}\n</location>\n</skill>\n"
    )
    assert capsys.readouterr().out == f"<available_skills>\n{skill}{skill}</available_skills>\n"


def test_to_prompt_of_a_folder_without_a_skill_fails_with_the_reason(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["skills", "to-prompt", "."]) == 1
    assert "no_skill_file" in capsys.readouterr().err


def test_list_and_route_omit_disabled_packages(
    workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    add(workspace / ".agent/skills/notes")

    run(["skills", "list"])
    project_only = capsys.readouterr().out
    run(["skills", "route", "kalshi market prices"])
    routed = capsys.readouterr().out
    monkeypatch.setenv("AGENT_SKILLS", "kalshi-markets")
    run(["skills", "list"])

    assert project_only == "notes  [workspace]  active  Does notes.\n"
    assert "kalshi" not in routed
    assert "kalshi-markets  [bundled]" in capsys.readouterr().out
