"""What somebody wants of a new run, kept until the run has its first entry."""

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from metier.runtime.commissions import Commission, find_commission
from metier.runtime.instructions import Said
from metier.store.base import RunRow, Store

REQUESTED = "request:"
"""The reason in the index of a run that has not begun: this, and the blob that holds what is wanted of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What is wanted of a new run. Kept as JSON until the run has its first entry."""

    task: str
    mode: Literal["live", "dry_run"] = "live"
    extra_context: str = ""
    agent: str = ""
    """The ID of the agent; empty takes the one of the settings, else the built-in one."""
    model: str = ""
    """Asked for instead of the agent's; it must be one that the agent may use."""
    commission: Commission | None = None
    """What another run or a task definition orders; its agent counts, not the one of the settings."""
    said: Said | None = None
    """The conversation before it, and the step of a task that it carries out."""
    context_id: str = ""
    """The conversation it belongs to; empty for a run that is its own."""


_REQUEST = TypeAdapter(RunRequest)


async def keep_request(request: RunRequest, store: Store) -> str:
    """The words for the index, by which `find_request` finds it again."""
    return REQUESTED + await store.put_blob(_REQUEST.dump_json(request))


async def find_request(row: RunRow, store: Store) -> RunRequest:
    """What was wanted of a run that has not begun."""
    if row.reason.startswith(REQUESTED):
        return _REQUEST.validate_json(await store.get_blob(row.reason.removeprefix(REQUESTED)))
    commission = await find_commission(row.reason, store)
    return RunRequest(task=row.task, mode=commission.mode if commission else "live", commission=commission)
