"""Callable skills of a run: as its tools, and as child runs that another skill delegates to."""

import hashlib
from collections.abc import Sequence

from msgspec import Struct

from metier.capabilities.advisor import Bill, ProviderAdvisor
from metier.capabilities.executor import Capability, SkillExecutor
from metier.capabilities.protocol import AgentResponse, InputRequest, ResponseError, ResponseMetadata, TaskState
from metier.capabilities.skill_delegation import DelegationRequest, Lineage
from metier.capabilities.tool import build_capability_tools, name_conversation, name_message
from metier.capabilities.turns import Conversations
from metier.decisions import CalledRun
from metier.definitions.names import canonical_name
from metier.definitions.skills.scripts import is_capability
from metier.engine.journal import read_entries
from metier.engine.state.fold import fold
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.ids import CHILD
from metier.providers.base import Provider
from metier.providers.facts import FactBook
from metier.providers.options import OFFLINE
from metier.providers.stand_ins import UnavailableProvider
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.host import Host
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.skill_catalog import open_needs
from metier.skills.package import SkillPackage
from metier.store.base import Store
from metier.tools.base import Tool
from metier.tools.process.sandbox.confinement import Confinement


# The driver of the parent run, or the caller of the adapter, drives the child run. Its ID derives from the parent's
# journal, so there is exactly one run for each delegation.
class AwaitedRuns(Struct, frozen=True):
    """Router for a skill that a run calls: the run waits for the child run, then calls the skill again."""

    store: Store

    async def delegate(self, request: DelegationRequest) -> AgentResponse:
        work = name_work(request)
        child = fold(work.run_id, await read_entries(self.store, work.run_id))
        if child.phase not in FINAL:
            return build_waiting(work)
        return await read_response(child, self.store)


def name_work(request: DelegationRequest) -> CalledRun:
    """Return the call with the ID of its run, which is unique for the conversation."""
    digest = hashlib.sha256(request.context_id.encode()).hexdigest()[:24]
    return CalledRun(run_id=f"{CHILD}{digest}", call=request.as_call())


def build_waiting(work: CalledRun, request: InputRequest | None = None) -> AgentResponse:
    return AgentResponse(state=TaskState.DELEGATING, input_request=request, metadata=ResponseMetadata(handed_on=work))


async def read_response(child: RunState, store: Store) -> AgentResponse:
    """Read the response of an ended run: the skill's answer, or its failure."""
    found = await find_stored(child, store)
    if found is not None and found.state.is_terminal and found.state != TaskState.CANCELED:
        return found
    if child.failure is None:
        # The user resolved the interrupted call as done. The skill's real answer is unknown.
        return AgentResponse(outputs={"summary": child.result})
    error = ResponseError(code=child.failure.reason, message=child.failure.message)
    return AgentResponse(state=TaskState(child.status), errors=(error,))


async def find_stored(run: RunState, store: Store) -> AgentResponse | None:
    """Return the skill's last answer in full. The journal has a shortened version for the model."""
    if not run.steps:
        return None
    step = run.steps[-1]
    context_id = name_conversation(run.run_id, step.step_id)
    stored = await store.contexts.find_message(context_id, name_message(step.attempts))
    return AgentResponse.model_validate(stored.result) if stored is not None and stored.is_done else None


def list_callable(
    packages: Sequence[SkillPackage],
    host: Host,
    store: Store,
    *,
    run: PreparedRun,
    advisor: ProviderAdvisor | None,
    confinement: Confinement,
) -> tuple[Tool, ...]:
    """List a tool for each active skill with an `impl.py` and a valid contract. Runs nothing."""
    call = run.order.call if run.order is not None else None
    executor = SkillExecutor(
        packages={canonical_name(package.definition.name): package for package in packages},
        workspace=host.root,
        artifacts=run.folder / "artifacts",
        shares_artifacts=True,
        environ=host.environ,
        advisor=advisor,
        confinement=confinement,
        needs=open_needs(host),
    )
    conversations = Conversations(
        executor=executor,
        contexts=store.contexts,
        redactor=build_host_redactor(host),
        clock=host.clock,
        router=AwaitedRuns(store),
    )
    lineage = Lineage(call.chain, call.ceiling) if call is not None else Lineage()
    callable_skills = _list_callable(executor, ordered=call.skill if call is not None else "")
    return build_capability_tools(
        callable_skills, conversations, lineage=lineage, bill=advisor.bill if advisor else None
    )


def _list_callable(executor: SkillExecutor, *, ordered: str) -> list[Capability]:
    """List the callable skills with a valid contract. `agent check` reports the errors of the others.

    The skill that another skill calls may have an `entrypoint` instead of an `impl.py`.
    """
    names = [
        name for name, package in executor.packages.items() if is_capability(package.definition) or name == ordered
    ]
    return [one for name in names if isinstance(one := executor.get_capability(name), Capability)]


def find_advisor(host: Host, provider: Provider, facts: FactBook) -> ProviderAdvisor | None:
    """Return the run's model as advisor; None if it has no real model."""
    if provider.name == OFFLINE or isinstance(provider, UnavailableProvider):
        return None
    model = host.settings.model
    return ProviderAdvisor(
        provider=provider,
        model=model.name,
        max_tokens=model.max_tokens,
        timeout_seconds=model.timeout_seconds,
        bill=Bill(facts),
    )
