"""The process of a hook: its own process tree, with a time limit, bounded output and a minimal environment.

The workspace files that the hook names must still have their pinned content.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import anyio.to_thread
from msgspec import Struct, field
from pydantic import JsonValue

from metier.errors import ToolFailed
from metier.tools.hooks.definition import FOLDER_VARIABLES, HookCommand, expand_folder, get_changed_file
from metier.tools.hooks.protocol import BLOCKED, HookAnswer, HookStatus, read_answer
from metier.tools.process.child_environment import build_environment
from metier.tools.process.run import Command, Outcome, ProcessLimits, run_process
from metier.tools.process.sandbox.confinement import Confinement

MAX_OUTPUT_BYTES = 1_048_576
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")
_STDERR_CHARACTERS = 500


class HookRun(Struct, frozen=True, kw_only=True):
    """The outcome of one hook, and its answer."""

    status: HookStatus
    answer: HookAnswer = field(default_factory=HookAnswer)
    exit_code: int | None = None
    problem: str = ""
    duration_seconds: float = 0.0


class HookRunner(Struct, frozen=True, kw_only=True):
    workspace: Path
    environ: Mapping[str, str]
    """The agent's environment; a hook gets only its ordinary variables."""
    confinement: Confinement = field(default_factory=Confinement)

    async def run(self, hook: HookCommand, data: Mapping[str, JsonValue]) -> HookRun:
        """Run a hook. Its failure is an outcome and never raises."""
        if changed := await anyio.to_thread.run_sync(get_changed_file, hook, self.workspace):
            return HookRun(status="changed", problem=f"{changed!r} changed since the run began")
        command = Command(
            arguments=self._build_arguments(hook),
            folder=self.workspace,
            environment=self._build_environment(),
            confinement=self.confinement,
        )
        limits = ProcessLimits(timeout_seconds=hook.timeout_seconds, max_stdout_bytes=MAX_OUTPUT_BYTES)
        try:
            outcome = await run_process(command, limits, stdin=json.dumps(dict(data)).encode())
        except ToolFailed as failure:
            return HookRun(status="not_started", problem=failure.message)
        return judge_outcome(hook, outcome)

    def _build_arguments(self, hook: HookCommand) -> list[str]:
        if hook.args is not None:
            return [self._put_folder(word) for word in (hook.command, *hook.args)]
        shell = next((shell for shell in _SHELLS if Path(shell).exists()), "sh")
        return [shell, "-c", hook.command]

    def _put_folder(self, word: str) -> str:
        return expand_folder(word, self.workspace)

    def _build_environment(self) -> dict[str, str]:
        return build_environment(self.environ) | dict.fromkeys(FOLDER_VARIABLES, str(self.workspace))


def judge_outcome(hook: HookCommand, outcome: Outcome) -> HookRun:
    """Read the answer of a hook. One that timed out, failed or printed too much has none."""
    duration = outcome.duration_seconds
    if outcome.timed_out:
        problem = f"It did not end within {hook.timeout_seconds:g} s"
        return HookRun(status="timeout", problem=problem, duration_seconds=duration)
    if outcome.stdout.is_truncated or outcome.stderr.is_truncated:
        total = outcome.stdout.total_bytes + outcome.stderr.total_bytes
        problem = f"It printed {total:,} bytes, more than is read"
        return HookRun(
            status="too_much_output", exit_code=outcome.exit_code, problem=problem, duration_seconds=duration
        )
    if outcome.exit_code not in (0, BLOCKED):
        how = f"signal {outcome.signal}" if outcome.exit_code is None else f"exit code {outcome.exit_code}"
        stderr_end = outcome.stderr.last(_STDERR_CHARACTERS).strip()
        problem = f"It ended with {how}" + (f": {stderr_end}" if stderr_end else "")
        return HookRun(status="failed", exit_code=outcome.exit_code, problem=problem, duration_seconds=duration)
    answer = read_answer(
        hook.event, exit_code=outcome.exit_code, stdout=outcome.stdout.text, stderr=outcome.stderr.text
    )
    status: HookStatus = "failed" if answer.problem else "ok"
    return HookRun(
        status=status, answer=answer, exit_code=outcome.exit_code, problem=answer.problem, duration_seconds=duration
    )
