"""Actions of a user on a run's page: answer, fork. The pool continues the run."""

from metier.runtime.history.forks import ForkRequest, fork_run
from metier.runtime.questions.answers import Answer, check_answer
from metier.runtime.queue.detached import get_owner, leave_to_workers, wake
from metier.server.state import ServerState


async def answer(state: ServerState, run_id: str, given: Answer) -> None:
    """Raises `UsageError` for an answer that the run does not ask for, `LeaseHeld` while a process drives it."""
    owner = await get_owner(state.runtime, run_id)
    check_answer(await state.runtime.get_status(owner.run_id), given)
    await wake(state.runtime, owner.run_id, given, queue=owner.queue or state.queue)
    state.nudge()


async def fork(state: ServerState, run_id: str, request: ForkRequest) -> str:
    """The id of the new run."""
    forked = await fork_run(state.runtime, run_id, request, watch=leave_to_workers(state.queue))
    state.nudge()
    return forked.state.run_id
