"""A decision about an approval, the same by the API, on a page and by a link: what refuses it, how the run goes on."""

from contextlib import suppress

from metier.runtime.questions.approvals import ApprovalQuestion, Reply
from metier.runtime.queue.detached import find_owner, wake
from metier.server.problems import HttpProblem
from metier.server.state import ServerState
from metier.store.failures import LeaseHeld


async def decide(state: ServerState, question: ApprovalQuestion, reply: Reply, *, seen: str) -> ApprovalQuestion:
    """`seen` is the hash of the call that was looked at. Raises `ApprovalClosed` where another decision was first."""
    if seen != question.hash:
        raise HttpProblem(409, "call_changed", "The call is not the one that was looked at", hint="Look at it again")
    if reply.decision == "approved" and reply.arguments is None and await state.runtime.approvals.is_stale(question):
        raise HttpProblem(
            409,
            "file_changed",
            "The file changed since this diff was made, so the diff is not what would happen",
            hint="Deny it: the model reads the file again and asks anew",
        )
    decided = await state.runtime.approvals.decide(question, reply)
    await go_on(state, question.row.run_id)
    return decided


async def go_on(state: ServerState, run_id: str) -> None:
    """Have the run go on that a user started, this one or one above it, whichever process drove it before."""
    owner = await find_owner(state.runtime, run_id)
    with suppress(LeaseHeld):  # its driver is about to let go of it, and takes the decision in or leaves it to a sweep
        await wake(state.runtime, owner.run_id, queue=owner.queue or state.queue)
    state.nudge()
