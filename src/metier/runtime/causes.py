"""Why a run stopped, in the words of what failed: the last thing that its step, or a step of a run below it, said."""

from metier.engine.state import RunState, Step
from metier.runtime.children import read_run
from metier.store.base import Store


async def find_cause(store: Store, state: RunState) -> str:
    """What the failed step gave back, redacted and bounded as in the journal; empty where no step is to blame."""
    if state.failure is None and (state.pause is None or state.pause.pause != "step_failed"):
        return ""
    step = _find_failed(state)
    while step is not None and step.delegated is not None:
        step = _find_failed(await read_run(store, step.delegated.child_run_id))
    return step.finished.text if step is not None and step.finished is not None else ""


def _find_failed(state: RunState) -> Step | None:
    """The last one: those before it did not keep the run from going on."""
    return next((step for step in reversed(state.steps) if step.finished and step.finished.is_error), None)
