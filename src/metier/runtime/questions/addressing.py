"""Several runs below one may wait for a person at the same time: whom an answer is for, and who is asked when."""

import anyio

from metier.dataclass import dataclass
from metier.engine.state import RunState
from metier.runtime.children.children import find_waiting, read_run
from metier.runtime.questions.answers import Answer
from metier.runtime.questions.approvals import ApprovalQuestion, Reply
from metier.runtime.questions.asking import Asker
from metier.store.base import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressed:
    """An answer, and the runs between the one that it was given to and the one that asked."""

    answer: Answer | None
    run_ids: frozenset[str] = frozenset()

    def find_for(self, run_id: str) -> Answer | None:
        """The answer for a run on the way; the others only learn whose it was and what code they may go on with."""
        if self.answer is None or run_id in self.run_ids:
            return self.answer
        return Answer(by=self.answer.by, accepts_changed_skills=self.answer.accepts_changed_skills)


async def address(answer: Answer | None, state: RunState, store: Store) -> Addressed:
    """An answer is for the run that `find_waiting` names to the person who gives it.

    A run that is parked because files of its skills changed still has runs below it that wait.
    """
    if answer is None:
        return Addressed(answer=answer)
    waiting = await find_waiting(store, state)
    found: set[str] = set()
    while waiting.run_id != state.run_id and waiting.started is not None:
        found.add(waiting.run_id)
        waiting = await read_run(store, waiting.started.parent_run_id)
    return Addressed(answer=answer, run_ids=frozenset(found))


def one_at_a_time(ask: Asker | None) -> Asker | None:
    """The same asker for runs that are driven together: a person reads one question, then the next."""
    if ask is None:
        return None
    lock = anyio.Lock()

    async def ask_in_turn(question: ApprovalQuestion) -> Reply | None:
        async with lock:
            return await ask(question)

    return ask_in_turn
