"""Execute one script of a skill: check trust, read metadata, prepare Python, run the process."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import anyio.to_thread
from msgspec import Struct, field

from metier.definitions.skills.scripts import Script
from metier.errors import SkillError, SkillNotTrusted
from metier.skills.package import SkillPackage
from metier.skills.trust.code_copies import take_trusted_copy
from metier.skills.trust.judgement import check_trusted
from metier.tools.base import ShowOutput
from metier.tools.process.bounded_output import Output
from metier.tools.process.child_environment import build_environment, build_trace_variables
from metier.tools.process.run import Command, Outcome, ProcessLimits, run_process
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.active_scripts import ScriptFailed
from metier.tools.scripts.environments import PreparedPython, ScriptEnvironments, parse_script_metadata, read_script

IDEMPOTENCY_VARIABLE = "AGENT_IDEMPOTENCY_KEY"


class ScriptCall(Struct, frozen=True, kw_only=True):
    package: SkillPackage
    script: Script
    args: tuple[str, ...] = ()
    idempotency_key: str = ""
    trace_parent: str = ""
    spool: Path | None = None
    keep_partial: Callable[[Output, Output], None] | None = None
    """Receives the output so far of an interrupted script."""
    show_output: ShowOutput | None = None


class ScriptRunner(Struct, frozen=True, kw_only=True):
    environments: ScriptEnvironments
    environ: Mapping[str, str]
    """The agent's environment; a script gets its ordinary variables and those that its skill requests by name."""
    confinement: Confinement = field(default_factory=Confinement)

    async def run(self, call: ScriptCall, limits: ProcessLimits) -> Outcome:
        """Run a script. Raises `ToolFailed` with a script tool's code if it may not or cannot start."""
        package = await copy_trusted_code(call.package)
        script = package.folder / call.script.path.relative_to(call.package.folder)
        metadata = parse_script_metadata(read_script(script).decode("utf-8", "replace"))
        python = await self.environments.prepare(script, metadata, owner=str(call.package.folder.resolve()))
        command = Command(
            arguments=[str(python.interpreter), str(script.absolute()), *call.args],
            folder=script.parent,
            environment=self._build_environment(call, python),
            spool=call.spool,
            confinement=self.confinement.opened(python.folder, package.folder.absolute()),
        )
        return await run_process(command, limits, keep_partial=call.keep_partial, show=call.show_output)

    def _build_environment(self, call: ScriptCall, python: PreparedPython) -> dict[str, str]:
        environment = build_environment(self.environ, call.package.definition.permissions_env)
        environment |= {
            "PATH": os.pathsep.join([str(python.programs), environment["PATH"]]),
            "VIRTUAL_ENV": str(python.folder),
            "PYTHONUTF8": "1",
            # Bytecode files would change the hash that the user trusted.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if call.idempotency_key:
            environment[IDEMPOTENCY_VARIABLE] = call.idempotency_key
        return environment | build_trace_variables(call.trace_parent)


async def copy_trusted_code(package: SkillPackage) -> SkillPackage:
    """Return a private copy of the trusted package, from which its code runs. Raises `ScriptFailed`."""
    try:
        return await anyio.to_thread.run_sync(lambda: take_trusted_copy(package, home=Path.home()))
    except SkillNotTrusted as error:
        raise ScriptFailed("permission_denied", f"{error.message}. {error.hint}") from error
    except SkillError as error:
        raise ScriptFailed("execution_failed", error.sentence) from error


async def check_may_run(package: SkillPackage) -> None:
    """Check the trust of the package's current files. Raises `ScriptFailed` with `permission_denied`."""
    try:
        await anyio.to_thread.run_sync(check_trusted, package)
    except SkillNotTrusted as error:
        raise ScriptFailed("permission_denied", f"{error.message}. {error.hint}") from error


def default_environments(environ: Mapping[str, str], *, workspace: Path) -> ScriptEnvironments:
    """Return the environments in the user's cache folder, which may be deleted at any time."""
    cache = environ.get("XDG_CACHE_HOME") or environ.get("LOCALAPPDATA") or str(Path.home() / ".cache")
    return ScriptEnvironments(
        folder=Path(cache) / "metier" / "script-environments", environ=environ, writable=(workspace,)
    )
