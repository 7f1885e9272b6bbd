"""The command line as a whole: what it lists, how it fails, how it completes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metier.cli.main import run
from metier.cli.root import COMMANDS, load_command

AGENT = Path(sys.executable).parent / "agent"


def test_both_commands_are_installed_and_say_their_version() -> None:
    for name in ("agent", "metier"):
        done = subprocess.run([AGENT.with_name(name), "--version"], capture_output=True, text=True, check=True)

        assert done.stdout == "agent 0.2.0\n"


def test_verbose_version_says_what_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version", "--verbose"]) == 0

    out = capsys.readouterr().out
    assert out.startswith("agent 0.2.0\npython   3.")
    assert "extra    server     fastapi " in out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_listed_command_exists_and_has_the_summary_of_its_own_help(name: str) -> None:
    command = load_command(name)

    assert command.help
    assert COMMANDS[name].summary.endswith(".")


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    out = capsys.readouterr().out
    assert all(f"  {name}" in out for name in COMMANDS)


def test_no_argument_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    code = run([])

    captured = capsys.readouterr()
    assert code == 2
    assert "Begin and work:" in captured.out + captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["dance"], "No such command 'dance'"), (["config", "shwo"], "No such command"), (["--nope"], "No such option")],
)
def test_wrong_usage_is_a_sentence_a_hint_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2

    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert message in err
    assert "hint: " in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback_wherever_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "config", "validate", "--file", "nowhere.yaml"],
                      ["config", "validate", "--file", "nowhere.yaml", "--debug"]):  # fmt: skip
        assert run(arguments) == 2
        assert "Traceback" in capsys.readouterr().err


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


def test_a_task_typed_as_a_command_is_answered_with_the_command_that_runs_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["fix the bug"]) == 2

    assert "run `agent run 'fix the bug'`" in capsys.readouterr().err


def test_completion_without_a_shell_names_the_shells_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion"]) == 2

    assert "error: Missing argument 'shell'. Choose from bash, zsh, fish, powershell\n" in capsys.readouterr().err
