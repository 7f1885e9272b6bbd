"""`Bash`: run a command line in the workspace. Rules judge it before; here it is expanded, bounded and reported.

An approval covers the bytes of the workspace files that a line executes, as far as its words say: scripts of
interpreters, programs by path, programs of the workspace that PATH finds, and the files that runners such as `make`
read by themselves. Code that these files load is not covered.
"""

import errno
import hashlib
import json
import os
import posixpath
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from anyio.to_thread import run_sync
from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.errors import ToolFailed
from metier.events.step import SkillStepExecuted
from metier.programs.code import SEPARATORS, is_code, list_scripts, locate_word
from metier.prompts.texts import build_parameters, load_tool_text
from metier.telemetry.excerpt import cut_middle
from metier.tools.base import NoGuard, PathGuard, Preview, ToolContext, ToolInfo, ToolResult
from metier.tools.files.scope import Scope
from metier.tools.options import ShellOptions
from metier.tools.process.bounded_output import Output, count_label_characters, render_streams
from metier.tools.process.child_environment import base_interpreter, build_environment, build_trace_variables
from metier.tools.process.run import Command, Outcome, ProcessLimits, run_process
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.protected import SECRETS_REASON, protected_name
from metier.tools.shell.allowlist import CD, find_refusal, is_direct, is_own_cd
from metier.tools.shell.harmless import CommandFolders
from metier.tools.shell.line import (
    NotUnderstood,
    Pipeline,
    ShellLine,
    SimpleCommand,
    expand_pattern,
    has_pattern,
    has_variable,
    pair_commands,
    parse_line,
    split_marks,
)
from metier.tools.shell.link_targets import ProgramSearch, follow_links

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


_SETTINGS = (
    # A cloned folder can look like a bare repository, whose configuration git would read.
    ("safe.bareRepository", "explicit"),
    # `git status`, `git diff`, `git describe` and `git ls-files` start this program.
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    # `ext::` addresses are commands.
    ("protocol.ext.allow", "never"),
    # Git checks signatures with a program that the repository names.
    ("log.showSignature", "false"),
    # Otherwise git would run in each submodule, with the submodule's configuration and without these settings.
    ("diff.ignoreSubmodules", "dirty"),
    ("status.submoduleSummary", "false"),
    ("submodule.recurse", "false"),
)
"""Git settings that override those of the repository, user and system; only `-c` on the command line overrides them."""


def build_git_settings() -> dict[str, str]:
    """Return the git settings as environment variables."""
    variables = {"GIT_CONFIG_COUNT": str(len(_SETTINGS))}
    for number, (name, value) in enumerate(_SETTINGS):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


_SUMMARY_BYTES = 500
"""Length of the end of each stream in the event log."""
_ERROR_BYTES = 65_536
"""Length of the end of a stream that is searched for a denied write."""
MAX_FILES = 64
"""Maximum number of files that an approval covers."""
MAX_BYTES = 8 * 1_048_576
"""Of a larger file, only the start is hashed."""
_RUNNERS = {
    "make": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", "Justfile", ".justfile"),
    "npm": ("package.json",),
    "pnpm": ("package.json",),
    "yarn": ("package.json",),
    "bun": ("package.json",),
    "tox": ("tox.ini",),
    "nox": ("noxfile.py",),
    "task": ("Taskfile.yml", "Taskfile.yaml"),
}


def digest_executed_files(
    line: ShellLine | NotUnderstood, text: str, *, folder: Path, workspace: Path, path: str
) -> str:
    """Return a hash of the files that a line executes; empty if it executes none of the workspace.

    `text` is split into words if the line is not understood. Missing files count too, because they may appear later.
    """
    if isinstance(line, ShellLine):
        commands = [[word for word in command.argv if word] for command in line.commands]
    else:
        commands = [[word for word in SEPARATORS.split(text) if word]]
    found: dict[str, str] = {}
    for start in _list_folders(commands, folder):
        for file in (file for words in commands for file in _list_files(words, start, path)):
            if len(found) < MAX_FILES and str(file) not in found and _lies_in(file, workspace):
                found[str(file)] = _describe(file)
    if not found:
        return ""
    return hashlib.sha256(
        "\n".join(f"{name}\0{described}" for name, described in sorted(found.items())).encode()
    ).hexdigest()


def _list_folders(commands: Sequence[Sequence[str]], folder: Path) -> list[Path]:
    """List the folders that a command of the line may start in: the first one, and those that `cd` names."""
    folders = [folder]
    for words in commands:
        for number, word in enumerate(words[1:]):
            if words[number] == "cd" and (target := locate_word(word, folders[-1])):
                folders.append(target)
    return folders


def _list_files(words: Sequence[str], folder: Path, path: str) -> Iterator[Path]:
    yield from list_scripts(words, folder)
    for number, word in enumerate(words):
        yield from (folder / file for file in _RUNNERS.get(Path(word).name, ()))
        if number == 0 and "/" not in word:
            if program := shutil.which(word, path=path):
                yield Path(program)
        elif (file := locate_word(word, folder)) and (number == 0 or is_code(file)):
            yield file


def _lies_in(file: Path, workspace: Path) -> bool:
    return file.is_relative_to(workspace) or file.resolve().is_relative_to(workspace)


def _describe(file: Path) -> str:
    try:
        with open(file, "rb", opener=_open_plain) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return "no file"
            return hashlib.sha256(stream.read(MAX_BYTES)).hexdigest()
    except (OSError, ValueError):
        return "missing"


def _open_plain(path: str, flags: int) -> int:
    # A named pipe would block until it has a writer.
    return os.open(path, flags | os.O_NONBLOCK)


def expand_line(line: ShellLine, folder: str) -> ShellLine:
    """Expand the file patterns of a line that starts in `folder`; after a `cd` they apply to the new folder."""
    pipelines: list[Pipeline] = []
    for pipeline in line.pipelines:
        commands = tuple(_expand(command, folder) for command in pipeline.commands)
        pipelines.append(replace(pipeline, commands=pair_commands(commands)))
        if len(commands) == 1 and is_own_cd(commands[0], pipeline):
            entered = os.path.join(folder, commands[0].argv[1])  # noqa: PTH118  text, as the rest of a line
            folder = entered if os.path.isdir(entered) else folder  # noqa: PTH112
    return replace(line, pipelines=tuple(pipelines)) if tuple(pipelines) != line.pipelines else line


def _expand(command: SimpleCommand, folder: str) -> SimpleCommand:
    if command.argv[0] == CD or not any(has_pattern(word) for word in command.argv):
        return command
    words = [each for word in command.argv for each in (expand_pattern(word, folder) if has_pattern(word) else (word,))]
    return replace(command, argv=tuple(words))


MAX_STDOUT_BYTES = 8 << 20
MAX_STDERR_BYTES = 1 << 20
"""Maximum output of a command to collect. Beyond it, the middle is dropped."""
QUIET = {
    "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1", **build_git_settings(),
}  # fmt: skip
"""There is no terminal for pagers and passwords. `git status` must not write the index, and `pip list` must not look
for a newer pip."""


class Surroundings(Struct, frozen=True, kw_only=True):
    """The environment of commands: file scope, variables, and sandboxes."""

    scope: Scope
    environ: Mapping[str, str]
    confinement: Confinement
    reading: Confinement | None = None
    """The read-only sandbox for commands that run without approval; None if there is none here."""


class Bash:
    info = ToolInfo(
        id="builtin:Bash",
        name="Bash",
        description=load_tool_text("Bash").description,
        category="bash",
        input_schema=build_parameters(
            "Bash",
            {
                "command": "string",
                "cwd": "string",
                "timeout_ms": {"type": "integer", "minimum": 1},
                "max_output_chars": {"type": "integer", "minimum": 1},
            },
            required=("command",),
        ),
        output_schema={"type": "string"},
        risk="high",
        effect="opaque",
        spools=True,
    )

    def __init__(self, surroundings: Surroundings, *, shell: Shell, options: ShellOptions) -> None:
        self._scope = surroundings.scope
        self._environ = surroundings.environ
        self._confinement = surroundings.confinement
        self._reading = surroundings.reading
        self._shell = shell
        self._options = options

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        text = str(arguments["command"])
        check_text(text)
        confinement = self._reading if context.read_only else self._confinement
        if confinement is None:
            # The run was started on another machine, or the sandbox was removed since: fail closed, and ask.
            return ToolResult(ok=False, wants_write="There is no read-only sandbox here")
        folder = await run_sync(self._get_folder, str(arguments.get("cwd") or "."), context.paths)
        line = await run_sync(self._read, text, folder)
        # Resolve links again although the policy did: a link may have changed since the call was judged.
        followed = await run_sync(self._follow, line, folder, text)
        self._check_line(line, followed, folder, text=text)
        if followed:
            context.paths.check(followed.render(), key="command")
        environment = self._build_environment(folder) | build_trace_variables(context.trace_parent)
        environment = use_plain_messages(environment) if context.read_only else environment
        understood = line if isinstance(line, ShellLine) else None
        command = Command(
            arguments=self._build_arguments(understood, text, path=environment["PATH"]),
            folder=folder,
            environment=environment,
            spool=context.spool,
            confinement=confinement,
        )
        limits = self._build_limits(arguments, context)
        # As late as possible, because an approved script could be replaced until the program starts.
        await self._check_files(arguments, context)
        most = _at_most(arguments.get("max_output_chars"), self._options.max_output_chars)

        def keep_partial(stdout: Output, stderr: Output) -> None:
            labels = count_label_characters(stdout, stderr)
            context.keep_partial(cut_middle(context.clean(render_streams(stdout, stderr)), most + labels))

        try:
            outcome = await run_process(command, limits, keep_partial=keep_partial, show=context.show_output)
        except ToolFailed as error:
            # With this error the shim reports that it could not give up a right.
            if context.read_only and os.strerror(errno.EPERM) in error.message:
                return ToolResult(ok=False, wants_write="The read-only sandbox cannot be started here")
            raise
        if context.read_only and (attempt := _get_write_attempt(outcome, text)):
            return ToolResult(ok=False, wants_write=context.clean(attempt))
        return await run_sync(self._report, outcome, arguments, context)

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """Return the reason why `shell.mode` or `shell.cwd` rejects the command, or an empty string."""
        refusal = refuse_call(arguments, self._options, workspace=str(self._scope.workspace))
        if refusal or self._options.cwd == "any":
            return refusal
        return self._scope.refuse(str(arguments.get("cwd") or "."))

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview | None:  # noqa: ARG002
        """Preview how the line was parsed, its executor, and a hash of the files that it executes."""
        text = str(arguments.get("command", ""))
        line = parse_line(text)
        base = await run_sync(self._digest_files, line, arguments)
        if not isinstance(line, ShellLine):
            return Preview(f"Run as text by {self._shell.name}: the line contains {line.reason}", base=base)
        how = "without a shell" if is_direct(line) else f"as text by {self._shell.name}"
        shown = [f"Run {how}:", *(f"  {command.render()}" for command in line.commands)]
        return Preview("\n".join(shown), base=base)

    def _digest_files(self, line: ShellLine | NotUnderstood, arguments: Mapping[str, JsonValue]) -> str:
        workspace = self._scope.workspace
        folder = Path(os.path.normpath(workspace / str(arguments.get("cwd") or ".")))
        path = build_environment(self._environ)["PATH"]
        text = str(arguments.get("command", ""))
        return digest_executed_files(line, text, folder=folder, workspace=workspace, path=path)

    async def _check_files(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> None:
        """Raise `ToolFailed` if a file that the line executes is not the one that was approved."""
        if context.base_hash is None:
            return
        line = parse_line(str(arguments["command"]))
        if await run_sync(self._digest_files, line, arguments) != context.base_hash:
            raise ToolFailed(
                "A file that the command runs changed since it was approved", hint="Ask again", code="conflict"
            )

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        """Return the real folder, and the line with links resolved if it has any."""
        folder = await run_sync(self._get_folder, str(arguments.get("cwd") or "."), NoGuard())
        text = str(arguments["command"])
        line = await run_sync(self._read, text, folder)
        followed = await run_sync(self._follow, line, folder, text)
        return {"cwd": _show(str(folder), self._scope.workspace)} | ({"command": followed.render()} if followed else {})

    def _read(self, text: str, folder: Path) -> ShellLine | NotUnderstood:
        """Parse the line and expand its file patterns now, so that what is judged is what runs."""
        line = parse_line(text)
        return expand_line(line, str(folder)) if isinstance(line, ShellLine) and is_direct(line) else line

    def _check_line(
        self, line: ShellLine | NotUnderstood, followed: ShellLine | None, folder: Path, *, text: str
    ) -> None:
        place = CommandFolders(str(self._scope.workspace), (str(folder),))
        for read in (line, followed) if followed else (line,):
            if refusal := find_refusal(read, self._options, place, text=text):
                raise ToolFailed(refusal, code="permission_denied")

    def _follow(self, line: ShellLine | NotUnderstood, folder: Path, text: str) -> ShellLine | None:
        """Return the line with links resolved; None if it has none, or if its words are not known."""
        if not isinstance(line, ShellLine):
            return None
        place = CommandFolders(str(self._scope.workspace), (str(folder),))
        followed = follow_links(line, place, self._get_programs())
        return followed if followed != parse_line(text) else None

    def _get_programs(self) -> ProgramSearch:
        writable = {os.path.realpath(path) for path in (self._scope.workspace, *self._confinement.writable)}
        return ProgramSearch(build_environment(self._environ)["PATH"], (str(self._scope.workspace), *writable))

    def _get_folder(self, cwd: str, guard: PathGuard) -> Path:
        """Return the absolute folder. Raises `ToolFailed` for one outside the workspace if `shell.cwd` forbids that."""
        if self._options.cwd == "any":
            folder = (self._scope.workspace / cwd).resolve()
            if not folder.is_dir():
                raise ToolFailed(f"There is no folder {cwd!r}", code="not_found")
            guard.check(_show(str(folder), self._scope.workspace), key="cwd")
            return folder
        root = self._scope.locate(cwd).root
        with self._scope.open_folder(cwd, guard=guard, key="cwd") as opened:
            return root / opened.path

    def _build_arguments(self, line: ShellLine | None, text: str, *, path: str) -> list[str]:
        if line is not None and is_direct(line):
            return self._shell.run_line(line)
        return self._shell.run_text(text, path=path)

    def _build_environment(self, folder: Path) -> dict[str, str]:
        # A shell updates PWD itself; a program that is started directly would see the agent's.
        return build_environment(self._environ) | QUIET | {"PWD": str(folder)}

    def _build_limits(self, arguments: dict[str, JsonValue], context: ToolContext) -> ProcessLimits:
        seconds = _at_most(arguments.get("timeout_ms"), self._options.timeout_ms) / 1000
        return ProcessLimits(
            timeout_seconds=context.limit_seconds(seconds),
            max_stdout_bytes=MAX_STDOUT_BYTES,
            max_stderr_bytes=MAX_STDERR_BYTES,
        )

    def _report(self, outcome: Outcome, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        whole = context.clean(render_output(outcome))
        # The limit applies to the command's own output; labels and the exit code are added to it.
        labels = len(_describe_end(outcome)) + count_label_characters(outcome.stdout, outcome.stderr)
        most = _at_most(arguments.get("max_output_chars"), self._options.max_output_chars) + labels
        artifacts: list[JsonValue] = []
        text, kept = whole, ""
        if len(whole) > most:
            if context.artifacts is not None:
                kept = _keep(whole, context.artifacts / f"{context.step_id or 'command'}-output.txt", artifacts)
            text = cut_middle(whole, most, where=_show(kept, self._scope.workspace))
        is_cut = text is not whole or outcome.stdout.is_truncated or outcome.stderr.is_truncated
        ok = outcome.exit_code == 0
        code = "" if ok else "timeout" if outcome.timed_out else "exit_code"
        context.emit(_build_event(outcome, context, code=code, truncated=is_cut))
        meta: dict[str, JsonValue] = {"exit_code": outcome.exit_code, "artifacts": artifacts}
        return ToolResult(
            ok=ok,
            output=text if ok else None,
            error="" if ok else text,
            meta={**meta, "code": code} if code else meta,
            is_limited=True,
        )


def _get_write_attempt(outcome: Outcome, text: str) -> str:
    """Return the line in which a failed command reports a denied write or connection; empty if there is none.

    The sandbox is the boundary and does not depend on this. The line only decides whether the user is asked to run the
    command again with write access, or the model reads the failure.
    """
    if outcome.exit_code == 0 or outcome.timed_out:
        return ""
    # Files that the command prints may have such lines, so standard output counts only if errors are redirected to it.
    streams = (outcome.stderr, outcome.stdout) if "2>&1" in text or "&>" in text else (outcome.stderr,)
    return next(filter(None, (find_write_attempt(stream.last(_ERROR_BYTES)) for stream in streams)), "")


def refuse_call(arguments: Mapping[str, JsonValue], options: ShellOptions, *, workspace: str) -> str:
    """Return why the settings reject a call of the shell, as a sentence; empty if they don't. Pure."""
    folder = posixpath.normpath(posixpath.join(workspace, str(arguments.get("cwd") or ".")))
    text = str(arguments.get("command", ""))
    return find_refusal(parse_line(text), options, CommandFolders(workspace, (folder,)), text=text)


def check_text(text: str) -> None:
    """Raise `ToolFailed` for an empty command, and for characters that can't be passed to a program."""
    if not text.strip():
        raise ToolFailed("The command is empty", code="invalid_input")
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ToolFailed("The command contains a character that no program can be given", code="invalid_input")


def render_output(outcome: Outcome) -> str:
    """Render the result for the model: standard output, standard error, and the ending of a failed command."""
    shown, end = render_streams(outcome.stdout, outcome.stderr), _describe_end(outcome)
    return f"{shown}{end}" if shown else end.removeprefix("\n")


def _describe_end(outcome: Outcome) -> str:
    """Return a line break and a line about the end of a failed command; empty if it succeeded."""
    if outcome.timed_out:
        return f"\n[killed after {outcome.duration_seconds:.1f} seconds, with everything it started]"
    if outcome.signal:
        return f"\n[ended by signal {outcome.signal}]"
    return f"\n[exit code {outcome.exit_code}]" if outcome.exit_code else ""


def _keep(text: str, file: Path, artifacts: list[JsonValue]) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode("utf-8", "replace")
    file.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    artifacts.append({"path": str(file), "sha256": digest, "bytes": len(data), "media_type": "text/plain"})
    return str(file)


def _show(file: str, workspace: Path) -> str:
    path = Path(file)
    return path.relative_to(workspace).as_posix() if file and path.is_relative_to(workspace) else file


def _at_most(asked: JsonValue, most: int) -> int:
    return min(asked, most) if isinstance(asked, int) and not isinstance(asked, bool) else most


def _build_event(outcome: Outcome, context: ToolContext, *, code: str, truncated: bool) -> SkillStepExecuted:
    return SkillStepExecuted(
        step_id=context.step_id,
        action="run_command",
        status="succeeded" if not code else "timeout" if code == "timeout" else "failed",
        tool="Bash",
        exit_code=outcome.exit_code,
        stdout_summary=outcome.stdout.last(_SUMMARY_BYTES),
        stderr_summary=outcome.stderr.last(_SUMMARY_BYTES),
        stdout_bytes=outcome.stdout.total_bytes,
        stderr_bytes=outcome.stderr.total_bytes,
        duration_ms=round(outcome.duration_seconds * 1000, 3),
        error_type=code,
        truncated=truncated,
    )


_MAX_ERROR_LINES = 200
_MAX_ATTEMPT_CHARACTERS = 200
_REFUSED = re.compile(
    r"Read-only file system|Permission denied|Network is (?:down|unreachable)|[Cc]ould not resolve|name resolution"
    r"|[Nn]ame or service not known"
)
"""Messages in the C locale for the errors of the sandbox."""
_PATH_ENDS = re.compile(r"[\s'\"`:‘’]+")


def find_write_attempt(errors: str) -> str:
    """Return the line that reports a denied write or connection; empty if there is none.

    `errors` is the output to standard error of a command that failed.
    """
    lines = errors.splitlines()[-_MAX_ERROR_LINES:]
    found = (line.strip() for line in lines if _REFUSED.search(line) and not _names_secret(line))
    return next(found, "")[:_MAX_ATTEMPT_CHARACTERS]


def _names_secret(line: str) -> bool:
    """Return True if the line is about a secrets file, which every sandbox hides: write access would not help."""
    parts = (part for word in _PATH_ENDS.split(line) for part in word.split("/") if part)
    return any(protected_name(part) == SECRETS_REASON for part in parts)


def use_plain_messages(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with error messages in the C locale, and the other categories unchanged."""
    # LC_ALL would override LC_MESSAGES, but the encoding that it sets must stay.
    plain = dict(environment)
    if everything := plain.pop("LC_ALL", ""):
        plain = {name: value for name, value in plain.items() if not name.startswith("LC_")} | {"LANG": everything}
    return plain | {"LC_MESSAGES": "C"}
