"""Prepare the Python that a script runs on: an environment of its own, with the packages that its metadata names.

`uv` brings packages, apart from the script and before it: from wheels only, without configuration files, with index
settings from `UV_…` variables. The script then runs on the prepared interpreter and never sees those settings.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio.to_thread

from metier.dataclass import dataclass
from metier.definitions.releases import is_allowed
from metier.errors import ToolFailed
from metier.extras import hint_extra
from metier.skills.trusted_programs import build_trusted_path
from metier.tools.process.environment import build_index_environment
from metier.tools.process.interpreter import base_interpreter
from metier.tools.process.run import Command, Outcome, ProcessLimits, run_process
from metier.tools.scripts.metadata import ScriptMetadata

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_LAYOUT = 1
"""Part of every environment's key: raise it when they are built differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPython:
    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    @property
    def interpreter(self) -> Path:
        return self.programs / ("python.exe" if os.name == "nt" else "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEnvironments:
    """Environments by content: built once, in a folder aside, then moved into place; never changed afterwards."""

    folder: Path
    environ: Mapping[str, str]
    """The agent's environment; only what `uv` needs of it is used."""
    timeout_seconds: float = 180
    writable: tuple[Path, ...] = ()
    """Where confined programs write; `uv` finds no program there."""

    async def prepare(self, script: Path, metadata: ScriptMetadata, *, owner: str) -> PreparedPython:
        """Raises `ToolFailed`: `timeout`, or `execution_failed` with the end of what `uv` said.

        `owner` keeps the environments of different skills apart, so that one cannot change the packages of another.
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
            if not requirements and os.name == "posix":
                _write_empty(python)
                _move_into_place(python.folder, target)
                return
            base = ["--python", base_interpreter(), "--no-python-downloads"]
            await self._uv("venv", "--no-project", "--relocatable", *base, str(python.folder))
            if requirements:
                listed = aside / "requirements.txt"
                listed.write_text(requirements, encoding="utf-8")
                hashes = ["--require-hashes"] if locked else []
                options = ["--no-build", "--no-sources", *hashes, "--python", str(python.interpreter)]
                await self._uv("pip", "install", "--compile-bytecode", *options, "-r", str(listed))
            _move_into_place(python.folder, target)
        finally:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(aside, ignore_errors=True))

    async def _export_lock(self, script: Path, metadata: ScriptMetadata) -> str:
        """The locked packages with their hashes. Addresses in the lock are not used: the index is the agent's."""
        options = ["--frozen", "--offline", "--no-header", "--no-annotate", "--no-python-downloads"]
        exported = await self._uv("export", *options, "--python", base_interpreter(), "--script", str(script))
        text = exported.stdout.text
        locked = {line.split("==")[0].strip() for line in text.splitlines() if "==" in line}
        if " @ " in text or exported.stdout.is_truncated:
            raise ToolFailed(f"The lock {script.name}.lock names its own addresses", code="permission_denied")
        missing = [item.name for item in metadata.dependencies if _canonical(item.name) not in locked]
        if missing:
            raise ToolFailed(
                f"The lock {script.name}.lock does not cover {missing[0]!r}",
                hint=f"Run `uv lock --script {script.name}` beside the script",
            )
        return text

    async def _uv(self, *arguments: str) -> Outcome:
        program = find_uv()
        if not program:
            raise ToolFailed(
                "The script names packages, and uv, which prepares them, is not installed", hint=hint_extra("scripts")
            )
        environment = {"UV_SYSTEM_CERTS": "1"} | build_index_environment(self.environ)
        # It may start a program, such as one that knows passwords: not one of the workspace.
        environment["PATH"] = build_trusted_path(self.environ, writable=self.writable)
        command = Command(
            arguments=[*program, "--no-config", "--quiet", "--color", "never", *arguments],
            # A folder of ours: nothing of the skill is found by looking around.
            folder=self.folder,
            environment=environment,
            # It fetches packages and builds nothing: no code of a skill runs here.
            confinement=None,
        )
        outcome = await run_process(command, ProcessLimits(timeout_seconds=self.timeout_seconds))
        if outcome.timed_out:
            raise ToolFailed(
                f"Preparing the script's packages timed out after {self.timeout_seconds:g}s", code="timeout"
            )
        if outcome.exit_code != 0:
            raise ToolFailed(f"The script's packages could not be prepared\nstderr: {outcome.stderr.last(500).strip()}")
        return outcome


def find_uv() -> list[str]:
    """The `uv` that was installed with Metier, never one that happens to be on the path; empty where there is none."""
    if importlib.util.find_spec("uv") is None:
        return []
    try:
        return [importlib.import_module("uv").find_uv_bin()]
    except FileNotFoundError:
        return [sys.executable, "-I", "-m", "uv"]


def check_python(metadata: ScriptMetadata) -> None:
    version = platform.python_version()
    if not is_allowed(version.removesuffix("+"), metadata.requires_python):
        raise ToolFailed(f"The script needs Python {metadata.requires_python!r}, and this is {version}")


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


def _render(dependencies: "tuple[Requirement, ...]") -> str:
    # Written from parsed requirements, so that a line can never be an option of the installer.
    return "".join(f"{item}\n" for item in dependencies)


def _canonical(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _write_empty(python: PreparedPython) -> None:
    """An environment without packages, as `uv` and the module `venv` make it, without starting a process for it."""
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
        # Another process was first, and has built the same.
        if not PreparedPython(folder=target).interpreter.exists():
            raise
