"""A skill that another skill hands work to, as a run: which run that is, and what it came to. Starts nothing.

The driver of the run above, or the caller of the adapter, sees the child run through; it is found by its name, which
follows from what the parent has on record. So there is one run for each delegation.
"""

import hashlib

from metier.capabilities.delegation import DelegationRequest
from metier.capabilities.protocol import AgentResponse, InputRequest, ResponseError, ResponseMetadata, TaskState
from metier.capabilities.tool import name_conversation, name_message
from metier.dataclass import dataclass
from metier.decisions import CalledRun
from metier.engine.journal import read_entries
from metier.engine.phases import FINAL
from metier.engine.state import RunState, fold
from metier.ids import CHILD
from metier.store.base import Store


@dataclass(frozen=True, slots=True)
class AwaitedRuns:
    """The router of a skill that is called in a run: the run waits for the other one, then calls the skill again."""

    store: Store

    async def delegate(self, request: DelegationRequest) -> AgentResponse:
        work = name_work(request)
        child = fold(work.run_id, await read_entries(self.store, work.run_id))
        if child.phase not in FINAL:
            return build_waiting(work)
        return await read_response(child, self.store)


def name_work(request: DelegationRequest) -> CalledRun:
    """The run that is to do it. No other conversation leads to the same one."""
    digest = hashlib.sha256(request.context_id.encode()).hexdigest()[:24]
    return CalledRun(run_id=f"{CHILD}{digest}", call=request.as_call())


def build_waiting(work: CalledRun, request: InputRequest | None = None) -> AgentResponse:
    return AgentResponse(state=TaskState.DELEGATING, input_request=request, metadata=ResponseMetadata(handed_on=work))


async def read_response(child: RunState, store: Store) -> AgentResponse:
    """How a run that has ended answers: as its skill did, or why the skill could not."""
    found = await find_stored(child, store)
    if found is not None and found.state.is_terminal and found.state != TaskState.CANCELED:
        return found
    if child.failure is None:
        # A person said that it is done; what the skill would have answered is unknown.
        return AgentResponse(outputs={"summary": child.result})
    error = ResponseError(code=child.failure.reason, message=child.failure.message)
    return AgentResponse(state=TaskState(child.status), errors=(error,))


async def find_stored(run: RunState, store: Store) -> AgentResponse | None:
    """The last answer of the skill, whole: the journal has it shortened, in the words for a model."""
    if not run.steps:
        return None
    step = run.steps[-1]
    context_id = name_conversation(run.run_id, step.step_id)
    stored = await store.contexts.find_message(context_id, name_message(step.attempts))
    return AgentResponse.model_validate(stored.result) if stored is not None and stored.is_done else None
