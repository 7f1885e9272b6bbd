"""Under whose settings and rules a run stands: as it was started, or since it was last adopted. Pure."""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from metier.engine.entries.entry import Entry
from metier.engine.entries.run import ModelChanged, RunAdopted, RunStarted
from metier.engine.steps import Step
from metier.tools.effects import REPEATABLE

KEPT_PAUSES = frozenset({"input", "delegation", "step_failed"})
"""What an adopted run still waits for: an answer, a child, a decision about a step of its task."""


def find_authority(entries: Sequence[Entry]) -> RunStarted | None:
    """The start of the run with the model and settings it has now, since it was last adopted or its model changed."""
    started = find_origin(entries)
    if started is None:
        return None
    changed = takewhile(lambda entry: not isinstance(entry, RunAdopted), reversed(entries))
    last = next((entry for entry in changed if isinstance(entry, ModelChanged)), None)
    return started if last is None else change_model(started, last)


def find_origin(entries: Sequence[Entry]) -> RunStarted | None:
    """The start of the run, as it was or since it was last adopted; nothing without a beginning."""
    started = entries[0] if entries else None
    if not isinstance(started, RunStarted):
        return None
    adopted = next((entry for entry in reversed(entries) if isinstance(entry, RunAdopted)), None)
    return started if adopted is None else take_authority(started, adopted)


def change_model(started: RunStarted, entry: ModelChanged) -> RunStarted:
    """The start of the run with another model and the settings that go with it."""
    pins = {**started.pins, **entry.pins}
    return started.model_copy(update={"provider": entry.provider, "model": entry.model, "pins": pins})


def take_authority(started: RunStarted, adopted: RunAdopted) -> RunStarted:
    """How the run stands since it was adopted."""
    update = adopted.model_dump(exclude={"kind", "limits", "nonce", "hooks", "tells_begun"})
    return started.model_copy(update=update | {"limits": adopted.limits, "hooks": adopted.hooks})


def put_back(steps: Iterable[Step], *, answering: str, tells_begun: bool) -> None:
    """Nothing that was approved or under way elsewhere counts here: each step is asked about before it runs.

    `answering` is the step whose question a user has not answered.
    """
    for step in steps:
        if step.phase != "finished" and step.delegated is None and step.step_id != answering:
            was_begun = step.started is not None and step.started.effect not in REPEATABLE
            step.may_be_done = step.may_be_done or (was_begun and tells_begun)
            step.phase, step.started, step.is_foreign = "pending", None, True
