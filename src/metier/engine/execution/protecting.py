"""Compare what is protected before and after steps that run programs. A difference ends the run with a report."""

from collections.abc import Sequence

import anyio.to_thread

from metier.approval.judge import name_call
from metier.dataclass import dataclass
from metier.engine import entries as e
from metier.engine.journal import RunLog
from metier.engine.services import Services
from metier.engine.steps import Step
from metier.tools.process.sandbox.protected_state import Held, compare

PROTECTED_CHANGED = "protected_changed"
RECORDS_MOVED = "records_moved"
_MAX_TOLD = 10
WITHOUT_PROGRAMS = frozenset({"Read", "Write", "Edit", "Glob", "Grep", "WebFetch", "WebSearch", "script_list"})
"""Built-in tools that run no code of others; what they write is judged by itself."""


@dataclass(frozen=True, slots=True)
class Looked:
    """What was found before programs ran."""

    held: Held
    """Nothing where no program is confined."""
    folder: tuple[int, int] | None
    """The run's own folder: its device and inode. None where there is none."""


async def look_at_protected(steps: Sequence[Step], services: Services) -> Looked | None:
    """None where no program is about to run."""
    if all(name_call(step.action)[0] in WITHOUT_PROGRAMS for step in steps):
        return None
    return await _look(services)


async def end_if_changed(before: Looked | None, log: RunLog, services: Services) -> bool:
    """Ends the run where a protected path is not what it was, or its own folder is gone.

    The instructions of this and later runs lie in the first, what it writes down in the second.
    """
    if before is None:
        return False
    after = await _look(services)
    failure: e.RunFailed | None = None
    if differences := compare(before.held, after.held):
        failure = e.RunFailed(reason=PROTECTED_CHANGED, message=describe_changes(differences))
    elif before.folder is not None and before.folder != after.folder:
        failure = e.RunFailed(reason=RECORDS_MOVED, message=describe_moved(services))
    if failure is None:
        return False
    await log.record(failure, durable=True)
    return True


async def _look(services: Services) -> Looked:
    held: Held = await anyio.to_thread.run_sync(services.protected.look) if services.protected is not None else {}
    try:
        found = services.run_folder.stat()
    except OSError:
        return Looked(held, None)
    return Looked(held, (found.st_dev, found.st_ino))


def describe_moved(services: Services) -> str:
    return (
        f"The folder of this run '{services.run_folder}' was moved or removed while a program of the run was at work. "
        "What came after is not on record there; put the folder back before you resume or replay the run"
    )


def describe_changes(differences: Sequence[str]) -> str:
    told = ", ".join(differences[:_MAX_TOLD])
    more = f" and {len(differences) - _MAX_TOLD} more" if len(differences) > _MAX_TOLD else ""
    return (
        f"Protected paths are not what they were before programs ran: {told}{more}. "
        "Look at them before the next run reads them"
    )
