"""The host: settings, folders, environment, time and user. Passed in once, never looked up again."""

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from metier.definitions.files.user_folders import get_cache_folder
from metier.ids import Clock, Ids, SystemClock, SystemIds
from metier.providers.base import Seams
from metier.settings.sections import Settings
from metier.skills.trust.workspace_trust import WorkspaceTrust
from metier.tools.buffers import Buffers, NoBuffers

if TYPE_CHECKING:
    # What drives runs; a command that only reads them does without.
    from metier.engine.decide import Policy
    from metier.engine.entries.run import RunWorktree
    from metier.plugins.registry import Registry
    from metier.providers.base import Provider
    from metier.providers.connection import SharedClients
    from metier.runtime.server_pool import ServerPool
    from metier.telemetry.otel.span import SpanExporter
    from metier.telemetry.sinks import Sink
    from metier.tools.base import Tool


_SWEEP_SECONDS = 60


def _ignore(_sentence: str) -> None:
    return None


@dataclass
class SweepTimes:
    """Times of the checks for leftovers of killed programs: at the first run, then at most once a minute.

    A scratch folder younger than that is left alone, so there is no use in looking more often.
    """

    last: float = float("-inf")

    def take(self) -> bool:
        """Return True at most once per interval."""
        now = time.monotonic()
        is_due = sys.platform != "win32" and now - self.last >= _SWEEP_SECONDS
        self.last = now if is_due else self.last
        return is_due


@lru_cache(maxsize=16)
def _join(folder: Path, name: str) -> Path:
    """Join and cache a path: parsing paths is expensive at the first use only."""
    return folder / name


class Host(Struct, frozen=True, kw_only=True):
    settings: Settings
    workspace: Path
    home: Path
    environ: Mapping[str, str]
    trust: WorkspaceTrust
    """Whether the workspace's files are trusted."""
    flags: tuple[str, ...] = ()
    """Names of settings that the command line set."""
    worktree: "RunWorktree | None" = None
    """Folder of a run's tools if it is not the workspace; definitions and runs stay those of the workspace."""
    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    seams: Seams = field(default_factory=Seams)
    buffers: Buffers = field(default_factory=NoBuffers)
    """Open files in the user's editor, if there is one."""
    provider: "Provider | None" = None
    """Provider that replaces the one of the settings."""
    tools: "tuple[Tool, ...]" = ()
    """Tools in addition to those of skills."""
    plugins: "tuple[Registry, ...]" = ()
    """Running plugins, see `runtime.workspace.plugins`; their tools and subscribers are in `tools` and `sinks`."""
    sinks: "tuple[Sink, ...]" = ()
    """Sinks for the events of every run, in addition to those of a single run."""
    report: Callable[[str], None] = _ignore
    """Called when a plugin is left out."""
    clients: "SharedClients | None" = None
    """HTTP clients of notifications; `open_runtime` creates and closes them."""
    traces: "SpanExporter | None" = None
    """Exporter for the spans of every run, if enabled; `open_runtime` creates and closes it."""
    sweeps: SweepTimes = field(default_factory=SweepTimes)
    """Times at which runs remove leftovers of killed processes from the folder for temporary files."""
    servers: "ServerPool | None" = None
    """Pool that keeps external servers across runs; without it they end with the run that started them."""
    narrow: "Callable[[Policy], Policy] | None" = None
    """Wraps the policy of the settings in a stricter one."""

    @property
    def root(self) -> Path:
        """Return the folder that tools work in."""
        return Path(self.worktree.path) if self.worktree is not None else self.workspace

    @property
    def runs(self) -> Path:
        return _join(self.workspace, self.settings.logging.jsonl_dir)

    def locate(self, text: str) -> Path:
        """Return the folder that a setting names: from the workspace, or from the home folder after `~`."""
        rest = text.removeprefix("~/") if text.startswith("~/") else "" if text == "~" else None
        return (self.workspace / text if rest is None else self.home / rest).resolve()

    @property
    def opened(self) -> tuple[Path, ...]:
        """List folders outside of the workspace that confined programs can write to."""
        return tuple(self.locate(text) for text in self.settings.sandbox.writable)

    @property
    def cache(self) -> Path:
        """Return the user's cache folder."""
        return get_cache_folder(self.environ, self.home)

    @property
    def owner(self) -> str:
        return f"{socket.gethostname()}:{os.getpid()}"
