"""Compare what is protected before and after steps that run programs. A difference ends the run with a report."""

from collections.abc import Sequence

import anyio.to_thread

from metier.approval.judge import name_call
from metier.engine import entries as e
from metier.engine.journal import RunLog
from metier.engine.services import Services
from metier.engine.steps import Step
from metier.tools.sandbox.protected_state import Held, compare

PROTECTED_CHANGED = "protected_changed"
_MAX_TOLD = 10
_WITHOUT_PROGRAMS = frozenset({"Read", "Write", "Edit", "Glob", "Grep", "WebFetch", "script_list"})
"""Built-in tools that run no code of others; what they write is judged by itself."""


async def look_at_protected(steps: Sequence[Step], services: Services) -> Held | None:
    """None where no program is confined, or none is about to run."""
    state = services.protected
    if state is None or all(name_call(step.action)[0] in _WITHOUT_PROGRAMS for step in steps):
        return None
    return await anyio.to_thread.run_sync(state.look)


async def end_if_changed(before: Held | None, log: RunLog, services: Services) -> bool:
    """Ends the run where a protected path is not what it was. The instructions of this and later runs lie there."""
    if before is None or services.protected is None:
        return False
    differences = compare(before, await anyio.to_thread.run_sync(services.protected.look))
    if not differences:
        return False
    await log.record(e.RunFailed(reason=PROTECTED_CHANGED, message=describe_changes(differences)), durable=True)
    return True


def describe_changes(differences: Sequence[str]) -> str:
    told = ", ".join(differences[:_MAX_TOLD])
    more = f" and {len(differences) - _MAX_TOLD} more" if len(differences) > _MAX_TOLD else ""
    return (
        f"Protected paths are not what they were before programs ran: {told}{more}. "
        "Look at them before the next run reads them"
    )
