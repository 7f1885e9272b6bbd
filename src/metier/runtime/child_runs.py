"""Child runs: their requests, preparation and results, and following them until they end."""

import dataclasses
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
from msgspec.structs import replace
from pydantic import JsonValue

from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import has_errors
from metier.definitions.task import TaskDefinition
from metier.engine.delegation import build_step_request, fill_inputs, read_inputs
from metier.engine.entries.limits import Limits
from metier.engine.entries.run import RunFailed, RunStarted
from metier.engine.entries.task import ChildRequest, ChildRequested, PlannedStep, TaskPlanned
from metier.engine.execution.child_execution import list_open_delegations, record_children_end
from metier.engine.execution.past_results import build_results
from metier.engine.journal import RunLog, read_entries
from metier.engine.options import RuntimeOptions
from metier.engine.services import Services
from metier.engine.state.fold import apply
from metier.engine.state.phases import FINAL
from metier.engine.state.run_state import Child, RunState
from metier.engine.stopper import Stopper
from metier.engine.trace_spans import get_context
from metier.errors import ConfigError, MetierError, UsageError, unwrapped
from metier.runtime.delegation.authority import inherit_pins
from metier.runtime.host import Host
from metier.runtime.records.pins import HOST, SETTINGS, use_pinned_agent, use_pinned_host, use_pinned_settings
from metier.runtime.requests import RunRequest, build_ordered
from metier.runtime.status import read_run
from metier.runtime.validation import check_task
from metier.runtime.workspace.agents import ResolvedAgent, get_agent_model
from metier.runtime.workspace.lookup import get_definition
from metier.runtime.workspace.prepared_run import RESULTS, PreparedRun
from metier.runtime.workspace.tasks import apply_step, find_pinned_task, get_task
from metier.store.base import Store
from metier.telemetry.sinks import BorrowedSink, Sink

_PREVIEW = "preview"


async def use_settings(host: Host, request: RunRequest, store: Store) -> Host:
    """Return the host with the settings of the request, if it has any."""
    if not request.settings_digest:
        return host
    return await use_pinned_settings(host, {SETTINGS: request.settings_digest}, store)


def request_task(
    host: Host, task_id: str, given: Mapping[str, JsonValue], *, agent: str = "", model: str = ""
) -> RunRequest:
    """Build the request for a task; `model` applies to every step.

    Raises `UsageError` for a model that the agent of a step may not use and for missing or invalid inputs, and
    `ConfigError` with every problem of the task.
    """
    task = get_task(host, task_id)
    if has_errors(problems := check_task(host, task.id, agent=agent)):
        raise ConfigError(f"Task {task.id!r} cannot be used", hint="Correct the lines above", problems=problems)
    if default := agent or ("" if task.agent else host.settings.runtime.agent or ""):
        get_definition(host.workspace, "agent", default)  # raises for an unknown agent
    inputs, wrong = fill_inputs(read_inputs(task), dict(given))
    if wrong:
        known = ", ".join(item.name for item in task.inputs) or "none"
        raise UsageError(f"Task {task.id!r} cannot be run: {'; '.join(wrong)}", hint=f"Its inputs: {known}")
    runtime = host.settings.runtime
    for name in dict.fromkeys(step.agent or task.agent or agent or runtime.agent or "" for step in task.steps):
        get_agent_model(host, name, model=model)
    order = ChildRequest(
        task=task.name,
        agent=task.agent or agent or runtime.agent or "",
        model=model,
        task_id=task.id,
        inputs=inputs,
        limits=build_limits(runtime),
    )
    return build_ordered(order)


def build_limits(runtime: RuntimeOptions) -> Limits:
    return Limits(
        max_turns=runtime.max_turns,
        max_cost_usd=runtime.max_cost_usd,
        on_step_failure=runtime.on_step_failure,
        max_delegation_depth=runtime.max_delegation_depth,
        delegation_share=runtime.delegation_share,
        max_children_per_call=runtime.max_children_per_call,
        on_limit=runtime.on_limit,
        # Recorded, so that journals of versions that started children one after another still replay.
        delegates_together=True,
        ends_at_first_finish=True,
    )


async def prepare_run(
    agent: ResolvedAgent,
    store: Store,
    *,
    host: Host,
    folder: Path,
    request: RunRequest,
) -> PreparedRun:
    order, inherited, is_dry = request.order, request.inherited_pins, request.mode == "dry_run"
    if order is None:
        return PreparedRun(folder=folder, agent=agent, extra_input=request.extra_input, is_dry=is_dry, host=host)
    task = await _find_task(host, order, pins=inherited, store=store)
    run = PreparedRun(
        folder=folder,
        agent=agent,
        extra_input=request.extra_input,
        is_dry=is_dry,
        host=host,
        order=order,
        task=task,
        inherited=inherited,
    )
    return replace(run, agent=apply_step(agent, run.steps)) if run.steps else run


async def restore_run(host: Host, store: Store, *, folder: Path, started: RunStarted) -> PreparedRun:
    """Restore a started run with its pins."""
    host = replace(host, worktree=started.worktree)
    pinned = await use_pinned_settings(host, started.pins, store)
    order = started.order
    run = PreparedRun(
        folder=folder,
        agent=await use_pinned_agent(pinned, started, store),
        is_dry=started.mode == "dry_run",
        pins=started.pins,
        reading_sandbox=started.reading_sandbox,
        host=await use_pinned_host(host, started.pins, store),
        order=order,
        task=await _find_task(host, order, pins=started.pins, store=store) if order is not None else None,
    )
    return replace(run, agent=apply_step(run.agent, run.steps)) if run.steps else run


async def _find_task(
    host: Host, order: ChildRequest, *, pins: Mapping[str, str], store: Store
) -> TaskDefinition | None:
    task_id = order.task_id or order.step_of
    if not task_id:
        return None
    return await find_pinned_task(host.workspace, task_id, pins=pins, store=store) or get_task(host, task_id)


class DriveChild(Protocol):
    """Drives a run until it ends or waits; a run that hasn't started needs a request."""

    def __call__(self, run_id: str, stopper: Stopper, *, request: RunRequest | None) -> Awaitable[RunState]: ...


async def follow_children(log: RunLog, services: Services, *, stopper: Stopper, drive_child: DriveChild) -> bool:
    """Follow the child runs. Return True once their results are recorded, False while one waits or was stopped.

    If one of them waits for the user, the others are still driven to their end.
    """
    requests = [request for _, request in list_open_delegations(log.state)]
    if not requests or stopper.is_set or log.state.pause is None or log.state.pause.pause != "delegation":
        return False
    # Now, so that readers of the index see while the children are driven that the run waits for them.
    await log.update_index()
    follow = partial(_follow_one, log.state, services=services, stopper=stopper, drive_child=drive_child)
    children = await _follow_all(requests, follow, at_once=services.runtime.max_parallel_children)
    if any(child.phase not in FINAL for child in children):
        return False
    # Only after all have ended, in the order of their calls: the journal must not depend on timing.
    await record_children_end(log, services, children)
    return True


async def _follow_all(
    requests: Sequence[ChildRequested], follow: Callable[[ChildRequested], Awaitable[RunState]], *, at_once: int
) -> list[RunState]:
    """Follow all child runs and return their states in order. Errors are raised once the others paused or ended."""
    if len(requests) == 1:
        return [await follow(requests[0])]
    found: dict[str, RunState] = {}
    failures: list[MetierError] = []
    limiter = anyio.CapacityLimiter(at_once)

    async def follow_one(request: ChildRequested) -> None:
        async with limiter:
            try:
                found[request.child_run_id] = await follow(request)
            # Raised later: the task group would cancel the other children in the middle of a step.
            except MetierError as failure:
                failures.append(failure)

    with unwrapped():
        async with anyio.create_task_group() as group:
            for request in requests:
                group.start_soon(follow_one, request)
    if failures:
        raise failures[0]
    return [found[request.child_run_id] for request in requests]


async def _follow_one(
    parent: RunState, delegated: ChildRequested, *, services: Services, stopper: Stopper, drive_child: DriveChild
) -> RunState:
    child = await read_run(services.store, delegated.child_run_id)
    # An imported journal may be forged and name any run, which would then be driven with the parent's permissions.
    if child.started is not None and child.started.parent_run_id != parent.run_id:
        raise UsageError(
            f"Run {child.run_id!r} does not work for run {parent.run_id!r}",
            hint="The journal names a child run that it did not request, so the run cannot continue",
        )
    if stopper.is_set or await _is_settled(child, services.store):
        return child
    request = None if child.started else await _request_child(delegated, parent, services.store)
    drive = partial(drive_child, request=request)
    return await _drive_child(delegated.child_run_id, services, stopper=stopper, drive_child=drive)


async def _is_settled(child: RunState, store: Store) -> bool:
    """Return True if the run ended and its index row says so. Otherwise its driver died before it wrote all events."""
    row = await store.find_run(child.run_id) if child.phase in FINAL else None
    return row is not None and row.status == child.status


async def _drive_child(
    child_id: str, services: Services, *, stopper: Stopper, drive_child: Callable[[str, Stopper], Awaitable[RunState]]
) -> RunState:
    # A stopper of its own, because a child that times out must not stop its siblings and the parent.
    own = Stopper(services.runtime.signal_grace_seconds, waits_for_model=stopper.waits_for_model)
    with stopper.followed_by(own):
        try:
            return await drive_child(child_id, own)
        except UsageError as error:
            found = await read_run(services.store, child_id)
            if found.started is not None:
                raise
            # It can't start, now or later, so the parent gets this as its result.
            failure = RunFailed(reason="not_started", message=error.sentence)
            return dataclasses.replace(found, phase="ERROR", status="failed", failure=failure)


async def _collect_results(children: Sequence[Child], store: Store) -> dict[str, str]:
    """Store the results of earlier steps, as their scripts returned them, for a step whose script summarizes them."""
    results: list[JsonValue] = []
    for child in children:
        if child.status == "completed":
            results += await build_results(await read_entries(store, child.run_id), store)
    return {RESULTS: await store.put_blob(json.dumps(results).encode())} if results else {}


async def _request_child(delegated: ChildRequested, parent: RunState, store: Store) -> RunRequest:
    """Build the request for a child from the parent's journal alone, so that it is the same after a crash."""
    started = parent.started
    assert started is not None
    children = parent.children if parent.plan else []
    return replace(
        build_ordered(delegated.order),
        parent_run_id=parent.run_id,
        mode=started.mode,
        # The parent's pins, so that files that changed after its start don't affect the child.
        inherited_pins={
            **await inherit_pins(started, delegated.order, store),
            **await _collect_results(children, store),
        },
        trace_parent=get_context(parent.run_id, await read_entries(store, parent.run_id), delegated.step_id),
        parent_worktree=started.worktree,
        settings_digest=started.pins.get(HOST) or started.pins.get(SETTINGS, ""),
    )


def borrow_sinks(sinks: Sequence[Sink]) -> list[Sink]:
    """Wrap the sinks for a child run, which must not close them."""
    return [sink if isinstance(sink, BorrowedSink) else BorrowedSink(sink) for sink in sinks]


# Placeholders of inputs without a default stay in the text, and results of earlier steps are unknown.
def request_step(host: Host, task_id: str, *, file: str = "", agent: str = "") -> RunRequest:
    """Build the request of one task step for a preview; `TASK.md` by default. Raises `UsageError`, `ConfigError`."""
    task = get_task(host, task_id)
    names = [step.file.name for step in task.steps]
    wanted = file or names[0]
    number = next((i for i, name in enumerate(names) if wanted in (name, name.removesuffix(".md"))), None)
    if number is None:
        hint = hint_nearest(wanted, names) or f"Available: {', '.join(names)}"
        raise UsageError(f"Task {task.id!r} has no step {wanted!r}", hint=hint)
    inputs = {
        item.name: f"{{{{inputs.{item.name}}}}}" if item.default is None else item.default for item in read_inputs(task)
    }
    limits = build_limits(host.settings.runtime)
    parent = RunState(_PREVIEW)
    started = RunStarted(
        task=task.name,
        mode="dry_run",
        provider="",
        model="",
        context_id=_PREVIEW,
        trace_id=_PREVIEW,
        workspace=str(host.workspace),
        limits=limits,
        order=ChildRequest(task=task.name, task_id=task.id, inputs=inputs, limits=limits),
    )
    apply(parent, started)
    default = agent or host.settings.runtime.agent or ""
    planned = (
        PlannedStep(file=step.file.name, name=step.name, agent=step.agent or task.agent or default)
        for step in task.steps
    )
    apply(parent, TaskPlanned(steps=tuple(planned)))
    return replace(build_ordered(build_step_request(parent, parent.steps[number], task)), mode="dry_run")
