"""`Bash`: run a command line in the workspace. What may run is judged before; here it is bounded and told."""

import hashlib
import posixpath
from collections.abc import Mapping
from pathlib import Path

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.errors import ToolFailed
from metier.events import SkillStepExecuted
from metier.prompts.tool_texts import describe_parameters, load_tool_text
from metier.telemetry.excerpt import cut_middle
from metier.tools.base import NoGuard, PathGuard, Preview, ToolContext, ToolInfo, ToolResult
from metier.tools.files.scope import Scope
from metier.tools.process.environment import build_environment, name_trace
from metier.tools.process.run import Command, Outcome, ProcessLimits, run_process
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.shell.allowlist import find_refusal, is_direct
from metier.tools.shell.expansion import expand_line
from metier.tools.shell.git_settings import build_git_settings
from metier.tools.shell.harmless import CommandFolders
from metier.tools.shell.line import NotUnderstood, ShellLine, parse_line
from metier.tools.shell.links import follow_links
from metier.tools.shell.options import ShellOptions
from metier.tools.shell.shells import Shell

MAX_STDOUT_BYTES = 8 << 20
MAX_STDERR_BYTES = 1 << 20
"""So much of a command's output is kept at all; beyond it the middle is gone."""
QUIET = {
    "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", **build_git_settings(),
}  # fmt: skip
"""No terminal is there to turn pages or to type passwords, and `git status` has no reason to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where commands run, with which of the agent's own variables to choose from, and how they are enclosed."""

    scope: Scope
    environ: Mapping[str, str]
    confinement: Confinement


class Bash:
    info = ToolInfo(
        id="builtin:Bash",
        name="Bash",
        description=load_tool_text("Bash").description,
        category="bash",
        input_schema=describe_parameters(
            "Bash",
            {
                "type": "object",
                "properties": {
                    "command": {"type": "string"},
                    "cwd": {"type": "string"},
                    "timeout_ms": {"type": "integer", "minimum": 1},
                    "max_output_chars": {"type": "integer", "minimum": 1},
                },
                "required": ["command"],
                "additionalProperties": False,
            },
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
        self._shell = shell
        self._options = options

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        text = str(arguments["command"])
        check_text(text)
        folder = await run_sync(self._find_folder, str(arguments.get("cwd") or "."), context.paths)
        line = await run_sync(self._read, text, folder)
        followed = await run_sync(self._follow, line, folder, text)
        self._check_line(line, followed, folder, text=text)
        if followed:
            context.paths.check(followed.render(), key="command")
        environment = self._build_environment(folder) | name_trace(context.trace_parent)
        understood = line if isinstance(line, ShellLine) else None
        command = Command(
            arguments=self._build_arguments(understood, text, path=environment["PATH"]),
            folder=folder,
            environment=environment,
            spool=context.spool,
            confinement=self._confinement,
        )
        limits = self._build_limits(arguments, context)
        outcome = await run_process(command, limits)
        return await run_sync(self._report, outcome, arguments, context)

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """What `shell.mode` does not let through, and a folder that `shell.cwd` does not."""
        refusal = refuse_call(arguments, self._options, workspace=str(self._scope.workspace))
        if refusal or self._options.cwd == "any":
            return refusal
        return self._scope.refuse(str(arguments.get("cwd") or "."))

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview | None:  # noqa: ARG002
        """How the line was read, and who will run it."""
        line = parse_line(str(arguments.get("command", "")))
        if not isinstance(line, ShellLine):
            return Preview(f"Run as text by {self._shell.name}: the line contains {line.reason}")
        how = "without a shell" if is_direct(line) else f"as text by {self._shell.name}"
        return Preview("\n".join([f"Run {how}:", *(f"  {command.render()}" for command in line.commands)]))

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        """The folder, and the line with its words followed where one of them is a link."""
        folder = await run_sync(self._find_folder, str(arguments.get("cwd") or "."), NoGuard())
        text = str(arguments["command"])
        line = await run_sync(self._read, text, folder)
        followed = await run_sync(self._follow, line, folder, text)
        return {"cwd": _show(str(folder), self._scope.workspace)} | ({"command": followed.render()} if followed else {})

    def _read(self, text: str, folder: Path) -> ShellLine | NotUnderstood:
        """The line with the files that its patterns stand for now: what is judged then is what runs."""
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
        """Nothing where the line means what its text says, or where it is not known what the words are."""
        if not isinstance(line, ShellLine):
            return None
        followed = follow_links(line, CommandFolders(str(self._scope.workspace), (str(folder),)))
        return followed if followed != parse_line(text) else None

    def _find_folder(self, cwd: str, guard: PathGuard) -> Path:
        """Absolute. Raises `ToolFailed` for one outside of the workspace, unless any is open."""
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
        return build_environment(self._environ) | QUIET | {"PWD": str(folder)}

    def _build_limits(self, arguments: dict[str, JsonValue], context: ToolContext) -> ProcessLimits:
        seconds = _at_most(arguments.get("timeout_ms"), self._options.timeout_ms) / 1000
        left = context.timeout_seconds
        return ProcessLimits(
            timeout_seconds=seconds if left is None else min(seconds, left),
            max_stdout_bytes=MAX_STDOUT_BYTES,
            max_stderr_bytes=MAX_STDERR_BYTES,
        )

    def _report(self, outcome: Outcome, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        whole = context.clean(render_output(outcome))
        most = _at_most(arguments.get("max_output_chars"), self._options.max_output_chars)
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
            ok=ok, output=text if ok else None, error="" if ok else text, meta={**meta, "code": code} if code else meta
        )


def refuse_call(arguments: Mapping[str, JsonValue], options: ShellOptions, *, workspace: str) -> str:
    """Why the settings do not let a call of the shell run, as a sentence; empty when they do. Pure."""
    folder = posixpath.normpath(posixpath.join(workspace, str(arguments.get("cwd") or ".")))
    text = str(arguments.get("command", ""))
    return find_refusal(parse_line(text), options, CommandFolders(workspace, (folder,)), text=text)


def check_text(text: str) -> None:
    """Raises `ToolFailed` for what no program can be given."""
    if not text.strip():
        raise ToolFailed("The command is empty", code="invalid_input")
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ToolFailed("The command contains a character that no program can be given", code="invalid_input")


def render_output(outcome: Outcome) -> str:
    """For the model: what it printed, what it complained of, how it ended if that was not well."""
    parts = [outcome.stdout.text]
    if outcome.stderr.total_bytes:
        parts += ["[stderr]", outcome.stderr.text]
    if outcome.timed_out:
        parts.append(f"[killed after {outcome.duration_seconds:.1f} seconds, with everything it started]")
    elif outcome.signal:
        parts.append(f"[ended by signal {outcome.signal}]")
    elif outcome.exit_code:
        parts.append(f"[exit code {outcome.exit_code}]")
    return "\n".join(part.removesuffix("\n") for part in parts if part)


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
        stdout_bytes=outcome.stdout.total_bytes,
        stderr_bytes=outcome.stderr.total_bytes,
        duration_ms=round(outcome.duration_seconds * 1000, 3),
        error_type=code,
        truncated=truncated,
    )
