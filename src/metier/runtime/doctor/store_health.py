"""What `agent doctor` says of the run store: whether it is whole, has room, and whose clock times its leases."""

from collections.abc import Iterator
from pathlib import Path

from metier.runtime.doctor.finding import Finding
from metier.settings.model import Settings
from metier.store.opening import DATABASE
from metier.store.sqlite.health import examine_database, examine_room, has_steady_clock

_MEGABYTE = 1024 * 1024


def examine_store(settings: Settings, cwd: Path) -> Iterator[Finding]:
    """Nothing is said of a database that does not exist yet, nor of one that a server keeps."""
    runs = cwd / settings.logging.jsonl_dir
    if settings.store.backend == "sqlite" and (runs / DATABASE).exists():
        yield _examine_integrity(runs / DATABASE)
    if settings.store.backend == "sqlite" and runs.is_dir():
        yield _examine_space(runs / DATABASE)
    yield _examine_clock(settings)


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


def _examine_clock(settings: Settings) -> Finding:
    if settings.store.backend == "postgres":
        return Finding(area="store", name="leases", state="ok", detail="timed by the clock of the server")
    if has_steady_clock():
        return Finding(area="store", name="leases", state="ok", detail="timed by a clock that cannot be set")
    hint = "Keep the clock in step with a time service: a jump ends leases early, or lets them last"
    return Finding(area="store", name="leases", state="off", detail="timed by wall time", hint=hint)
