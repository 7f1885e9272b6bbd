"""Put the open approvals of a run to the person who watches it, and take down what they say."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from metier.engine.state import RunState
from metier.engine.stopping import Stopper
from metier.errors import ApprovalClosed
from metier.runtime.questions.approvals import ApprovalQuestion, Approvals, Reply

type Asker = Callable[[ApprovalQuestion], Awaitable[Reply | None]]
"""Asks about a call, and shows the others of its reply that wait; nothing leaves them open."""


async def ask_person(
    state: RunState, ask: Asker | None, approvals: Approvals, *, stopper: Stopper
) -> frozenset[str] | None:
    """The approvals that the answer is to be remembered for; None when the run stays parked."""
    if ask is None or stopper.is_set or state.pause is None or state.pause.pause != "approval":
        return None
    every = [await approvals.get(step.approval_id) for step in state.steps if step.phase == "asking"]
    first, *others = every
    reply: Reply | None = None
    with stopper.interruptible():
        reply = await ask(replace(first, others=tuple(each for each in others if each.row.status == "open")))
    if reply is None:
        return None
    remembered: set[str] = set()
    for question in every if reply.is_for_all else [first]:
        # Who was faster elsewhere has decided; the run goes on with that.
        with suppress(ApprovalClosed):
            await approvals.decide(question, reply)
            remembered |= {question.row.approval_id} if reply.remember else set()
    return frozenset(remembered)


def can_ask(state: RunState, ask: Asker | None) -> bool:
    """The run waits for an approval, and a person is there to give it."""
    return ask is not None and state.pause is not None and state.pause.pause == "approval"
