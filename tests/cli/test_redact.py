"""`agent redact`: files, pipes, JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from metier.cli.main import run

AGENT = str(Path(sys.executable).with_name("agent"))
KEY = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"


def test_file_is_shown_without_secrets_and_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.txt").write_bytes(f"key {KEY}\r\n\x1b[31mred\x1b[0m \x00 ".encode() + b"\xff\n")

    assert run(["redact", str(tmp_path / "log.txt")]) == 0

    assert capsys.readouterr().out == "key ***REDACTED***\nred \\x00 \N{REPLACEMENT CHARACTER}\n"


def test_json_lists_kind_and_position_of_findings_without_the_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.txt").write_text(f"one\ntwo {KEY} password=abc\nboat: Belle")

    assert run(["redact", "--json", "--names", "boat", str(tmp_path / "log.txt")]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "text": "one\ntwo ***REDACTED*** password=***REDACTED***\nboat: ***REDACTED***",
        "found": [
            {"kind": "github", "line": 2, "column": 5},
            {"kind": "name", "line": 2, "column": 29},
            {"kind": "name", "line": 3, "column": 7},
        ],
    }


def test_values_of_secret_variables_are_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_API_KEY", "plain-looking-words")
    (tmp_path / "log.txt").write_text("it says plain-looking-words here")

    assert run(["redact", str(tmp_path / "log.txt")]) == 0

    assert capsys.readouterr().out == "it says ***REDACTED*** here"


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_unreadable_file_is_a_usage_error(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["redact", str(tmp_path / name)]) == 2

    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: File '")


def test_error_message_hides_a_secret_and_cannot_fake_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["redact", f"{KEY}\x1b[2J\nhint: Run this\r\nerror: fake"]) == 2

    shown = capsys.readouterr().err
    assert KEY not in shown
    assert "\x1b" not in shown
    assert [line.split(":")[0] for line in shown.splitlines()] == ["error", "hint"]
    assert "\\nhint: Run this\\nerror: fake" in shown


def test_error_path_does_not_load_pydantic() -> None:
    code = (
        "import sys; from metier.cli.shared.failure import report; from metier.errors import MetierError; "
        "report(MetierError('x'), debug=False); sys.exit('pydantic' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stderr == "error: x\n"


def test_pipe_is_filtered() -> None:
    done = subprocess.run([AGENT, "redact"], input=f"a {KEY} b", capture_output=True, text=True, check=True)

    assert done.stdout == "a ***REDACTED*** b"


def test_closed_pipe_prints_no_error(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("line\n" * 200_000)
    command = [AGENT, "redact", str(tmp_path / "long.txt")]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        noise = process.stderr.read()

    assert noise == b""


BLOCKS = 105
"""Of a megabyte: more than the process may have."""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input() -> None:
    block = ("an ordinary line of a long log, with a path /a/b/c and a number 12345\n" * 14_000 + f"{KEY}\n").encode()
    command = [sys.executable, "-c", MEASURED, AGENT]

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(BLOCKS):
            process.stdin.write(block)
        process.stdin.close()
        marks, peak_kib, cpu_seconds = process.stdout.read().split()

    assert int(marks) == BLOCKS
    assert int(peak_kib) < 100_000
    assert BLOCKS * len(block) / float(cpu_seconds) > 5_000_000


MEASURED = """
import resource, subprocess, sys
marks = 0
with subprocess.Popen([sys.argv[1], "redact"], stdout=subprocess.PIPE) as child:
    for line in child.stdout:
        marks += line.count(b"***REDACTED***")
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(marks, used.ru_maxrss, used.ru_utime + used.ru_stime)
"""
"""Runs the command on its own input and prints what came out, the memory and the time of that one child."""
