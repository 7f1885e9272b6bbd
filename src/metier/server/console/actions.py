"""Actions on a run that only pages offer: answer, retry, fork. The pool or a worker drives what follows."""

from metier.decisions import TaskState
from metier.errors import UsageError
from metier.runtime.history.forks import ForkRequest, find_points, fork_run
from metier.runtime.history.run_views import read_history
from metier.runtime.questions.answers import Answer, check_answer
from metier.runtime.queue.detached import get_owner, leave_to_workers, wake
from metier.server.state import ServerState
from metier.store.base import ENDED


async def answer(state: ServerState, run_id: str, given: Answer) -> None:
    """Raises `UsageError` for an answer that the run does not ask for, `LeaseHeld` while a process drives it."""
    owner = await get_owner(state.runtime, run_id)
    check_answer(await state.runtime.get_status(owner.run_id), given)
    await wake(state.runtime, owner.run_id, given, queue=owner.queue or state.queue)
    state.nudge()


RETRIABLE: tuple[TaskState, ...] = tuple(status for status in ENDED if status != "completed")


async def retry(state: ServerState, run_id: str) -> str:
    """Continue an ended run as a new run, from the last place before its end. Returns the ID of the new run.

    Raises `UsageError` if there is no such place.
    """
    points = find_points(run_id, await read_history(state.runtime, run_id))
    if not points:
        raise UsageError(f"Run {run_id!r} ended before its first step", hint="Start its task again")
    return await fork(state, run_id, ForkRequest(at=points[-1].number))


async def fork(state: ServerState, run_id: str, request: ForkRequest) -> str:
    """The id of the new run."""
    forked = await fork_run(state.runtime, run_id, request, watch=leave_to_workers(state.queue))
    state.nudge()
    return forked.state.run_id
