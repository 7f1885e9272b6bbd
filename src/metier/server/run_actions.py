"""Actions of users on runs: decide, answer, retry, fork. The pool or a worker then continues the run."""

from contextlib import suppress

from metier.decisions import TaskState
from metier.errors import UsageError
from metier.runtime.answers import Answer, RaisedLimits, check_answer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.history.forks import ForkRequest, find_points, fork_run
from metier.runtime.queue.detached import leave_to_workers, wake
from metier.server.problems import HttpProblem
from metier.server.state import ServerState
from metier.server.users import Grant, User
from metier.store.base import ENDED
from metier.store.failures import LeaseHeld

_GRANTED_ACTIONS: dict[Grant, str] = {
    "edit": "edit a call before approving it",
    "limits": "raise the limits of a run",
    "code": "accept changed files of skills",
    "read": "read runs of other users",
}


def check_grant(user: User, grant: Grant) -> None:
    """Raises `HttpProblem` if neither the user's role nor a grant permits it."""
    if not user.has(grant):
        raise HttpProblem(
            403,
            "grant_missing",
            f"User {user.name!r} is not permitted to {_GRANTED_ACTIONS[grant]}",
            hint=f"Ask an operator to do it, or to add the grant {grant!r} to your entry in server.users",
        )


def check_answer_grants(user: User, given: Answer) -> None:
    """Raises `HttpProblem` for a field of the answer that the user is not permitted to set."""
    if given.raised != RaisedLimits():
        check_grant(user, "limits")
    if given.accepts_changed_skills:
        check_grant(user, "code")


async def decide(state: ServerState, question: ApprovalQuestion, reply: Reply, *, seen: str) -> ApprovalQuestion:
    """Decide an approval. `seen` is the hash of the reviewed call. Raises `ApprovalClosed` if it was decided before."""
    if seen != question.hash:
        raise HttpProblem(409, "call_changed", "The call is not the one that was reviewed", hint="Review it again")
    # An edited call is approved against the current files, so an old diff does not matter for it.
    if reply.decision == "approved" and reply.arguments is None and await state.runtime.approvals.is_stale(question):
        raise HttpProblem(
            409,
            "file_changed",
            "The file changed since this diff was made",
            hint="Deny it; the model then reads the file and asks again",
        )
    # The decision is durable before the run is woken: if the server dies in between, the next sweep continues the run.
    decided = await state.runtime.approvals.decide(question, reply)
    await continue_run(state, question.row.run_id)
    return decided


async def continue_run(state: ServerState, run_id: str) -> None:
    """Continue the run, or the parent run that drives it."""
    owner = await state.runtime.get_started(run_id)
    # A driver that is just releasing its lease either sees the decision or leaves the run to the next sweep.
    with suppress(LeaseHeld):
        await wake(state.runtime, owner.run_id, queue=owner.queue or state.queue)
    state.nudge()


async def answer(state: ServerState, run_id: str, given: Answer) -> None:
    """Answer a run. Raises `UsageError` if it asks for something else, `LeaseHeld` while a process drives it."""
    owner = await state.runtime.get_started(run_id)
    check_answer(await state.runtime.get_status(owner.run_id), given)
    await wake(state.runtime, owner.run_id, given, queue=owner.queue or state.queue)
    state.nudge()


RETRIABLE: tuple[TaskState, ...] = tuple(status for status in ENDED if status != "completed")


async def retry(state: ServerState, run_id: str) -> str:
    """Continue an ended run as a new run, from the last point where it can be forked. Returns the new run's ID.

    Raises `UsageError` if there is no such point.
    """
    points = find_points(run_id, await state.runtime.read_entries(run_id))
    if not points:
        raise UsageError(f"Run {run_id!r} ended before its first step", hint="Start its task again")
    return await fork(state, run_id, ForkRequest(at=points[-1].number))


async def fork(state: ServerState, run_id: str, request: ForkRequest) -> str:
    """Fork a run and return the ID of the new one."""
    forked = await fork_run(state.runtime, run_id, request, watch=leave_to_workers(state.queue))
    state.nudge()
    return forked.state.run_id
