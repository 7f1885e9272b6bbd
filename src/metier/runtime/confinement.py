"""The sandbox of a host: a `Confinement` from its settings, its profile and the levels that work on this machine."""

from pathlib import Path

import anyio.to_thread
from msgspec.structs import replace

from metier.errors import ConfigError, SandboxUnavailable
from metier.programs.import_paths import list_ignored_imports
from metier.runtime.host import Host
from metier.tools.files.snapshots import find_repository
from metier.tools.options import SandboxOptions
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.confinement import Confinement
from metier.tools.process.sandbox.levels import SIGNAL_AGENT, LevelTrial, choose_level
from metier.tools.process.sandbox.protected_paths import ProtectedState

_MEGABYTE = 1_048_576


async def open_confinement(host: Host) -> Confinement:
    """Open the sandbox. Raises `SandboxUnavailable` if a required one is missing, `ConfigError` for an import path."""
    if not wants_sandbox(host):
        if requires_sandbox(host):
            raise SandboxUnavailable(
                "Profile 'strict' needs a sandbox, and sandbox.use is 'off'", hint="Set sandbox.use to 'auto'"
            )
        return limit_only(host.settings.sandbox)
    # In a thread, because the first trial of a level starts programs.
    trial = await anyio.to_thread.run_sync(get_host_level, host)
    if not trial.works:
        if requires_sandbox(host):
            raise SandboxUnavailable(
                f"{_name_demand(host)} needs a sandbox: {trial.summary}", hint=capitalize(trial.hint)
            )
        return limit_only(host.settings.sandbox)
    _check_import_paths()
    return build_confinement(host, trial)


def _check_import_paths() -> None:
    """Raise `ConfigError` if Python would import modules from a folder that programs of a run can write to."""
    if ignored := list_ignored_imports():
        raise ConfigError(
            f"PYTHONPATH names {ignored[0]!r}, where programs of a run write: "
            "Python would run a `sitecustomize.py` from there with the next `agent` command, outside of the sandbox",
            hint="Run `unset PYTHONPATH`, then start the run again",
        )


def wants_sandbox(host: Host) -> bool:
    use = host.settings.sandbox.use
    return use == "required" or (use == "auto" and host.settings.runtime.profile != "permissive")


def requires_sandbox(host: Host) -> bool:
    return host.settings.runtime.profile == "strict" or host.settings.sandbox.use == "required"


def get_host_level(host: Host) -> LevelTrial:
    """Return the best sandbox level that works here.

    Level `kernel` prevents ordinary work, such as creating files at the top of the workspace. It is used only if the
    settings require a sandbox.
    """
    trial = _get_best_level(host)
    if trial.level == "kernel" and not requires_sandbox(host):
        summary = "level 'kernel' would keep programs from making files at the top of the workspace, so it is not used"
        hint = "install the system package bubblewrap, or set sandbox.use to 'required' to have it all the same"
        return LevelTrial(level="none", works=False, summary=summary, hint=hint)
    return trial


def _get_best_level(host: Host) -> LevelTrial:
    """Return the best level; none if the workspace contains the home folder, which a sandbox hides."""
    workspace = host.root.resolve()
    if host.home.resolve().is_relative_to(workspace):
        summary = f"the workspace {str(workspace)!r} holds the home folder, which a sandbox hides"
        return LevelTrial(level="none", works=False, summary=summary, hint="change to the folder of a project")
    return choose_level(_get_bubblewrap(host))


async def open_reading(host: Host, confinement: Confinement) -> Confinement | None:
    """Build the read-only sandbox for commands that run without approval; None if no level works.

    `confinement` is the sandbox of the run's other programs. Both protect the same paths.
    """
    trial = await anyio.to_thread.run_sync(find_reading_level, host)
    if trial is None:
        return None
    shared = replace(build_confinement(host, trial), protected=confinement.protected)
    return replace(shared, writable=(*shared.writable, *confinement.writable)).for_reading()


def find_reading_level(host: Host) -> LevelTrial | None:
    """Find the level of the read-only sandbox; None if the profile never asks, or no level works.

    Commands that only read can use level `kernel` in every profile, because they create no files.
    """
    if host.settings.runtime.profile == "permissive" or host.settings.sandbox.use == "off":
        return None
    trial = _get_best_level(host)
    # The tables may wrongly consider a command read-only. Then the sandbox must keep it from killing other programs.
    reaches_others = f"programs can {SIGNAL_AGENT}" in trial.gaps
    return trial if trial.works and not reaches_others else None


def build_confinement(host: Host, trial: LevelTrial) -> Confinement:
    workspace = host.root.resolve()
    options = host.settings.sandbox
    limits = limit_only(options)
    skills = host.workspace / host.settings.skills.dir
    return Confinement(
        level=trial.level,
        bubblewrap=_get_bubblewrap(host),
        workspace=workspace,
        records=host.runs.resolve(),
        # A worktree has its own copy of the skills. Both are protected.
        own=(skills.resolve(), *((workspace / host.settings.skills.dir,) if host.worktree else ())),
        readable=(*(host.locate(text) for text in options.readable), *_list_repository(host)),
        writable=host.opened,
        network=options.network == "on" or (options.network == "auto" and host.settings.runtime.profile != "strict"),
        resources=limits.resources,
        processes=limits.processes,
    )


def build_protected_state(confinement: Confinement) -> ProtectedState | None:
    """Build the check of protected files; None without a sandbox or without a run."""
    if confinement.level == "none" or confinement.quarantine is None:
        return None
    return ProtectedState(
        confinement.workspace,
        protected=confinement.protected,
        own=confinement.own,
        records=confinement.records,
        writable=confinement.writable,
        quarantine=confinement.quarantine,
    )


def limit_only(options: SandboxOptions) -> Confinement:
    """Return a confinement without a sandbox that still limits resources."""
    wanted = {
        "cpu": options.cpu_seconds,
        # Not the address space (`as`): many runtimes reserve far more of it than they use.
        "data": options.memory_mb and options.memory_mb * _MEGABYTE,
        "fsize": options.file_size_mb and options.file_size_mb * _MEGABYTE,
        # A core dump would leave the memory of the program, possibly with secrets, in a file.
        "core": 0,
    }
    resources = {name: value for name, value in wanted.items() if value is not None}
    # The supervisor counts processes: the kernel's limit is per user and does not apply to root.
    return Confinement(resources=resources, processes=options.processes or 0)


def _get_bubblewrap(host: Host) -> str:
    return get_bubblewrap(host.environ, host.root, host.opened)


def list_writable(host: Host) -> tuple[Path, ...]:
    """List the folders that programs in the sandbox may write to, the workspace first."""
    return (host.root.resolve(), *host.opened)


def _list_repository(host: Host) -> tuple[Path, ...]:
    """List the folders of the repository that git must read in a worktree."""
    found = find_repository(host.root) if host.worktree is not None else None
    return (found[1],) if found is not None else ()


def _name_demand(host: Host) -> str:
    strict = host.settings.runtime.profile == "strict"
    return "Profile 'strict'" if strict else "The setting sandbox.use 'required'"


def capitalize(hint: str) -> str:
    """Capitalize the first letter only, unlike `str.capitalize`."""
    return hint[:1].upper() + hint[1:]
