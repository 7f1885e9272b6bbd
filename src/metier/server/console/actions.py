"""What a person does to a run from a page: decide, answer, raise a limit, go on, fork. The pool drives what follows."""

from contextlib import suppress

from metier.runtime.history.forks import ForkRequest, fork_run
from metier.runtime.questions.answers import Answer, check_answer
from metier.runtime.questions.approvals import ApprovalQuestion, Reply
from metier.runtime.queue.detached import find_owner, leave_to_workers, wake
from metier.server.problems import HttpProblem
from metier.server.state import ServerState
from metier.store.failures import LeaseHeld


async def decide(state: ServerState, question: ApprovalQuestion, reply: Reply, *, seen: str) -> None:
    """`seen` is the hash of the call that the page showed. Raises `ApprovalClosed` where another decision was first."""
    if seen != question.hash:
        raise HttpProblem(
            409, "another_call", "This approval is about another call than the page showed", hint="Load the page again"
        )
    if reply.decision == "approved" and reply.arguments is None and await state.runtime.approvals.is_stale(question):
        raise HttpProblem(
            409,
            "file_changed",
            "The file changed since this diff was made, so the diff is not what would happen",
            hint="Deny it: the model reads the file again and asks anew",
        )
    await state.runtime.approvals.decide(question, reply)
    await go_on(state, question.row.run_id)


async def answer(state: ServerState, run_id: str, given: Answer) -> None:
    """Raises `UsageError` for an answer that the run does not ask for, `LeaseHeld` while a process drives it."""
    owner = await find_owner(state.runtime, run_id)
    waiting = await state.runtime.find_waiting(await state.runtime.read(owner.run_id))
    check_answer(waiting, given)
    await wake(state.runtime, owner.run_id, given, queue=owner.queue or state.queue)
    state.nudge()


async def go_on(state: ServerState, run_id: str) -> None:
    """Have the run go on that a user started, this one or one above it, whichever process drove it before."""
    owner = await find_owner(state.runtime, run_id)
    with suppress(LeaseHeld):  # its driver is about to let go of it, and takes the decision in or leaves it to a sweep
        await wake(state.runtime, owner.run_id, queue=owner.queue or state.queue)
    state.nudge()


async def fork(state: ServerState, run_id: str, request: ForkRequest) -> str:
    """The id of the new run."""
    forked = await fork_run(state.runtime, run_id, request, watch=leave_to_workers(state.queue))
    state.nudge()
    return forked.state.run_id
