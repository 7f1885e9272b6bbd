"""The host: settings, folders, environment and clock of a command, passed on explicitly instead of looked up."""

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from metier.definitions.files.user_folders import get_cache_folder
from metier.ids import Clock, Ids, SystemClock, SystemIds
from metier.providers.base import Seams
from metier.settings.sections import Settings
from metier.skills.workspace_trust import WorkspaceTrust
from metier.tools.buffers import Buffers, NoBuffers

if TYPE_CHECKING:
    # Needed only to drive runs. Commands that only read them start faster without these imports.
    from metier.engine.decide import Policy
    from metier.engine.entries.run import RunWorktree
    from metier.plugins.registry import Registry
    from metier.providers.base import Provider
    from metier.providers.connection import SharedClients
    from metier.runtime.server_pool import ServerPool
    from metier.telemetry.sinks import Sink
    from metier.telemetry.tracing import SpanExporter
    from metier.tools.base import Tool


_SWEEP_SECONDS = 60


def _ignore(_sentence: str) -> None:
    return None


class SweepTimes(Struct):
    """Limits the cleanup of scratch folders that killed programs left to once a minute.

    The cleanup skips younger folders, so running it more often would find nothing.
    """

    last: float = float("-inf")

    def take(self) -> bool:
        """Return True at most once per interval."""
        now = time.monotonic()
        is_due = sys.platform != "win32" and now - self.last >= _SWEEP_SECONDS
        if is_due:
            self.last = now
        return is_due


def shorten_path(path: Path, workspace: Path) -> str:
    """Return a path relative to the workspace, which is the same on every machine; one outside of it as it is."""
    return path.relative_to(workspace).as_posix() if path.is_relative_to(workspace) else str(path)


class Host(Struct, frozen=True, kw_only=True):
    settings: Settings
    workspace: Path
    home: Path
    environ: Mapping[str, str]
    trust: WorkspaceTrust
    """Trust in the workspace's files."""
    flags: tuple[str, ...] = ()
    """Names of settings given on the command line."""
    worktree: "RunWorktree | None" = None
    """Folder that a run's tools work in instead of the workspace. Definitions and runs stay in the workspace."""
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    seams: Seams = field(default_factory=Seams)
    buffers: Buffers = field(default_factory=NoBuffers)
    """Unsaved files in the user's editor, if it shares them."""
    provider: "Provider | None" = None
    """Provider that replaces the one of the settings."""
    tools: "tuple[Tool, ...]" = ()
    """Tools in addition to those of skills."""
    plugins: "tuple[Registry, ...]" = ()
    """Running plugins, see `runtime.workspace.plugins`; their tools and subscribers are in `tools` and `sinks`."""
    sinks: "tuple[Sink, ...]" = ()
    """Sinks for the events of every run."""
    report: Callable[[str], None] = _ignore
    """Receives warnings, for example about a plugin that was left out."""
    clients: "SharedClients | None" = None
    """HTTP clients of notifications; `open_runtime` creates and closes them."""
    traces: "SpanExporter | None" = None
    """Exporter for the spans of every run, if enabled; `open_runtime` creates and closes it."""
    sweeps: SweepTimes = field(default_factory=SweepTimes)
    """Time of the last cleanup of scratch folders."""
    servers: "ServerPool | None" = None
    """Pool that keeps external servers across runs; without one, they stop with the run that started them."""
    narrow: "Callable[[Policy], Policy] | None" = None
    """Wraps the policy of the settings in a stricter one."""

    @property
    def root(self) -> Path:
        """Return the folder that tools work in."""
        return Path(self.worktree.path) if self.worktree is not None else self.workspace

    @property
    def runs(self) -> Path:
        return self.workspace / self.settings.logging.jsonl_dir

    def with_runtime(self, **changes: object) -> "Host":
        """Return the host with other values in the section `runtime` of its settings."""
        changed = self.settings.runtime.model_copy(update=changes)
        return replace(self, settings=self.settings.model_copy(update={"runtime": changed}))

    def locate(self, text: str) -> Path:
        """Return the folder that a setting names, relative to the workspace, or to the home folder after `~`."""
        rest = text.removeprefix("~/") if text.startswith("~/") else "" if text == "~" else None
        return (self.workspace / text if rest is None else self.home / rest).resolve()

    @property
    def opened(self) -> tuple[Path, ...]:
        """List folders outside of the workspace that sandboxed programs may write to."""
        return tuple(self.locate(text) for text in self.settings.sandbox.writable)

    @property
    def cache(self) -> Path:
        """Return the user's cache folder."""
        return get_cache_folder(self.environ, self.home)

    @property
    def owner(self) -> str:
        # For users. In containers two drivers may have the same name, so a lease also has a token.
        return f"{socket.gethostname()}:{os.getpid()}"
