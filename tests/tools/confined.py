"""Fixtures of the sandbox tests: a workspace with secrets, and programs confined to it."""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from metier.tools.process.child_environment import base_interpreter
from metier.tools.process.run import Command, Outcome, ProcessLimits, run_process
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.confinement import Confinement, Level
from metier.tools.process.sandbox.levels import try_level

LEVELS: tuple[Level, ...] = ("full", "kernel")
SECRET = "planted-" + "secret-value"

BOMB = "import os, time\nfor _ in range(10): os.fork()\ntime.sleep(100)\n"
"""Doubles ten times; a sandbox that does not notice would keep a thousand processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    base: Path
    confinement: Confinement

    @property
    def workspace(self) -> Path:
        return self.base / "workspace"

    def with_(self, **changes: object) -> "Scene":
        return dataclasses.replace(self, confinement=replace(self.confinement, **changes))

    async def run(self, code: str, *, limits: ProcessLimits | None = None, **more: object) -> Outcome:
        """Run Python code in the workspace; `T` in it are the targets."""
        targets = json.dumps({**self.targets(), **more})
        head = f"import ctypes, errno, json, os, socket, sys\nT = json.loads({targets!r})\n"
        return await run_process(self.command(head + code), limits or ProcessLimits(timeout_seconds=60))

    def command(self, code: str) -> Command:
        return Command(
            arguments=[base_interpreter(), "-I", "-S", "-c", code],
            folder=self.workspace,
            environment={"PATH": os.environ["PATH"]},
            confinement=self.confinement,
        )

    def targets(self) -> dict[str, object]:
        return {
            "outside": str(self.base / "outside.txt"),
            "key": str(self.base / "home/.ssh/id_rsa"),
            "workspace": str(self.workspace),
            "agent": os.getpid(),
        }


def plant(base: Path) -> None:
    """Create a workspace, a home and an outside file, each with a secret."""
    for name in ("home/.ssh/id_rsa", "workspace/.env", "workspace/config/secrets.yaml"):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(SECRET, encoding="utf-8")
    for name in (
        "outside.txt",
        "workspace/.git/config",
        "workspace/.git/hooks/pre-push",
        "workspace/.agent/policy.yaml",
        "workspace/agent.yaml",
        "workspace/runs/journal",
        "workspace/src/main.py",
        "workspace/notes.txt",
    ):
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text("as it was", encoding="utf-8")


def make_scene(base: Path, level: Level) -> Scene:
    """Create the scene; skip if this machine does not support the level."""
    base = base.resolve()
    plant(base)
    workspace = base / "workspace"
    program = get_bubblewrap(os.environ, workspace)
    if sys.platform != "linux":
        pytest.skip(f"sandbox level {level!r} is for Linux")
    trial = try_level(level, program)
    if not trial.works:
        pytest.skip(f"sandbox level {level!r} cannot be shown here: {trial.summary}")
    confinement = Confinement(
        level=level, bubblewrap=program, workspace=workspace, records=workspace / "runs", quarantine=base / "quarantine"
    )
    return Scene(base=base, confinement=confinement)


def read_tree(folder: Path) -> dict[str, str]:
    """Return every file with its text, to check that nothing changed."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8", errors="replace") for path in files}
