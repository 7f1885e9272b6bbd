"""Why a run stopped: the run that failed, itself or one below it, and the last thing that its step said."""

from metier.decisions import describe_failure, read_failure
from metier.engine.state import RunState
from metier.engine.steps import Step
from metier.runtime.children.children import read_run
from metier.store.base import Store


async def find_failed(store: Store, state: RunState) -> RunState | None:
    """The lowest of the runs that failed one because of the other; nothing where this one goes well or waits."""
    if state.failure is None and (state.pause is None or state.pause.pause != "step_failed"):
        return None
    while (step := find_failed_step(state)) is not None and step.delegated is not None:
        state = await read_run(store, step.delegated.child_run_id)
    return state


def get_cause(state: RunState | None) -> str:
    """What the failed step gave back, redacted and bounded as in the journal; empty where no step is to blame."""
    if state is not None and state.unaccepted is not None and state.failure is not None:
        return "\n".join(state.unaccepted.failures)
    step = find_failed_step(state) if state is not None else None
    if step is None or step.finished is None:
        return ""
    failure = read_failure(step.finished.text) or {}
    printed = f"{failure['stdout']}\n" if failure.get("stdout") else ""
    return printed + describe_failure(step.finished.text)


def find_failed_step(state: RunState) -> Step | None:
    """The last one: those before it did not keep the run from going on."""
    return next((step for step in reversed(state.steps) if step.finished and step.finished.is_error), None)
