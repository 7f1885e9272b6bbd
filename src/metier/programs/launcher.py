"""Start programs. No other module starts a process; a test checks that.

Metier starts few programs of its own. Each start names a `Use`: how the program is found, and its environment and
folder. `docs/contributing/programs.md` lists the uses. Only three functions below build a
`Program`, so that no file that a confined program can write is run outside the sandbox.
"""

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import anyio
from anyio.abc import Process
from msgspec import Struct
from msgspec.structs import replace

from metier.programs.code import CommandLine, locate_program
from metier.programs.search import build_trusted_environment, get_trusted_program

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

NEUTRAL_FOLDER = Path(os.sep)
"""Working folder of programs that need none: it contains no configuration or code."""


class Use(NamedTuple):
    """A program and how it is started: one section of `docs/contributing/programs.md`."""

    program: str
    purpose: str
    found: str
    environment: str
    folder: str


GIT = Use(
    "git",
    "`agent skill add` and `update`, evals, [undo](../how-to/undo.md), worktrees, `agent doctor`",
    "trusted search",
    "a short list; none of your settings or hooks",
    "the repository",
)
RIPGREP = Use(
    "ripgrep", "`Grep` in large folders", "trusted search", "none, and no configuration file", "the workspace"
)
BUBBLEWRAP = Use("bubblewrap", "the sandbox of level `full`", "trusted search", "one marker variable", "the command's")
UV = Use(
    "uv",
    "packages of a script",
    "installed with Metier",
    "a short list; `PATH` is the trusted search",
    "Metier's cache",
)
PROBE = Use("`--version` of these programs", "`agent doctor`", "as in their sections", "only `PATH`", "`/`")
SUPERVISOR = Use(
    "the supervisor",
    "each program that a tool starts",
    "a file of Metier, run with the absolute path of its Python and `-I -S`",
    "one marker variable",
    "the command's",
)
TRIAL = Use(
    "a sandbox trial",
    "finding a working level, once per process",
    "a file of Metier, run with its Python and `-I -S` inside the tried sandbox",
    "only `PATH`",
    "an empty temporary folder",
)
WORKER = Use(
    "a worker",
    "[background runs](../how-to/terminal.md#run-in-the-background), if no worker is running",
    "Metier itself, with the absolute path of its Python and `-P`",
    "your whole environment except import paths in the workspace, because it executes runs like the command",
    "the workspace",
)
SERVER_PROCESS = Use(
    "server processes",
    "`agent serve --workers`",
    "Metier itself, by `multiprocessing` with `PYTHONSAFEPATH`",
    "the server's, except import paths in the workspace",
    "the workspace",
)
EDITOR = Use(
    "your editor",
    "editing a message (Ctrl-G) or the arguments of a call at a terminal",
    "`VISUAL`, `EDITOR` or a common editor, by trusted search",
    "your whole environment except import and search paths in the workspace",
    "a private folder with the text",
)
CLIPBOARD = Use(
    "the clipboard: `wl-copy`, `xclip`, `xsel`, `pbcopy` or `clip`",
    "`/copy` in a chat",
    "trusted search",
    "a short list and the display's address",
    "`/`",
)
NOTIFICATION = Use(
    "`notify.command`",
    "[notifications](../how-to/notifications.md)",
    "trusted search, or the configured path; workspace files by accepted hash",
    "a short list; `PATH` is the trusted search",
    "your home folder",
)
MCP_SERVER = Use(
    "MCP servers",
    "tools of accepted servers",
    "as configured in `.agent/mcp.json`, with your `PATH`; "
    "[workspace files](../how-to/mcp-servers.md#servers-with-code-in-the-workspace) by accepted hash",
    "a short list and the configured variables; outside the sandbox, `PATH` without workspace folders",
    "as configured; default: the workspace",
)
TASKKILL = Use("`taskkill` (Windows)", "ending a process tree", "in `%SYSTEMROOT%`", "none", "`/`")

USES = (
    GIT, RIPGREP, BUBBLEWRAP, UV, PROBE, SUPERVISOR, TRIAL, WORKER, SERVER_PROCESS, EDITOR, CLIPBOARD, NOTIFICATION,
    MCP_SERVER, TASKKILL,
)  # fmt: skip


class Program(Struct, frozen=True, kw_only=True):
    """A program that may run outside the sandbox, with its whole environment."""

    use: Use
    command: tuple[str, ...]
    """An absolute path, then the arguments of every start."""
    environment: Mapping[str, str]

    def __post_init__(self) -> None:
        if not Path(self.command[0]).is_absolute():
            raise ValueError(f"{self.command[0]!r} is no absolute path")

    @property
    def path(self) -> str:
        return self.command[0]

    def with_variables(self, variables: Mapping[str, str]) -> "Program":
        return replace(self, environment={**self.environment, **variables})


def find_program(
    use: Use, name: str, environ: Mapping[str, str], *, writable: Collection[Path], passed: Iterable[str] = ()
) -> Program | None:
    """Find a program by trusted search; None if there is none. `passed` names the variables that it receives."""
    found = get_trusted_program(name, environ, writable=writable)
    if not found:
        return None
    environment = build_trusted_environment(environ, writable=writable, names=passed)
    return Program(use=use, command=(found,), environment=environment)


def use_own_program(use: Use, *command: str, environment: Mapping[str, str]) -> Program:
    """Use a program by its absolute path: a file of this installation, or the result of an earlier trusted search."""
    return Program(use=use, command=command, environment=environment)


def use_accepted_program(use: Use, line: CommandLine) -> Program | None:
    """Use a command line whose code the caller has compared with the accepted hash; None if its program is missing."""
    found = locate_program(line)
    if found is None:
        return None
    return Program(use=use, command=(str(found), *line.words[1:]), environment=line.environment)


def run_program(
    program: Program,
    *arguments: str,
    folder: Path = NEUTRAL_FOLDER,
    given: bytes = b"",
    timeout: float | None = None,
    is_interactive: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program and capture its output. An interactive program gets the terminal instead.

    Raises `OSError` or `subprocess.TimeoutExpired`.
    """
    command = [*program.command, *arguments]
    if is_interactive:
        return subprocess.run(command, cwd=folder, env=dict(program.environment), check=False)
    # With an input, even an empty one, the program never waits for the terminal.
    environment = dict(program.environment)
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, input=given, timeout=timeout, check=False
    )


def feed_program(program: Program, *arguments: str, given: bytes, timeout: float) -> int:
    """Run a program with this input, discard its output and return its exit code.

    There is no pipe for the output: a program that continues in the background, as `xclip` does, would keep it open.
    Raises `OSError` or `subprocess.TimeoutExpired`.
    """
    command = [*program.command, *arguments]
    with subprocess.Popen(
        command,
        cwd=NEUTRAL_FOLDER,
        env=dict(program.environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            process.communicate(given, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return process.returncode


async def run_program_async(
    program: Program, *arguments: str, folder: Path = NEUTRAL_FOLDER
) -> subprocess.CompletedProcess[bytes]:
    """Run a program and capture its output; cancellation kills it. Raises `OSError`."""
    command = [*program.command, *arguments]
    return await anyio.run_process(command, cwd=folder, env=program.environment, check=False)


async def open_program(
    program: Program,
    *arguments: str,
    folder: Path,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.PIPE,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Start a program in its own session, with its output in pipes. Raises `OSError`."""
    return await anyio.open_process(
        [*program.command, *arguments],
        stdin=stdin,
        stderr=stderr,
        cwd=folder,
        env=program.environment,
        start_new_session=True,  # a Ctrl-C at the terminal must reach the agent only, which then ends the program
        pass_fds=pass_fds,
    )


async def open_command(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], stdin: int
) -> Process:
    """Start a tool's command on Windows, where there is no supervisor. Raises `OSError`."""
    assert sys.platform == "win32", "everywhere else the supervisor starts it"
    flags = subprocess.CREATE_NEW_PROCESS_GROUP
    return await anyio.open_process(list(arguments), stdin=stdin, cwd=folder, env=environment, creationflags=flags)


def start_in_background(program: Program, *arguments: str, folder: Path, output: IO[bytes]) -> None:
    """Start a program that outlives this process and its terminal. Raises `OSError`."""
    process = subprocess.Popen(
        [*program.command, *arguments],
        cwd=folder,
        env=dict(program.environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # closing the terminal must not end it (SIGHUP)
    )
    # This process doesn't wait for it. Without an exit code, `Popen.__del__` would warn that it is still running.
    process.returncode = 0


def open_own_processes(use: Use) -> "SpawnContext":
    """Return the `multiprocessing` context that starts processes of the server.

    They, and the tracker that `multiprocessing` starts with them, run as `python -c …` in this folder: without
    PYTHONSAFEPATH they would import a `multiprocessing.py` of the workspace.
    """
    import multiprocessing  # noqa: PLC0415  a tenth of the modules of a run, and the server alone needs it

    assert use is SERVER_PROCESS
    os.environ["PYTHONSAFEPATH"] = "1"
    return multiprocessing.get_context("spawn")
