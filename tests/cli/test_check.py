"""`agent check`: active skills, their contents, and load failures."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metier.cli.main import run

pytestmark = pytest.mark.slow

AGENT = Path(sys.executable).with_name("agent")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, an empty workspace inside it, no settings from outside."""
    for name in [name for name in os.environ if name.startswith(("AGENT_", "XDG_CONFIG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TERM", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command with --json and return what it printed."""

    def call(*args: str) -> Any:
        run([*args, "--json"])
        return json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def rows(ask: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    return lambda *args: {skill["name"]: skill for skill in ask("check", *args)["skills"]}


def write_skill(folder: Path, *, extra: str = "", files: dict[str, str] | None = None) -> Path:
    contents = {
        "SKILL.md": f"---\nname: {folder.name}\ndescription: Takes notes.\n{extra}---\nText.\n",
        **(files or {}),
    }
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_each_skill_has_a_line_and_a_hint_explains_how_to_enable_skills(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", "Kalshi_Markets")

    code = run(["--check"])

    seen = capsys.readouterr()
    lines = seen.out.splitlines()
    assert code == 0
    assert lines[0] == "Skills:"
    (kalshi,) = [line for line in lines if "kalshi-markets" in line]
    (hello,) = [line for line in lines if "hello-extended" in line]
    assert kalshi.startswith("  ✓ kalshi-markets (active) - 10 scripts, 0 toolsets [")
    assert hello.startswith("  ○ hello-extended (inactive) - 1 script, 1 toolset [")
    assert "To enable: export AGENT_SKILLS=Kalshi_Markets,content-summarizer\n" in seen.err


def test_invalid_settings_are_reported_with_everything_else(capsys: pytest.CaptureFixture[str]) -> None:
    Path("agent.yaml").write_text("runtime:\n  max_turns: many\n")
    Path(".agent/tasks/tidy").mkdir(parents=True)
    Path(".agent/tasks/tidy/TASK.md").write_text("---\nname: [\n---\nTidy.\n")

    assert run(["check"]) == 2

    seen = capsys.readouterr()
    assert "kalshi-markets" in seen.out
    assert "agent.yaml is invalid; the rest is checked with the defaults" in seen.out
    assert "agent.yaml:2: error: runtime.max_turns must be a whole number, not 'many'" in seen.err
    assert "TASK.md:3: error: YAML syntax error" in seen.err

    assert run(["check", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [problem["code"] for problem in found["problems"]] == ["bad_value", "yaml_syntax"]
    assert found["ok"] is False


def test_lines_of_both_streams_keep_their_order_in_a_shared_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done = subprocess.run([AGENT, "check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)

    lines = done.stdout.decode().splitlines()
    assert (lines[0], lines[-1]) == ("Skills:", "hint: To enable: export AGENT_SKILLS=content-summarizer")


def test_command_and_option_print_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--json"]) == 0
    by_command = capsys.readouterr().out

    assert run(["--check", "--json"]) == 0
    assert capsys.readouterr().out == by_command
    assert run(["--check", "doctor"]) == 2


def test_workspace_skill_is_active_by_default(rows: Callable[..., dict[str, Any]]) -> None:
    write_skill(Path(".agent/skills/notes"), files={"scripts/a.py": "", "scripts/b.py": ""})
    write_skill(Path("skills/letters"))
    write_skill(Path("other/songs"))

    found = rows()

    assert (found["notes"]["state"], found["notes"]["scripts"]) == ("active", 2)
    assert found["letters"]["state"] == "active"
    assert "songs" not in found
    assert rows("--skills-dir", "other")["songs"]["state"] == "active"


def test_skill_that_fails_to_load_is_listed_with_its_reason_and_sets_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = Path(".agent/skills/broken-skill")
    broken.mkdir(parents=True)
    (broken / "SKILL.md").write_text("---\nname: broken-skill\n---\n")
    write_skill(Path(".agent/skills/lost"), extra="scripts: [gone]\n")

    code = run(["check"])

    out = capsys.readouterr().out
    assert code == 1
    assert "  ✗ broken-skill (active) - Load failed: Field 'description' is missing (SKILL.md line 1)\n" in out
    assert "  ✗ lost (active) - Load failed: The folder 'scripts' is missing\n" in out


def test_toolset_is_imported_and_its_error_is_the_reason(
    rows: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    write_skill(
        Path(".agent/skills/clock"),
        extra="toolsets: [toolsets.clock:Clock]\n",
        files={"toolsets/clock.py": "import no_such_module_at_all\n"},
    )

    assert run(["check"]) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if "clock" in line)
    assert line.startswith("  ✗ clock (active) - Load failed: toolset 'toolsets.clock:Clock': ")
    assert "no_such_module_at_all" in line
    assert rows()["hello-extended"]["tools"] == []


def test_tools_of_an_active_toolset_are_listed_by_their_full_names(
    rows: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", "hello-extended")

    assert "hello-extended.list_languages" in rows()["hello-extended"]["tools"]


def test_unknown_name_fails_with_the_closest_match(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_SKILLS", "kalshi-market")

    assert run(["check"]) == 1
    seen = capsys.readouterr()
    line = next(line for line in seen.out.splitlines() if "✗" in line)
    assert line.startswith("  ✗ kalshi-market (active) - Load failed: not found")
    assert "kalshi-markets" in line
    assert "AGENT_SKILLS=kalshi-market," not in seen.err


def test_settings_file_enables_skills_and_the_environment_overrides_it(
    rows: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("agent.yaml").write_text("skills:\n  enabled: [hello-extended]\n  dir: ./mine\n")
    write_skill(Path("mine/songs"))

    found = rows()
    assert (found["hello-extended"]["active"], found["songs"]["active"]) == (True, True)
    monkeypatch.setenv("AGENT_SKILLS", "none")
    assert not rows()["hello-extended"]["active"]
    monkeypatch.setenv("AGENT_SKILLS", "ALL")
    assert rows()["hello-extended"]["active"]


def test_skill_of_the_home_folder_is_opt_in_and_needs_trust(
    home: Path, rows: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(home / ".agent/skills/letters")
    monkeypatch.setenv("AGENT_SKILLS", "letters")

    assert (rows()["letters"]["active"], rows()["letters"]["note"]) == (False, "not trusted")
    assert run(["skill", "trust", "letters", "--yes"]) == 0
    assert rows()["letters"]["active"]


def test_all_commands_agree_on_precedence(home: Path, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The skill exists in every place; the winner is removed repeatedly."""
    monkeypatch.setenv("AGENT_SKILLS", "hello-extended")
    places = ["skills", ".agent/skills", ".nanobot/skills", ".agents/skills", ".claude/skills"]
    order = [Path(place) / "hello-extended" for place in places]
    for folder in (*order, home / ".agent/skills/hello-extended", home / ".agents/skills/hello-extended"):
        write_skill(folder)

    for winner in order:
        listed = {skill["name"]: Path(skill["path"]).parent.resolve() for skill in ask("skills", "list")}
        active = [Path(skill["path"]).resolve() for skill in ask("check")["skills"] if skill["active"]]
        tested = ask("skill", "test", "hello-extended", "--no-run")
        assert listed["hello-extended"] == winner.resolve()
        assert active == [winner.resolve()]
        assert Path(tested["path"]).resolve() == winner.resolve()
        (winner / "SKILL.md").unlink()

    assert {skill["name"]: skill["source"] for skill in ask("skills", "list")}["hello-extended"] == "bundled"
    assert [skill["source"] for skill in ask("check")["skills"] if skill["active"]] == ["bundled"]


def test_installed_skill_stays_a_package_when_the_home_folder_is_the_workspace(
    home: Path, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(home / ".agent/skills/letters", files={"scripts/a.py": "print(1)"})
    monkeypatch.chdir(home)

    (checked,) = [skill for skill in ask("check")["skills"] if skill["name"] == "letters"]
    (listed,) = [skill for skill in ask("skills", "list", "--all") if skill["name"] == "letters"]

    assert (checked["source"], checked["active"], listed["source"]) == ("user", False, "user")
    assert run(["skill", "run", "letters", "a"]) == 5


@pytest.mark.parametrize("variables", [{"PYTHONIOENCODING": "ascii"}, {"TERM": "dumb"}])
def test_plain_marks_are_used_if_the_terminal_supports_no_others(variables: dict[str, str]) -> None:
    write_skill(Path(".agent/skills/заметки"))

    # The real program: Python reads the encoding of its streams when it starts.
    done = subprocess.run([AGENT, "check"], env={**os.environ, **variables}, capture_output=True, check=False)

    assert done.returncode == 0, done.stderr
    assert b"  [--] hello-extended (inactive) - 1 script, 1 toolset [" in done.stdout
    assert b"[ok] " in done.stdout


def test_unreadable_folder_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    loop = Path(".agent/skills/a/b")
    loop.mkdir(parents=True)
    (loop / "again").symlink_to(Path(".agent/skills").resolve())

    assert run(["check"]) == 0
    assert "[link_loop]" in capsys.readouterr().err


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "> /dev/full"])
def test_closed_output_stream_causes_no_crash(closed: str) -> None:
    done = subprocess.run(["bash", "-c", f"'{AGENT}' skill list --all {closed}"], capture_output=True, check=False)

    assert done.returncode == (1 if "full" in closed else 0)
    assert done.stderr.decode().partition(":")[0] in ("", "error")
    assert b"Traceback" not in done.stderr


def test_error_on_a_full_device_keeps_its_exit_code() -> None:
    # Without PYTHONUNBUFFERED the message is still in the buffer when the interpreter exits.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}

    done = subprocess.run(["bash", "-c", f"'{AGENT}' runs show none 2> /dev/full"], env=environment, check=False)

    assert done.returncode == 2


def test_broken_pipe_is_not_an_error() -> None:
    done = subprocess.run(
        f"set -o pipefail; '{AGENT}' check | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        check=False,
    )

    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr
