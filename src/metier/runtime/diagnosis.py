"""Findings of `agent doctor` about programs, sandbox, providers, servers, the store and run folders.

Everything is tried, not only looked up. Findings contain a hint, and no secrets.
"""

import heapq
import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from metier.definitions.files.user_folders import get_cache_folder
from metier.errors import ConfigError, UsageError
from metier.extras import hint_extra
from metier.programs.launcher import PROBE, run_program, use_own_program
from metier.programs.search import build_trusted_environment, get_trusted_program
from metier.providers.feature_support import list_unsupported
from metier.providers.options import BASE_URL_VARIABLES
from metier.routing.embeddings import find_embeddings_fault
from metier.runtime.cleaning import SHARED_FILE, load_servers
from metier.runtime.confinement import build_confinement, capitalize, get_host_level, requires_sandbox, wants_sandbox
from metier.runtime.host import Host
from metier.runtime.records.run_folders import get_folder, iterate_folders, read_deletions
from metier.settings.sections import Settings
from metier.skills.workspace_trust import get_trust
from metier.store.backend import DATABASE, examine_server
from metier.store.local_secret import VARIABLE, read_given_secrets
from metier.store.sqlite.health import (
    examine_database,
    examine_room,
    find_known_runs,
    has_steady_clock,
    list_newest_runs,
)
from metier.telemetry.jsonl import FILE_NAME
from metier.tools.mcp.servers import AcceptedServers, choose_servers
from metier.tools.options import SandboxOptions
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.confinement import Level
from metier.tools.process.sandbox.levels import try_level
from metier.tools.scripts.runner import find_uv
from metier.version import __version__

type State = Literal["ok", "off", "problem"]
"""Works; unavailable but not needed with these settings; needed but broken."""

MAX_COMPARED = 20_000
"""Number of newest folders and runs to compare."""
_MAX_NAMED = 3
_MEGABYTE = 1024 * 1024
MAX_APART_SECONDS = 2.0
"""Maximum difference between the clocks of this machine and the server."""
PROBE_SECONDS = 5
_LEVELS: Mapping[Level, str] = {"full": "bubblewrap", "kernel": "landlock"}


class Finding(Struct, frozen=True, kw_only=True):
    area: str
    name: str
    state: State
    detail: str
    hint: str = ""


def list_newest_folders(runs: Path) -> list[str]:
    """List the newest run folders with an event log. A start that was killed leaves an empty folder."""
    # Names begin with the time, so the largest are the newest.
    names = heapq.nlargest(MAX_COMPARED, (folder.name for folder in iterate_folders(runs)))
    return [name for name in names if _has_event_log(runs, name)]


# Any store may have lost runs. A database server also knows runs whose folders are on other machines.
def examine_lost(runs: Path, folders: Sequence[str], known: Iterable[str]) -> Iterator[Finding]:
    """Report folders without a run."""
    # Folders that an interrupted deletion left. The next one removes them.
    deleted = {run_id for noted in read_deletions(runs).values() for run_id in noted}
    lost = sorted(set(folders) - set(known) - deleted)
    if not lost:
        yield Finding(area="store", name="orphans", state="ok", detail=f"{len(folders)} run folders, each with its run")
        return
    hint = (
        "Restore the run store from a backup; if you deleted these runs, delete their folders too"
        f" (agent runs show {lost[-1]} says how far each got)"
    )
    detail = f"{_name_runs(lost)}: a folder, but no run in the store"
    yield Finding(area="store", name="orphans", state="problem", detail=detail, hint=hint)


def examine_bare(runs: Path, database: Path) -> Iterator[Finding]:
    """Report runs of a local database without a folder."""
    known = list_newest_runs(database, limit=MAX_COMPARED)
    bare = sorted(run_id for run_id in known if not get_folder(runs, run_id, shard="off").exists())
    if bare:
        hint = f"Rebuild its event log with `agent runs rebuild {bare[-1]}`; you are asked about steps that it started"
        detail = f"{_name_runs(bare)}: a run in the store, but no folder"
        yield Finding(area="store", name="bare runs", state="problem", detail=detail, hint=hint)


def _has_event_log(runs: Path, name: str) -> bool:
    return (get_folder(runs, name, shard="off") / FILE_NAME).exists()


def _name_runs(run_ids: Sequence[str]) -> str:
    newest = ", ".join(reversed(run_ids[-_MAX_NAMED:]))
    return f"{len(run_ids)} ({newest}{', …' if len(run_ids) > _MAX_NAMED else ''})"


def examine_store(settings: Settings, environ: Mapping[str, str], cwd: Path) -> Iterator[Finding]:
    """Examine the store. A database that doesn't exist yet is fine."""
    runs = cwd / settings.logging.jsonl_dir
    if settings.store.backend == "postgres":
        yield from _examine_server(settings, environ, runs)
        return
    if settings.store.backend == "sqlite" and (runs / DATABASE).exists():
        yield _examine_integrity(runs / DATABASE)
    if settings.store.backend == "sqlite" and runs.is_dir():
        yield _examine_space(runs / DATABASE)
        yield from _examine_folders(runs)
    yield _examine_clock()


def _examine_folders(runs: Path) -> Iterator[Finding]:
    folders = list_newest_folders(runs)
    known = find_known_runs(runs / DATABASE, folders) if (runs / DATABASE).exists() else frozenset[str]()
    if known is None:  # the database is damaged, which is reported already
        return
    yield from examine_lost(runs, folders, known)
    if (runs / DATABASE).exists():
        yield from examine_bare(runs, runs / DATABASE)


def _examine_server(settings: Settings, environ: Mapping[str, str], runs: Path) -> Iterator[Finding]:
    """Examine the database server. `examine_servers` reports one that doesn't answer."""
    yield Finding(area="store", name="leases", state="ok", detail="timed by the clock of the server")
    yield _examine_resume_key(environ)
    folders = list_newest_folders(runs)
    server = examine_server(settings.store, environ, folders)
    if server is not None:
        yield examine_difference(server.seconds_ahead, doubt=server.error_seconds)
        yield from examine_lost(runs, folders, server.known)


def _examine_resume_key(environ: Mapping[str, str]) -> Finding:
    """Examine the resume key, which must be the same on all machines that share a database."""
    try:
        is_given = bool(read_given_secrets(environ))
    except UsageError as error:
        return Finding(area="store", name="resume key", state="problem", detail=error.message, hint=error.hint)
    if is_given:
        return Finding(area="store", name="resume key", state="ok", detail=f"{VARIABLE} set")
    detail = f"{VARIABLE} not set: resume tokens work on this machine only; set it on all that share the database"
    return Finding(area="store", name="resume key", state="off", detail=detail)


def examine_difference(seconds: float, *, doubt: float) -> Finding:
    how = "ahead of" if seconds >= 0 else "behind"
    detail = f"the server is {abs(seconds):.2f} s {how} this machine (± {doubt:.2f} s)"
    # The time that the answer took limits how exactly the clocks can be compared.
    if abs(seconds) <= MAX_APART_SECONDS + doubt:
        return Finding(area="store", name="clock", state="ok", detail=detail)
    hint = (
        "Keep both clocks in step with a time service: the server times leases, this machine times approvals,"
        " schedules and `--older-than`"
    )
    return Finding(area="store", name="clock", state="problem", detail=detail, hint=hint)


def _examine_integrity(database: Path) -> Finding:
    health = examine_database(database)
    if health.problem:
        return Finding(area="store", name="integrity", state="problem", detail=health.problem, hint=health.hint)
    extent = f"the first {health.entries} entries are" if health.is_partial else f"all {health.entries} entries are"
    return Finding(area="store", name="integrity", state="ok", detail=f"{database}: {extent} as they were written")


def _examine_space(database: Path) -> Finding:
    room = examine_room(database)
    detail = f"{room.free_bytes // _MEGABYTE} MB free, {'with' if room.has_reserve else 'without'} a reserve"
    if room.is_enough:
        return Finding(area="store", name="space", state="ok", detail=detail)
    hint = "Free some space, for example with `agent runs gc --keep 100`; runs pause when there is none"
    return Finding(area="store", name="space", state="problem", detail=detail, hint=hint)


def _examine_clock() -> Finding:
    if has_steady_clock():
        return Finding(area="store", name="leases", state="ok", detail="timed by a clock that cannot be set")
    hint = "Keep the clock in step with a time service: a jump ends leases early, or lets them last"
    return Finding(area="store", name="leases", state="off", detail="timed by wall time", hint=hint)


def examine(settings: Settings, environ: Mapping[str, str], *, cwd: Path, home: Path) -> Iterator[Finding]:
    """Examine everything that a first run needs, cheap checks first."""
    yield Finding(area="runtime", name="metier", state="ok", detail=__version__)
    python = f"{platform.python_version()} ({sys.executable})"
    yield Finding(area="runtime", name="python", state="ok", detail=python)
    yield from examine_providers(settings, environ)
    yield from examine_features(get_cache_folder(environ, home))
    yield from examine_programs(environ, cwd)
    yield examine_shell(settings)
    yield from examine_sandbox(settings, environ, cwd)
    yield from examine_servers(settings, environ)
    yield from examine_mcp(settings, cwd, home=home)
    yield examine_embeddings(settings, environ, cwd)
    yield from examine_folders(settings, cwd)
    yield from examine_store(settings, environ, cwd)


def examine_providers(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Check that each provider has a key and a reachable address."""
    yield _provider(settings, "offline", "no model: routing, scripts and templates only", missing="")
    for name, options in (
        ("anthropic", settings.model.providers.anthropic),
        ("gemini", settings.model.providers.gemini),
        ("openai", settings.model.providers.openai),
    ):
        variable = options.api_key_env
        key_is_set = bool(environ.get(variable, "").strip())
        told = f"{variable} {'set' if key_is_set else 'not set'}"
        missing = ""
        address = options.base_url or environ.get(BASE_URL_VARIABLES[name], "")
        # Servers other than the vendor's that speak OpenAI's protocol often need no key.
        if not key_is_set and not (name == "openai" and address):
            missing = f'Set the key: export {variable}="…"'
        if address and not _answers(address):
            missing = missing or f"Nothing answers at {_without_password(address)}"
        yield _provider(settings, name, told, missing=missing)


def examine_features(cache: Path) -> Iterator[Finding]:
    """Report features that a model rejected earlier, and how to try them again."""
    unsupported = list_unsupported(cache)
    if not unsupported:
        return
    until = (
        f"{each.model or 'a model'} without {each.feature} until {datetime.fromtimestamp(each.expires, UTC):%Y-%m-%d}"
        for each in unsupported
    )
    detail = f"{'; '.join(until)}; to try again: agent doctor --clear-unsupported"
    yield Finding(area="providers", name="features", state="off", detail=detail)


def _provider(settings: Settings, name: str, told: str, *, missing: str) -> Finding:
    is_chosen = settings.model.provider == name
    state: State = "ok" if not missing else "problem" if is_chosen else "off"
    chosen = " (chosen by the settings)" if is_chosen else ""
    return Finding(area="providers", name=name, state=state, detail=told + chosen, hint=missing)


def examine_programs(environ: Mapping[str, str], cwd: Path) -> Iterator[Finding]:
    uses = {
        "git": "installs skills from repositories",
        "rg": "searches faster; Metier has its own search without it",
        "bwrap": "isolates commands and scripts",
    }
    yield _examine_uv()
    for program, use in uses.items():
        if found := get_trusted_program(program, environ, writable=(cwd,)):
            yield Finding(area="programs", name=program, state="ok", detail=_first_line([found, "--version"]))
        else:
            package = {"rg": "ripgrep", "bwrap": "bubblewrap"}.get(program, program)
            hint = f"It {use}; the system package is {package!r}"
            yield Finding(area="programs", name=program, state="off", detail="not found", hint=hint)


def _examine_uv() -> Finding:
    program = find_uv()
    if program is not None:
        return Finding(area="programs", name="uv", state="ok", detail=_first_line([program, "--version"]))
    hint = f"It prepares the packages of scripts. {hint_extra('scripts')}"
    return Finding(area="programs", name="uv", state="off", detail="not installed", hint=hint)


def examine_shell(settings: Settings) -> Finding:
    """Check whether the shell tool is enabled and a shell is installed."""
    options = settings.shell
    if not options.enabled or options.mode == "off":
        return Finding(area="programs", name="shell", state="off", detail="turned off by the settings")
    program = settings.runtime.shell_windows if sys.platform == "win32" else settings.runtime.shell_linux
    is_there = shutil.which(program) is not None
    hint = "" if is_there else "Lines that need a shell cannot run; name one in runtime.shell_linux or shell_windows"
    detail = f"{program}{'' if is_there else ' not found'}, mode {options.mode}"
    return Finding(area="programs", name="shell", state="ok" if is_there else "problem", detail=detail, hint=hint)


def examine_sandbox(settings: Settings, environ: Mapping[str, str], cwd: Path) -> Iterator[Finding]:
    """Try each sandbox level with a program that tries to escape, and report the level that a run would use."""
    trust = get_trust(cwd, home=Path.home(), environ=environ)
    host = Host(settings=settings, workspace=cwd, home=Path.home(), environ=environ, trust=trust)
    program = get_bubblewrap(environ, cwd)
    for level, name in _LEVELS.items():
        trial = try_level(level, program)
        detail = "; ".join((f"level {level!r}, {trial.summary}", *trial.gaps))
        yield Finding(
            area="sandbox", name=name, state="ok" if trial.works else "off", detail=detail, hint=capitalize(trial.hint)
        )
    yield _examine_use(host)
    yield Finding(area="sandbox", name="limits", state="ok", detail=_describe_limits(settings.sandbox))


def _examine_use(host: Host) -> Finding:
    profile = host.settings.runtime.profile
    chosen = f"profile {profile!r}, sandbox.use {host.settings.sandbox.use!r}"
    if not wants_sandbox(host):
        state: State = "problem" if requires_sandbox(host) else "off"
        hint = "Set sandbox.use to 'auto'" if requires_sandbox(host) else ""
        return Finding(area="sandbox", name="use", state=state, detail=f"none ({chosen})", hint=hint)
    trial = get_host_level(host)
    if trial.works:
        network = "on" if build_confinement(host, trial).network else "off"
        detail = f"level {trial.level!r}, network {network} ({chosen})"
        return Finding(area="sandbox", name="use", state="ok", detail=detail)
    state = "problem" if requires_sandbox(host) else "off"
    return Finding(
        area="sandbox", name="use", state=state, detail=f"none ({chosen}): {trial.summary}", hint=capitalize(trial.hint)
    )


def _describe_limits(options: SandboxOptions) -> str:
    limits = {
        "cpu": options.cpu_seconds and f"{options.cpu_seconds} s",
        "memory": options.memory_mb and f"{options.memory_mb} MB",
        "files": options.file_size_mb and f"{options.file_size_mb} MB",
    }
    each = ", ".join(f"{name} {value or 'unlimited'}" for name, value in limits.items())
    return f"in every profile: {options.processes or 'any number of'} processes a program; each: {each}"


def examine_servers(settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    variable = settings.store.database_url_env
    address = environ.get(variable, "").strip()
    wanted = settings.store.backend == "postgres"
    if not address:
        hint = f'Set the address: export {variable}="postgresql://…"' if wanted else ""
        detail = f"{variable} not set; runs live in SQLite" if not wanted else f"{variable} not set"
        yield Finding(area="servers", name="postgres", state="problem" if wanted else "off", detail=detail, hint=hint)
        return
    if wanted and not (_version_of("psycopg") and _version_of("psycopg-pool")):
        hint = hint_extra("postgres")
        yield Finding(area="servers", name="postgres", state="problem", detail="its driver is not installed", hint=hint)
        return
    reachable = _answers(address)
    detail = f"{_without_password(address)} {'answers' if reachable else 'does not answer'}"
    state: State = "ok" if reachable else "problem" if wanted else "off"
    hint = "" if reachable else "Start the server, or correct the address"
    yield Finding(area="servers", name="postgres", state=state, detail=detail, hint=hint)


def examine_mcp(settings: Settings, cwd: Path, *, home: Path) -> Iterator[Finding]:
    """Examine the configured MCP servers without starting one; `agent mcp list` does that."""
    try:
        config = load_servers(cwd, settings.mcp.file)
        servers = choose_servers(config, settings.mcp.servers)
    except ConfigError as error:
        detail = f"{error.message}{''.join(f'; {problem.render()}' for problem in error.problems)}"
        yield Finding(area="mcp", name="servers", state="problem", detail=detail, hint="Correct the file")
        return
    for problem in config.left_out:
        hint = "Correct the file; until then, runs do without what it defines there"
        yield Finding(area="mcp", name=SHARED_FILE, state="problem", detail=problem.render(), hint=hint)
    if servers and not _version_of("mcp"):
        hint = hint_extra("mcp")
        yield Finding(area="mcp", name="package", state="problem", detail="not installed", hint=hint)
    accepted = AcceptedServers(home, cwd)
    for server in servers:
        found = accepted.find(server)
        detail = f"accepted, {len(found.tools)} tools" if found else "not accepted, so it is not started"
        hint = "" if found else f"Look at it: agent mcp accept {server.name}"
        yield Finding(area="mcp", name=server.name, state="ok" if found else "off", detail=detail, hint=hint)


def examine_embeddings(settings: Settings, environ: Mapping[str, str], cwd: Path) -> Finding:
    """Check the embeddings that rank skills. A local model is loaded completely; a server is only connected to."""
    options = settings.embeddings
    if options is None or not options.is_on:
        return _embeddings("off", "none; skills are ranked by words only")
    fault = find_embeddings_fault(options, workspace=cwd, environ=environ)
    if fault is not None:
        return _embeddings("problem", f"{fault.message}, so skills are ranked by words only", fault.hint)
    if options.folder:
        return _embeddings("ok", f"the model in '{cwd / options.folder}' can be used")
    address = _without_password(options.base_url)
    if _answers(options.base_url):
        return _embeddings("ok", f"{address} answers")
    return _embeddings("problem", f"{address} does not answer", "Start the server, or correct the address")


def _embeddings(state: State, detail: str, hint: str = "") -> Finding:
    return Finding(area="routing", name="embeddings", state=state, detail=detail, hint=hint)


def examine_folders(settings: Settings, cwd: Path) -> Iterator[Finding]:
    runs = cwd / settings.logging.jsonl_dir
    # The first run creates the folder, so the nearest existing parent must be writable.
    nearest = next(folder for folder in (runs, *runs.parents) if folder.exists())
    writable = os.access(nearest, os.W_OK) and nearest.is_dir()
    hint = "" if writable else "Change to a folder you may write to, or set logging.jsonl_dir"
    detail = f"{runs} {'can be written' if writable else 'cannot be written'}"
    yield Finding(area="folders", name="runs", state="ok" if writable else "problem", detail=detail, hint=hint)
    skills = cwd / settings.skills.dir
    state: State = "ok" if skills.is_dir() else "off"
    detail = f"{skills} {'is there' if skills.is_dir() else 'does not exist'}"
    yield Finding(area="folders", name="skills", state=state, detail=detail)


def _version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _first_line(command: list[str]) -> str:
    environment = build_trusted_environment(os.environ, writable=(Path.cwd(),), names=("SYSTEMROOT",))
    lines: list[str] = []
    with suppress(OSError, subprocess.TimeoutExpired):
        done = run_program(use_own_program(PROBE, *command, environment=environment), timeout=PROBE_SECONDS)
        lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else "found, but it does not answer"


def _answers(address: str) -> bool:
    """Return True if a server accepts connections there; nothing is sent."""
    parts = urlsplit(address)
    try:
        folder = _socket_folder(address)
        if folder:
            with socket.socket(socket.AF_UNIX) as client:
                client.settimeout(1)
                # PostgreSQL names its socket after its port.
                client.connect(f"{folder}/.s.PGSQL.{dict(parse_qsl(parts.query)).get('port', '5432')}")
            return True
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme, 5432)
        # Short, because `agent doctor` tries several addresses one after another.
        with socket.create_connection((parts.hostname or "localhost", port), timeout=1):
            return True
    except (OSError, ValueError):
        return False


def _socket_folder(address: str) -> str:
    """Return the folder of the server's Unix socket, if the address names one instead of a host."""
    host = dict(parse_qsl(urlsplit(address).query)).get("host", "")
    return host if host.startswith("/") else ""


def _without_password(address: str) -> str:
    parts = urlsplit(address)
    host = parts.hostname or _socket_folder(address)
    return f"{parts.scheme}://{host}{parts.path}" if host else parts.scheme
