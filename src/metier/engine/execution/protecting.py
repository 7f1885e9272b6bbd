"""Compare protected paths before and after steps that run programs. A difference is rolled back and ends the run."""

from collections.abc import Sequence

import anyio.to_thread
from msgspec import Struct

from metier.approval.judge import name_call
from metier.engine.entries.run import RunFailed
from metier.engine.journal import RunLog
from metier.engine.services import Services
from metier.engine.steps import Step
from metier.tools.process.sandbox.protected_paths import Held

PROTECTED_CHANGED = "protected_changed"
RECORDS_MOVED = "records_moved"
WITHOUT_PROGRAMS = frozenset({"Read", "Write", "Edit", "Glob", "Grep", "WebFetch", "WebSearch", "script_list"})
"""Built-in tools that run no code of others; what they write is judged by itself."""


class Looked(Struct, frozen=True):
    """What was found before programs ran."""

    held: Held
    """Nothing where no program is confined."""
    folder: tuple[int, int] | None
    """The run's own folder: its device and inode. None where there is none."""


async def look_at_protected(steps: Sequence[Step], services: Services) -> Looked | None:
    """None where no program is about to run."""
    if all(name_call(step.action)[0] in WITHOUT_PROGRAMS for step in steps):
        return None
    held: Held = await anyio.to_thread.run_sync(services.protected.look) if services.protected is not None else {}
    return Looked(held, _identify(services))


async def end_if_changed(before: Looked | None, log: RunLog, services: Services) -> bool:
    """Ends the run where a protected path is not what it was, or its own folder is gone.

    The instructions of this and later runs lie in the first, what it writes down in the second.
    """
    if before is None:
        return False
    failure: RunFailed | None = None
    if services.protected is not None and (
        changes := await anyio.to_thread.run_sync(services.protected.roll_back, before.held)
    ):
        failure = RunFailed(reason=PROTECTED_CHANGED, message=changes)
    elif before.folder is not None and before.folder != _identify(services):
        failure = RunFailed(reason=RECORDS_MOVED, message=describe_moved(services))
    if failure is None:
        return False
    await log.record(failure, durable=True)
    return True


def _identify(services: Services) -> tuple[int, int] | None:
    try:
        found = services.run_folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def describe_moved(services: Services) -> str:
    return (
        f"The folder of this run '{services.run_folder}' was moved or removed while a program of the run was at work. "
        "What came after is not on record there; put the folder back before you resume or replay the run"
    )
