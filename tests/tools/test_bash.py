"""The shell tool with real programs: execution, folders, limits, words, and reports."""

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from pydantic import JsonValue

from metier.context.tokens import TokenCounter
from metier.events.payload import Payload
from metier.events.step import SkillStepExecuted
from metier.tools.base import ToolContext, ToolResult
from metier.tools.builtin import build_builtin_tools, build_shell_tools
from metier.tools.files.scope import Scope
from metier.tools.options import ShellOptions
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.shell.bash import Bash, PosixShell, Surroundings
from metier.tools.toolbox import Toolbox

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(sys.platform == "win32", reason="runs POSIX programs")]

SECRET = "hunter" + "2-of-the-agent"


def around(folder: Path, environ: Mapping[str, str] | None = None) -> Surroundings:
    return Surroundings(scope=Scope([folder]), environ=environ or {}, confinement=Confinement())


@dataclass
class Terminal:
    """A workspace with the tool and its output."""

    folder: Path
    options: ShellOptions = field(default_factory=ShellOptions)
    told: list[Payload] = field(default_factory=list[Payload])

    async def run(self, command: str, **arguments: JsonValue) -> ToolResult:
        # A home of its own: what a login shell reads there is not the test's business.
        ordinary = {**os.environ, "HOME": str(self.folder)}
        environ = {**ordinary, "MY_TOKEN": SECRET, "PATH": f".::bin:{os.environ['PATH']}", "BASH_ENV": "evil"}
        tool = Bash(around(self.folder, environ), shell=PosixShell(), options=self.options)
        context = ToolContext(
            workspace=self.folder,
            step_id="s1",
            emit=self.told.append,
            artifacts=self.folder / "kept",
            clean=lambda text: text.replace(SECRET, "[hidden]"),
        )
        return await Toolbox([tool]).call("Bash", {"command": command, **arguments}, context)

    async def output(self, command: str, **arguments: JsonValue) -> str:
        result = await self.run(command, **arguments)
        assert result.ok, result.error
        return str(result.output)


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a b.txt").write_text("one\ntwo\nthree\n")
    return Terminal(tmp_path)


async def test_program_lookup_is_equal_with_and_without_a_shell(terminal: Terminal) -> None:
    (terminal.folder / ".bash_profile").write_text("export PATH=/nowhere:/usr/bin:/bin FROM_PROFILE=yes\n")

    direct, text = await terminal.output("printenv PATH"), await terminal.output("for x in 1; do printenv PATH; done")

    assert text == direct == os.environ["PATH"]
    assert await terminal.output("for x in 1; do echo $FROM_PROFILE; done") == "yes"


@pytest.mark.parametrize(("name", "value"), [("timeout_ms", -5), ("timeout_ms", 0), ("max_output_chars", 0)])
async def test_a_limit_below_one_is_refused_before_anything_runs(terminal: Terminal, name: str, value: int) -> None:
    result = await terminal.run("touch ran", **{name: value})

    assert (result.ok, result.meta["code"]) == (False, "invalid_input")
    assert f"{value} is less than the minimum of 1 (at $.{name})" in result.error
    assert not (terminal.folder / "ran").exists()


WORDS = [
    ("printf '%s|' 'a b' \"c  d\" e#f '*' '$HOME'", "a b|c  d|e#f|*|$HOME|"),
    ("cat 'a b.txt'", "one\ntwo\nthree"),
    ("cat 'a b.txt' | tail -n 2 | head -n 1", "two"),
    ("true && echo yes || echo no", "yes"),
    ("false && echo yes || echo no", "no"),
    ("false; echo after", "after"),
    ("false || true && echo both", "both"),
    ("cd sub && pwd | sed 's:.*/::'; cd .. && ls", "sub\na b.txt\nsub"),
    ("cd nowhere || echo none", "none\n[stderr]\ncd: nowhere: No such file or directory"),
    ("yes | head -n 1", "y"),
    ("sh -c 'echo out; echo err >&2' 2>&1 | cat", "out\nerr"),
    ("sh -c 'echo out; echo err >&2' 2>/dev/null", "out"),
    ("sh -c 'echo out; echo err >&2' >/dev/null 2>&1; echo end", "end"),
    ("sh -c 'echo out; echo err >&2' 2>&1 >/dev/null", "err"),
    ("nosuchprogram; echo $?x", None),
    ("nosuchprogram; echo end", "end\n[stderr]\nnosuchprogram: command not found"),
    ("echo $((1 + 1)) *.txt", "2 a b.txt"),
    ("for x in 1 2; do echo $x; done", "1\n2"),
]


@pytest.mark.parametrize(("command", "expected"), WORDS)
async def test_lines_behave_like_in_bash(terminal: Terminal, command: str, expected: str | None) -> None:
    output = await terminal.output(command)

    assert expected is None or output == expected


@pytest.mark.parametrize(
    ("command", "code"), [("false", 1), ("true | false", 1), ("false | true", 0), ("sh -c 'exit 7'; sh -c 'exit 3'", 3)]
)
async def test_the_exit_code_is_that_of_the_last_command(terminal: Terminal, command: str, code: int) -> None:
    result = await terminal.run(command)

    assert result.meta["exit_code"] == code
    assert result.ok == (code == 0)
    assert code == 0 or result.error == f"[exit code {code}]"


async def test_a_signal_ends_a_line_like_in_a_shell(terminal: Terminal) -> None:
    result = await terminal.run("true; sh -c 'kill -9 $$'")

    assert result.meta["exit_code"] == 128 + signal.SIGKILL


async def test_the_approved_words_are_the_executed_words(terminal: Terminal) -> None:
    words = ["-n", "a b", "'", '"', "$(touch PWNED)", "`x`", "*", "~", "\\", "\n", "", "#", "&&", ";"]
    quoted = " ".join("'" + word.replace("'", "'\"'\"'") + "'" for word in words)
    program = "import sys; sys.stdout.write(repr(sys.argv[1:]))"

    single = await terminal.output(f"'{sys.executable}' -c '{program}' {quoted}")
    piped = await terminal.output(f"'{sys.executable}' -c '{program}' {quoted} | cat")

    assert single == piped == repr(words)
    assert not (terminal.folder / "PWNED").exists()


async def test_a_command_runs_in_the_workspace_or_a_folder_of_it(terminal: Terminal) -> None:
    assert await terminal.output("pwd") == str(terminal.folder)
    assert await terminal.output("pwd", cwd="sub") == str(terminal.folder / "sub")
    assert await terminal.output("pwd", cwd="sub/../sub") == str(terminal.folder / "sub")


async def test_a_folder_outside_is_denied_unless_all_are_allowed(
    terminal: Terminal, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (terminal.folder / "link").symlink_to(outside)

    for cwd in ("..", str(outside), "sub/../..", "link", "~", "nowhere", "a b.txt"):
        assert not (await terminal.run("touch x", cwd=cwd)).ok
    assert list(outside.iterdir()) == []

    terminal.options = ShellOptions(cwd="any")
    assert await terminal.output("pwd", cwd=str(outside)) == str(outside)
    assert not (await terminal.run("pwd", cwd="nowhere")).ok


async def test_a_command_gets_neither_agent_secrets_nor_relative_path_entries(terminal: Terminal) -> None:
    evil = terminal.folder / "bin" / "ls"
    evil.parent.mkdir()
    evil.write_text("#!/bin/sh\ntouch PWNED\n")
    evil.chmod(0o755)

    output = await terminal.output("env")
    await terminal.output("ls")
    await terminal.output("ls | cat")

    assert SECRET not in output
    assert "BASH_ENV" not in output
    assert "GIT_TERMINAL_PROMPT=0" in output
    assert not (terminal.folder / "PWNED").exists()


@pytest.mark.parametrize("line", ["sleep 600", "sleep 600 | cat; echo x", "sleep 600 & sleep 600 $x"])
async def test_the_timeout_kills_every_started_process(terminal: Terminal, line: str) -> None:
    with anyio.fail_after(60):
        result = await terminal.run(line, timeout_ms=300)

    assert not result.ok
    assert result.meta["code"] == "timeout"
    assert "killed after" in result.error
    (event,) = terminal.told
    assert isinstance(event, SkillStepExecuted)
    assert event.status == "timeout"


async def test_the_model_cannot_exceed_the_limits_of_the_settings(terminal: Terminal) -> None:
    terminal.options = ShellOptions(timeout_ms=300)
    slow = await terminal.run("sleep 600", timeout_ms=600_000)
    terminal.options = ShellOptions(max_output_chars=500)
    long = await terminal.output("seq 1 10000", max_output_chars=100_000)

    assert slow.meta["code"] == "timeout"
    assert len(long) <= 500


async def test_long_output_keeps_head_and_tail_and_is_saved_completely_in_the_run(terminal: Terminal) -> None:
    result = await terminal.run(f"sh -c 'echo first {SECRET}; seq 1 20000; echo last; exit 4'", max_output_chars=400)

    assert result.error.startswith("first [hidden]\n1\n2\n")
    assert result.error.endswith("last\n[exit code 4]")
    assert "characters omitted; the full text is in kept/s1-output.txt …]" in result.error
    kept = (terminal.folder / "kept" / "s1-output.txt").read_text()
    assert kept.startswith("first [hidden]\n1\n2\n")
    assert len(kept.splitlines()) == 20_003
    artifacts = result.meta["artifacts"]
    assert isinstance(artifacts, list)
    (artifact,) = artifacts
    assert isinstance(artifact, dict)
    assert artifact["bytes"] == len(kept)


async def test_endless_output_is_truncated_with_bounded_memory(terminal: Terminal) -> None:
    result = await terminal.run("yes | head -c 30000000", max_output_chars=1000)

    assert result.ok
    assert len(str(result.output)) <= 1000
    assert (terminal.folder / "kept" / "s1-output.txt").stat().st_size < 9 << 20


async def test_the_outcome_of_a_command_is_reported(terminal: Terminal) -> None:
    await terminal.run("sh -c 'echo out; echo error >&2; exit 3'")

    (event,) = terminal.told
    assert isinstance(event, SkillStepExecuted)
    assert (event.tool, event.action, event.step_id, event.status) == ("Bash", "run_command", "s1", "failed")
    assert (event.exit_code, event.stdout_bytes, event.stderr_bytes, event.truncated) == (3, 4, 6, False)
    assert event.duration_ms > 0


@pytest.mark.parametrize("command", ["", "   ", "echo a\0b", "echo \ud800"])
async def test_an_invalid_program_argument_returns_an_error_result(terminal: Terminal, command: str) -> None:
    result = await terminal.run(command)

    assert not result.ok
    assert result.meta["code"] == "invalid_input"


async def test_a_missing_program_returns_an_error_result(terminal: Terminal) -> None:
    result = await terminal.run("nosuchprogram --x")

    assert result.error == "'nosuchprogram' could not be started: No such file or directory"


ALLOWED = ShellOptions(
    mode="allowlist", allowed_prefixes=("git status", "ls", "echo", "find", "make test", "mytool", "sh")
)


@pytest.mark.parametrize(
    ("command", "is_allowed"),
    [
        ("ls -la", True),
        ("ls && echo hi | echo there", True),
        ("make test", True),
        ("mytool --any thing", True),
        ("find . -name x", True),
        ("ls; touch PWNED", False),
        ("ls && touch PWNED", False),
        ("ls $(touch PWNED)", False),
        ("ls\ntouch PWNED", False),
        ("X=1 ls", False),
        ("/bin/ls", False),
        ("./ls", False),
        ("lsof", False),
        ("git statusx", False),
        ("git status --no-such", False),
        ("git -c a=b status", False),
        ("make test install", False),
        ("find . -exec touch PWNED ';'", False),
        ("echo hi > PWNED", False),
        ("env ls", False),
        ("sh", False),
        ("sh -c ls", False),
        ("ls # x", False),
        ("ls | xargs touch", False),
    ],
)
async def test_allowlist_mode_runs_a_line_only_if_every_command_is_listed(
    terminal: Terminal, command: str, *, is_allowed: bool
) -> None:
    terminal.options = ALLOWED

    result = await terminal.run(command)

    assert (result.meta.get("code") != "permission_denied") == is_allowed
    assert is_allowed or "allowed_prefixes" in result.error
    assert not (terminal.folder / "PWNED").exists()


@pytest.mark.parametrize("options", [ShellOptions(mode="off"), ShellOptions(enabled=False)])
def test_a_disabled_shell_is_unavailable(options: ShellOptions, tmp_path: Path) -> None:
    assert build_shell_tools(around(tmp_path), shell=PosixShell(), options=options) == ()


async def test_an_approval_shows_how_the_line_was_parsed(tmp_path: Path) -> None:
    (tool,) = build_shell_tools(around(tmp_path), shell=PosixShell(), options=ShellOptions())
    box, context = Toolbox([tool]), ToolContext(workspace=tmp_path)

    plain = await box.preview("Bash", {"command": "git  add 'a b'&& rm x"}, context)
    strange = await box.preview("Bash", {"command": "rm $X"}, context)

    assert plain is not None
    assert plain.text == "Run without a shell:\n  git add 'a b'\n  rm x"
    assert strange is not None
    assert strange.text == "Run as text by /bin/bash: the line contains an expansion ('$')"


def test_the_description_of_the_tool_is_short(tmp_path: Path) -> None:
    tools = build_shell_tools(around(tmp_path), shell=PosixShell(), options=ShellOptions())

    assert TokenCounter().tools(Toolbox(tools).specs()) <= 420
    assert TokenCounter().tools(Toolbox((*build_builtin_tools(Scope([tmp_path]), environ={}), *tools)).specs()) <= 2_400
    assert (tools[0].info.risk, tools[0].info.effect, tools[0].info.category) == ("high", "opaque", "bash")
