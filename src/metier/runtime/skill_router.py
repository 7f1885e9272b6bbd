"""Delegation for skills that Python programs call: each delegated request becomes a run of the workspace.

    adapter = create_agent_adapter(create_executor("."), router=create_run_router("."))

The delegating conversation isn't a run, so the new run has no parent; its context is the ID of the conversation.
Settings, rules, approvals and limits are those of the workspace.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.capabilities.protocol import AgentResponse, InputRequest
from metier.capabilities.skill_delegation import DelegationRequest
from metier.decisions import CalledRun
from metier.engine.entries.task import ChildRequest
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import RunState
from metier.runtime.answers import Answer
from metier.runtime.child_runs import build_limits
from metier.runtime.delegation.skill_calls import build_waiting, find_stored, name_work, read_response
from metier.runtime.host import Host
from metier.runtime.opened_host import open_host
from metier.runtime.requests import RunRequest, build_ordered
from metier.runtime.runs import Runtime, open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.store.failures import RunExists


class RunRouter(Struct, frozen=True):
    """Starts or continues the run of a delegated request, and drives it until it ends or waits."""

    host: Host

    async def delegate(self, request: DelegationRequest) -> AgentResponse:
        with using_plugins(self.host, report=self.host.report) as host:
            async with open_runtime(host) as runtime:
                work = name_work(request)
                state = await _start_or_resume(work, request, runtime)
                if state.phase in FINAL:
                    return await read_response(state, runtime.store)
                return build_waiting(work, await _get_question(state, runtime))


def create_run_router(
    repo_root: Path | str, *, environ: Mapping[str, str] | None = None, home: Path | None = None
) -> RunRouter:
    """Create the router for `create_agent_adapter(…, router=…)`. Raises `ConfigError` with every problem."""
    workspace, variables = Path(repo_root).resolve(), os.environ if environ is None else environ
    return RunRouter(open_host(workspace, environ=variables, home=home or Path.home(), config=None).host)


async def _start_or_resume(work: CalledRun, request: DelegationRequest, runtime: Runtime) -> RunState:
    """Start or continue the run. Its ID derives from the conversation, so concurrent callers get the same run."""
    if not (await runtime.read(work.run_id)).started:
        # Another caller has started it meanwhile. Then it is continued below.
        with suppress(RunExists):
            return await runtime.start_child(work.run_id, _build_request(work, request, runtime))
    return await runtime.resume(work.run_id, Answer(values=request.answers) if request.answers else None)


def _build_request(work: CalledRun, request: DelegationRequest, runtime: Runtime) -> RunRequest:
    options = runtime.host.settings.runtime
    order = ChildRequest(
        task=f"Call skill {work.call.skill!r} for skill {work.call.chain[-1]!r}",
        agent=options.agent or "",
        limits=build_limits(options),
        lineage=tuple(f"skill:{name}" for name in work.call.chain),
        call=work.call,
    )
    return replace(build_ordered(order), context_id=request.parent_context_id)


async def _get_question(state: RunState, runtime: Runtime) -> InputRequest:
    """Return the skill's question that the run waits for; otherwise the reason of the pause as a message."""
    waiting = await runtime.get_waiting(state)
    stored = await find_stored(waiting, runtime.store)
    if stored is not None and stored.input_request is not None:
        return stored.input_request
    reason = waiting.pause.reason if waiting.pause is not None else f"it is {waiting.status}"
    return InputRequest(message=f"Run {waiting.run_id} waits: {reason}")
