"""Run a script of a skill: check trust, prepare a Python environment, start the process.

The environment has the packages of the script's inline metadata (PEP 723).
"""

import hashlib
import importlib
import json
import os
import platform
import re
import shutil
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import anyio.to_thread
from msgspec import Struct, field
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from metier.definitions.skills.scripts import Script
from metier.errors import SkillError, SkillNotTrusted, ToolFailed
from metier.extras import hint_extra
from metier.programs import launcher
from metier.programs.launcher import use_own_program
from metier.programs.search import build_trusted_path
from metier.skills.package import SkillPackage
from metier.skills.skill_trust import check_trusted, take_trusted_copy
from metier.tools.base import ShowOutput
from metier.tools.process.bounded_output import Output
from metier.tools.process.child_environment import (
    base_interpreter,
    build_environment,
    build_index_environment,
    build_trace_variables,
)
from metier.tools.process.run import Command, Outcome, ProcessLimits, build_own_command, run_process
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.scripts.active_scripts import ScriptFailed

_BLOCK = re.compile(r"(?m)^# /// (?P<type>[a-zA-Z0-9-]+)$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""The regular expression of the specification."""


class ScriptMetadata(Struct, frozen=True, kw_only=True):
    dependencies: tuple[Requirement, ...] = ()
    requires_python: SpecifierSet = SpecifierSet()


def read_script(path: Path) -> bytes:
    """Read a script. Raises `ToolFailed` for a symbolic link or an unreadable file."""
    if path.is_symlink():
        raise ToolFailed(f"Script {path.name!r} is a symbolic link", code="permission_denied")
    try:
        # O_NOFOLLOW: a link may replace the file after the check above.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    except OSError as error:
        raise ToolFailed(f"Script {path.name!r} cannot be read: {error.strerror}", code="not_found") from error


def parse_script_metadata(text: str) -> ScriptMetadata:
    """Parse the inline metadata. Raises `ToolFailed`, with `permission_denied` if it names sources of packages."""
    document = _load_block(text)
    tool = document.get("tool")
    if isinstance(tool, dict) and "uv" in tool:
        raise ToolFailed(
            "The script has an inline [tool.uv] table, which could redirect where its packages come from",
            hint="Remove the table; indexes are configured by the UV_… variables of the agent",
            code="permission_denied",
        )
    return ScriptMetadata(
        dependencies=tuple(_parse_requirement(item) for item in _read_list(document, "dependencies")),
        requires_python=_parse_specifiers(str(document.get("requires-python", ""))),
    )


def _load_block(text: str) -> dict[str, object]:
    blocks = [match for match in _BLOCK.finditer(text.replace("\r\n", "\n")) if match.group("type") == "script"]
    if not blocks:
        return {}
    if len(blocks) > 1:
        raise ToolFailed("The script has more than one metadata block")
    lines = blocks[0].group("content").splitlines(keepends=True)
    # As in the reference implementation of the specification: an empty line is a lone `#`.
    content = "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        return cast("dict[str, object]", tomllib.loads(content))  # keys of a TOML table are strings
    except tomllib.TOMLDecodeError as error:
        raise ToolFailed(f"The script's metadata is not valid TOML: {error}") from error


def _read_list(document: dict[str, object], key: str) -> list[str]:
    value = document.get(key, [])
    if not isinstance(value, list):
        raise ToolFailed(f"The script's metadata field {key!r} is not a list of strings")
    items = cast("list[object]", value)  # elements of a TOML array
    if not all(isinstance(item, str) for item in items):
        raise ToolFailed(f"The script's metadata field {key!r} is not a list of strings")
    return [str(item) for item in items]


def _parse_requirement(text: str) -> Requirement:
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise ToolFailed(f"The script's dependency {text!r} is not valid: {error}") from error
    # `name @ URL` would fetch code from anywhere.
    if requirement.url:
        raise ToolFailed(
            f"The script's dependency {text!r} names its own address",
            hint="Name a package and a version; packages come from the agent's index",
            code="permission_denied",
        )
    return requirement


def _parse_specifiers(text: str) -> SpecifierSet:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier as error:
        raise ToolFailed(f"The script's 'requires-python' is not valid: {text!r}") from error


_LAYOUT = 1
"""Part of every environment's key. Increase it if environments are built differently."""


class PreparedPython(Struct, frozen=True, kw_only=True):
    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def interpreter(self) -> Path:
        return self.programs / ("python.exe" if os.name == "nt" else "python")


class ScriptEnvironments(Struct, frozen=True, kw_only=True):
    """Environments by content: built once in a temporary folder, then moved into place and never changed."""

    folder: Path
    environ: Mapping[str, str]
    """The agent's environment; `uv` receives only the variables that it needs."""
    timeout_seconds: float = 180
    writable: tuple[Path, ...] = ()
    """Folders that confined programs can write; `uv` must not find programs there."""

    async def prepare(self, script: Path, metadata: ScriptMetadata, *, owner: str) -> PreparedPython:
        """Return the environment, and build it first if needed.

        `owner` separates the environments of skills, so that none can change the packages of another. Raises
        `ToolFailed`: `timeout`, or `execution_failed` with the end of the output of `uv`.
        """
        check_python(metadata)
        lock = script.with_name(f"{script.name}.lock")
        has_lock = lock.is_file() and not lock.is_symlink()
        key = _build_key(owner, metadata, lock.read_bytes() if has_lock else b"")
        prepared = PreparedPython(folder=self.folder / key)
        if prepared.interpreter.exists():
            return prepared
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            requirements = await self._export_lock(script, metadata) if has_lock else _render(metadata.dependencies)
            await self._build(prepared.folder, requirements, locked=has_lock)
        except OSError as error:
            raise ToolFailed(
                f"Folder {str(self.folder)!r} cannot hold the script's packages: {error.strerror}",
                hint="Make it writable, or set XDG_CACHE_HOME to another folder",
            ) from error
        return prepared

    async def _build(self, target: Path, requirements: str, *, locked: bool) -> None:
        aside = Path(tempfile.mkdtemp(prefix=".new-", dir=self.folder))
        try:
            python = PreparedPython(folder=aside / "env")
            # `uv venv` takes a tenth of a second, and most scripts name no packages.
            if not requirements and os.name == "posix":
                _write_empty(python)
                _move_into_place(python.folder, target)
                return
            base = ["--python", base_interpreter(), "--no-python-downloads"]
            # `--relocatable`, because the environment is moved into place afterwards.
            await self._uv("venv", "--no-project", "--relocatable", *base, str(python.folder))
            if requirements:
                listed = aside / "requirements.txt"
                listed.write_text(requirements, encoding="utf-8")
                hashes = ["--require-hashes"] if locked else []
                options = ["--no-build", "--no-sources", *hashes, "--python", str(python.interpreter)]
                # Compiled now, because scripts run with PYTHONDONTWRITEBYTECODE.
                await self._uv("pip", "install", "--compile-bytecode", *options, "-r", str(listed))
            _move_into_place(python.folder, target)
        finally:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(aside, ignore_errors=True))

    async def _export_lock(self, script: Path, metadata: ScriptMetadata) -> str:
        """Export the locked packages with hashes. URLs in the lock are ignored: only the agent's index is used."""
        options = ["--frozen", "--offline", "--no-header", "--no-annotate", "--no-python-downloads"]
        exported = await self._uv("export", *options, "--python", base_interpreter(), "--script", str(script))
        text = exported.stdout.text
        locked = {line.split("==")[0].strip() for line in text.splitlines() if "==" in line}
        if " @ " in text or exported.stdout.is_truncated:
            raise ToolFailed(f"The lock {script.name}.lock names its own addresses", code="permission_denied")
        missing = [item.name for item in metadata.dependencies if canonicalize_name(item.name) not in locked]
        if missing:
            raise ToolFailed(
                f"The lock {script.name}.lock does not cover {missing[0]!r}",
                hint=f"Run `uv lock --script {script.name}` in the folder of the script",
            )
        return text

    async def _uv(self, *arguments: str) -> Outcome:
        program = find_uv()
        if program is None:
            raise ToolFailed(
                "The script names packages, and uv, which prepares them, is not installed", hint=hint_extra("scripts")
            )
        environment = {"UV_SYSTEM_CERTS": "1"} | build_index_environment(self.environ)
        # `uv` may start programs, such as a keyring: it must not find one in the workspace.
        environment["PATH"] = build_trusted_path(self.environ, writable=self.writable)
        # With `--no-build`, installing runs no code of packages or of the skill.
        uv = use_own_program(launcher.UV, program, environment=environment)
        options = ("--no-config", "--quiet", "--color", "never")
        # In a folder of ours, `uv` does not discover configuration files of the skill.
        command = build_own_command(uv, *options, *arguments, folder=self.folder)
        outcome = await run_process(command, ProcessLimits(timeout_seconds=self.timeout_seconds))
        if outcome.timed_out:
            raise ToolFailed(
                f"Preparing the script's packages timed out after {self.timeout_seconds:g}s", code="timeout"
            )
        if outcome.exit_code != 0:
            raise ToolFailed(f"The script's packages could not be prepared\nstderr: {outcome.stderr.last(500).strip()}")
        return outcome


def find_uv() -> str | None:
    """Return the `uv` in Metier's own environment, never one on PATH; None if it isn't installed."""
    try:
        return importlib.import_module("uv").find_uv_bin()
    except (ImportError, FileNotFoundError):
        # Package managers other than pip install the program without the Python package.
        program = Path(sysconfig.get_path("scripts")) / "uv"
        return str(program) if os.access(program, os.X_OK) else None


def check_python(metadata: ScriptMetadata) -> None:
    version = platform.python_version()
    # A Python built from a working copy has a version such as `3.14.0+`, which `packaging` rejects.
    if not metadata.requires_python.contains(version.removesuffix("+"), prereleases=True):
        raise ToolFailed(f"The script needs Python {str(metadata.requires_python)!r}, and this is {version}")


def _build_key(owner: str, metadata: ScriptMetadata, lock: bytes) -> str:
    parts = [
        _LAYOUT,
        owner,
        base_interpreter(),
        platform.python_version(),
        sorted(str(item) for item in metadata.dependencies),
        hashlib.sha256(lock).hexdigest() if lock else "",
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _render(dependencies: tuple[Requirement, ...]) -> str:
    # Rendered from parsed requirements, so that a line can't be an option of the installer.
    return "".join(f"{item}\n" for item in dependencies)


def _write_empty(python: PreparedPython) -> None:
    """Write an environment without packages like `venv` does, without starting a process."""
    base, version = Path(base_interpreter()), ".".join(platform.python_version_tuple()[:2])
    python.programs.mkdir(parents=True)
    python.interpreter.symlink_to(base)
    for name in ("python3", f"python{version}"):
        (python.programs / name).symlink_to(python.interpreter.name)
    (python.folder / "lib" / f"python{version}" / "site-packages").mkdir(parents=True)
    lines = (
        f"home = {base.parent}",
        "include-system-site-packages = false",
        f"version_info = {platform.python_version()}",
    )
    (python.folder / "pyvenv.cfg").write_text("\n".join((*lines, "")), encoding="utf-8")


def _move_into_place(built: Path, target: Path) -> None:
    try:
        built.rename(target)
    except OSError:
        # Another process may have built the same environment first.
        if not PreparedPython(folder=target).interpreter.exists():
            raise


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
        raise ScriptFailed("permission_denied", error.sentence) from error
    except SkillError as error:
        raise ScriptFailed("execution_failed", error.sentence) from error


async def check_may_run(package: SkillPackage) -> None:
    """Check the trust of the package's current files. Raises `ScriptFailed` with `permission_denied`."""
    try:
        await anyio.to_thread.run_sync(check_trusted, package)
    except SkillNotTrusted as error:
        raise ScriptFailed("permission_denied", error.sentence) from error


def default_environments(environ: Mapping[str, str], *, workspace: Path) -> ScriptEnvironments:
    """Return the environments in the user's cache folder, which may be deleted at any time."""
    cache = environ.get("XDG_CACHE_HOME") or environ.get("LOCALAPPDATA") or str(Path.home() / ".cache")
    return ScriptEnvironments(
        folder=Path(cache) / "metier" / "script-environments", environ=environ, writable=(workspace,)
    )
