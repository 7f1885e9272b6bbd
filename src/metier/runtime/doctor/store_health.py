"""What `agent doctor` says of the run store: is it whole, has it room, do its runs have folders, whose clock counts."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from metier.runtime.doctor.finding import Finding
from metier.runtime.doctor.run_folders_health import examine_bare, examine_lost, list_newest_folders
from metier.settings.model import Settings
from metier.store.opening import DATABASE, examine_server
from metier.store.sqlite.health import examine_database, examine_room, find_known_runs, has_steady_clock

_MEGABYTE = 1024 * 1024
MOST_APART_SECONDS = 2.0
"""By how much the clock of this machine may differ from the one of the server before that is a problem."""


def examine_store(settings: Settings, environ: Mapping[str, str], cwd: Path) -> Iterator[Finding]:
    """Nothing is said of a database that does not exist yet."""
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
    if known is None:  # a damaged database is a finding already
        return
    yield from examine_lost(runs, folders, known)
    if (runs / DATABASE).exists():
        yield from examine_bare(runs, runs / DATABASE)


def _examine_server(settings: Settings, environ: Mapping[str, str], runs: Path) -> Iterator[Finding]:
    """Nothing of a server that does not answer: that is a finding of the servers."""
    yield Finding(area="store", name="leases", state="ok", detail="timed by the clock of the server")
    folders = list_newest_folders(runs)
    server = examine_server(settings.store, environ, folders)
    if server is not None:
        yield examine_difference(server.seconds_ahead, doubt=server.doubt_seconds)
        yield from examine_lost(runs, folders, server.known)


def examine_difference(seconds: float, *, doubt: float) -> Finding:
    how = "ahead of" if seconds >= 0 else "behind"
    detail = f"the server is {abs(seconds):.2f} s {how} this machine (± {doubt:.2f} s)"
    if abs(seconds) <= MOST_APART_SECONDS + doubt:
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
