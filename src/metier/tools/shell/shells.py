"""Run a line word by word, or as text by a shell. bash and PowerShell behind one interface."""

import json
import re
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from metier.errors import ToolFailed
from metier.tools.process.child_environment import base_interpreter
from metier.tools.shell.line import Pipeline, ShellLine, SimpleCommand, has_variable, split_marks

RUNNER = Path(__file__).with_name("line_runner.py")
_WITH_PATH = 'PATH="$1" exec "$0" -c "$2"'
_PWSH_QUOTES = re.compile("(['\u2018\u2019\u201a\u201b])")
"""PowerShell treats typographic quotes like plain ones."""
_PWSH_REDIRECTS = {
    ">/dev/null": ">$null", "1>/dev/null": ">$null", "2>/dev/null": "2>$null", "&>/dev/null": "*>$null",
    "2>&1": "2>&1", ">&1": "", "1>&1": "", "2>&2": "",
}  # fmt: skip


class Shell(Protocol):
    @property
    def name(self) -> str:
        """The name for users."""
        ...

    def run_text(self, text: str, *, path: str) -> list[str]:
        """Return the arguments that run the text in the shell, with `path` as its PATH."""
        ...

    def run_line(self, line: ShellLine) -> list[str]:
        """Return the arguments that run exactly the words of the line. Raises `ToolFailed` if the shell can't."""
        ...


class PosixShell(Struct, frozen=True):
    """`/bin/bash -lc` for text; understood lines run without a shell.

    The startup files of a login shell may change PATH, so that text and understood lines would find different programs.
    Therefore a second shell with the original PATH runs the text.
    """

    program: str = "/bin/bash"

    @property
    def name(self) -> str:
        return self.program

    def run_text(self, text: str, *, path: str) -> list[str]:
        return [self.program, "-lc", _WITH_PATH, self.program, path, text]

    def run_line(self, line: ShellLine) -> list[str]:
        if (only := find_only(line)) is not None and not only.is_open:
            return list(only.argv)
        order = [
            [pipeline.connector, [[command.argv, command.redirects] for command in pipeline.commands]]
            for pipeline in line.pipelines
        ]
        # As text, because the folder of this package may not be visible in the sandbox.
        return [base_interpreter(), "-I", "-S", "-c", RUNNER.read_text(encoding="utf-8"), json.dumps(order)]


class PowerShell(Struct, frozen=True):
    """`pwsh -NoProfile -Command` for text; understood lines are quoted word by word."""

    program: str = "pwsh"

    @property
    def name(self) -> str:
        return self.program

    def run_text(self, text: str, *, path: str = "") -> list[str]:  # noqa: ARG002  without a profile it stays
        return [self.program, "-NoProfile", "-Command", text]

    def run_line(self, line: ShellLine) -> list[str]:
        if (only := find_only(line)) is not None and not only.is_open:
            return list(only.argv)
        return self.run_text(render_powershell(line))


def choose_shell(platform: str, *, linux: str, windows: str) -> Shell:
    """Choose the shell for a value of `sys.platform`."""
    return PowerShell(windows) if platform == "win32" else PosixShell(linux)


def find_only(line: ShellLine) -> SimpleCommand | None:
    """Return the command of a line that has only one program with arguments, or None."""
    commands = line.commands
    return commands[0] if len(commands) == 1 and not commands[0].redirects and commands[0].argv[0] != "cd" else None


def quote_powershell(word: str) -> str:
    """Quote a word for PowerShell, so that only known variables are expanded."""
    if has_variable(word):
        pieces = [
            f"$env:{piece[1:-1]}" if has_variable(piece) else quote_powershell(piece) for piece in split_marks(word)
        ]
        return f"({' + '.join(pieces)})"
    return "'" + _PWSH_QUOTES.sub(r"\1\1", word) + "'"


def render_powershell(line: ShellLine) -> str:
    """Render the line for PowerShell. Raises `ToolFailed` for an unsupported redirect."""
    return "".join(_render_pipeline(pipeline) for pipeline in line.pipelines)


def _render_pipeline(pipeline: Pipeline) -> str:
    before = {"": "", ";": "; ", "&&": " && ", "||": " || "}[pipeline.connector]
    return before + " | ".join(_render_command(command) for command in pipeline.commands)


def _render_command(command: SimpleCommand) -> str:
    words = [quote_powershell(word) for word in command.argv]
    called = ["Set-Location", "-LiteralPath", *words[1:]] if command.argv[0] == "cd" else ["&", *words]
    for redirect in command.redirects:
        if redirect not in _PWSH_REDIRECTS:
            raise ToolFailed(f"PowerShell has no redirection {redirect!r}", code="invalid_input")
        called.append(_PWSH_REDIRECTS[redirect])
    return " ".join(word for word in called if word)
