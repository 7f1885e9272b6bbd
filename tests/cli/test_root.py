"""The command line as a whole: listing, errors and completion."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from metier.cli.main import run
from metier.cli.root import ALIASES, COMMANDS, load_command

AGENT = Path(sys.executable).parent / "agent"


def test_both_commands_are_installed_and_print_their_version() -> None:
    for name in ("agent", "metier"):
        done = subprocess.run([AGENT.with_name(name), "--version"], capture_output=True, text=True, check=True)

        assert done.stdout == "agent 0.2.0\n"


def test_verbose_version_lists_the_components(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version", "--verbose"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("agent 0.2.0\npython   3.")
    assert "extra    server     fastapi " in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_and_has_the_summary_of_its_own_help(name: str) -> None:
    command = load_command(name)

    assert command.help
    assert COMMANDS[name].summary


def list_shown(text: str) -> list[str]:
    """Return the command names in a help text."""
    _, *sections = re.split(r"^(?!Options|Arguments|Usage)\S.*:$", text, flags=re.MULTILINE)
    return [name for section in sections for name in re.findall(r"^  ([a-z-]+)  ", section, flags=re.MULTILINE)]


def test_help_lists_at_most_twenty_commands_and_advanced_help_lists_the_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["--help"]) == 0
    first = list_shown(capsys.readouterr().out)
    assert run(["help", "advanced"]) == 0
    advanced = list_shown(capsys.readouterr().out)

    assert len(first) <= 20
    assert {"init", "run", "approve", "skills", "check"} <= set(first)
    assert {"fork", "replay", "redact", "acp", "notify"} <= set(advanced)
    assert sorted([*first, *advanced]) == sorted(set(COMMANDS) - set(ALIASES))


@pytest.mark.parametrize("group", ["runs", "skills", "mcp", "notify", "policy", "schedule", "config", "approvals"])
def test_help_of_a_group_truncates_no_summary(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([group, "--help"]) == 0

    assert not re.search(r"\.\.\.$|…$", capsys.readouterr().out.partition("COMMAND [ARGS]...")[2], re.MULTILINE)


@pytest.mark.parametrize(
    ("group", "advanced"),
    [("skills", ["check-sync", "contracts", "to-prompt"]), ("runs", ["rebuild"]), ("notify", ["send"])],
)
def test_rarely_used_commands_of_a_group_are_listed_as_advanced(
    group: str, advanced: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([group, "--help"]) == 0

    assert sorted(list_shown("Advanced:" + capsys.readouterr().out.partition("Advanced:")[2])) == advanced


def test_agent_without_arguments_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code = run([])

    captured = capsys.readouterr()
    assert code == 2
    assert "Getting started:" in captured.out + captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["dance"], "No such command 'dance'"), (["config", "shwo"], "No such command"), (["--nope"], "No such option")],
)
def test_usage_error_prints_a_message_and_a_hint_with_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2

    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert "hint: " in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback_at_any_position(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "config", "validate", "--file", "nowhere.yaml"],
                      ["config", "validate", "--file", "nowhere.yaml", "--debug"]):  # fmt: skip
        assert run(arguments) == 2
        assert "Traceback" in capsys.readouterr().err


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A workspace with a completed run and a run with a pending approval."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AGENT_SKILLS", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert run(["init", "--provider", "offline"]) == 0
    careful = folder / ".agent/agents/careful/AGENT.md"
    careful.parent.mkdir()
    careful.write_text("---\nname: Careful\ndescription: Asks.\nprofile: guarded\n---\n\nAsk.\n", encoding="utf-8")
    assert run(["run", "list the open tasks", "--quiet", "--agent", "careful"]) == 3
    assert run(["run", "list the open tasks", "--quiet"]) == 0
    capsys.readouterr()
    return folder


@pytest.mark.parametrize(
    ("earlier", "current"),
    [
        ("validate", "check workspace"),
        ("validate --json", "check workspace --json"),
        ("config validate --json", "check settings --json"),
        ("policy test --json", "check rules --json"),
        ("task validate review --json", "check tasks review --json"),
        ("--check --json", "check --json"),
        ("skill list --json", "skills list --json"),
        ("skill route tasks", "skills route tasks"),
        ("replay latest --points", "fork latest"),
        ("skills inspect ./.agent/skills/open-tasks --json", "skills show ./.agent/skills/open-tasks --json"),
    ],
)
def test_earlier_name_of_a_command_still_works(
    earlier: str, current: str, starter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(earlier.split()) == 0
    expected = capsys.readouterr()

    assert run(current.split()) == 0
    assert capsys.readouterr() == expected


@pytest.mark.parametrize(
    "line",
    [
        "skill info open-tasks", "skills info open-tasks --json", "skills inspect open-tasks", "skills contracts",
        "skills check-sync .agent", "skills to-prompt .agent/skills/open-tasks", "notify send", "runs rebuild latest",
        "redact notes/welcome.md", "replay latest --fork-at 2", "approvals approve APPROVAL", "approvals deny APPROVAL",
    ],
)  # fmt: skip
def test_command_moved_to_advanced_still_works(line: str, starter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["approvals", "list", "--json"]) == 0
    approval = json.loads(capsys.readouterr().out)[0]["approval_id"]

    assert run(line.replace("APPROVAL", approval).split()) == 0


def test_skill_show_includes_everything_from_info_and_inspect(
    starter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(command: str) -> dict[str, object]:
        assert run(["skills", command, "open-tasks", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    shown, info, declared = read("show"), read("info"), read("inspect")

    assert {key: shown[key] for key in info} == info
    assert declared.keys() <= shown.keys()
    assert (shown["tags"], shown["sections"]) == (declared["tags"], declared["sections"])


def test_approve_and_deny_decide_the_pending_call(starter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["approvals", "list", "--json"]) == 0
    approval = json.loads(capsys.readouterr().out)[0]["approval_id"]

    assert run(["approve", approval]) == 0
    assert run(["deny", approval]) == 10


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_prints_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0

    assert "_AGENT_COMPLETE" in capsys.readouterr().out


def test_bash_completes_commands_with_the_printed_script(tmp_path: Path) -> None:
    script = tmp_path / "agent.bash"
    script.write_bytes(subprocess.run([AGENT, "completion", "bash"], capture_output=True, check=True).stdout)
    ask = (
        f"source '{script}'; COMP_WORDS=(agent con); COMP_CWORD=1; _agent_completion agent; echo \"${{COMPREPLY[@]}}\""
    )

    done = subprocess.run(
        ["bash", "-c", ask], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": f"{AGENT.parent}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert done.stdout.split() == ["config"]


def test_output_into_a_closed_pipe_is_quiet() -> None:
    done = subprocess.run(
        ["bash", "-c", f"'{AGENT}' config schema | head -c 1"], capture_output=True, text=True, check=True
    )

    assert done.stderr == ""


def test_a_task_typed_as_a_command_gets_a_hint_with_the_run_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["fix the bug"]) == 2

    assert "use `agent run 'fix the bug'`" in capsys.readouterr().err


def test_completion_without_a_shell_names_the_shells_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion"]) == 2

    assert "error: Missing argument 'shell'. Choose from bash, zsh, fish, powershell\n" in capsys.readouterr().err
