"""Runs that are ordered, by another run or by a task definition: what they are given."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue

from metier.definitions.problems import has_errors
from metier.definitions.task import TaskDefinition
from metier.engine.delegation.partners import fill_inputs, read_inputs
from metier.engine.entries import ChildRequest, Limits, RunStarted, RunWorktree
from metier.engine.options import RuntimeOptions
from metier.errors import ConfigError, UsageError
from metier.messages import Value
from metier.runtime.checks.validation import check_task
from metier.runtime.host import Host
from metier.runtime.records.pins import SETTINGS, use_pinned_agent, use_pinned_host, use_pinned_settings
from metier.runtime.workspace.agents import AgentInForce, check_model, find_agent_file
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.tasks import apply_step, find_pinned_task, get_task
from metier.store.base import Store


class ChildRunStart(Value):
    """Everything that a child run needs to begin, in any process."""

    order: ChildRequest
    parent_run_id: str = ""
    mode: Literal["live", "dry_run"] = "live"
    """That of the run above."""
    inherited: dict[str, str] = Field(default_factory=dict)
    """Pins from the run above."""
    trace_parent: str = ""
    """The step of the run above, as a W3C `traceparent`."""
    worktree: RunWorktree | None = None
    """That of the run above, which this one works in too unless it has one of its own."""
    settings: str = ""
    """The digest of the settings that it begins with; without it, those of the process that begins it."""


async def use_settings(place: Host, commission: ChildRunStart | None, store: Store) -> Host:
    """The place with the settings that the commission names."""
    if commission is None or not commission.settings:
        return place
    return await use_pinned_settings(place, {SETTINGS: commission.settings}, store)


def request_task(
    place: Host, task_id: str, given: Mapping[str, JsonValue], *, agent: str = "", model: str = ""
) -> ChildRunStart:
    """A person wants a task done, every step by `model` where one is named.

    Raises `UsageError` for a model that the agent of a step may not use and for inputs that are missing or wrong, with
    all of them, and `ConfigError` with every problem of a task whose steps cannot all be run.
    """
    task = get_task(place, task_id)
    if has_errors(problems := check_task(place, task.id, agent=agent)):
        raise ConfigError(f"Task {task.id!r} cannot be used", hint="Correct the lines above", problems=problems)
    if default := agent or ("" if task.agent else place.settings.runtime.agent or ""):
        find_agent_file(place.workspace, default)
    inputs, wrong = fill_inputs(read_inputs(task), dict(given))
    if wrong:
        known = ", ".join(item.name for item in task.inputs) or "none"
        raise UsageError(f"Task {task.id!r} cannot be run: {'; '.join(wrong)}", hint=f"Its inputs: {known}")
    runtime = place.settings.runtime
    for name in dict.fromkeys(step.agent or task.agent or agent or runtime.agent or "" for step in task.steps):
        check_model(place, name, model=model)
    order = ChildRequest(
        task=task.name,
        agent=agent or runtime.agent or "",
        model=model,
        task_id=task.id,
        inputs=inputs,
        limits=build_limits(runtime),
    )
    return ChildRunStart(order=order)


def build_limits(runtime: RuntimeOptions) -> Limits:
    return Limits(
        max_turns=runtime.max_turns,
        max_cost_usd=runtime.max_cost_usd,
        on_step_failure=runtime.on_step_failure,
        max_delegation_depth=runtime.max_delegation_depth,
        delegation_share=runtime.delegation_share,
        max_children_per_call=runtime.max_children_per_call,
        on_limit=runtime.on_limit,
        delegates_together=True,
    )


async def prepare_run(
    agent: AgentInForce,
    store: Store,
    *,
    host: Host,
    folder: Path,
    commission: ChildRunStart | None,
    is_dry: bool = False,
) -> PreparedRun:
    """A run that has not begun."""
    if commission is None:
        return PreparedRun(folder=folder, agent=agent, is_dry=is_dry, host=host)
    order, inherited = commission.order, commission.inherited
    task = await _find_task(host, order, pins=inherited, store=store)
    run = PreparedRun(folder=folder, agent=agent, is_dry=is_dry, host=host, order=order, task=task, inherited=inherited)
    return replace(run, agent=apply_step(agent, run.steps)) if run.steps else run


async def restore_run(place: Host, store: Store, *, folder: Path, started: RunStarted) -> PreparedRun:
    """A run that has begun, with what it is pinned to."""
    place = replace(place, worktree=started.worktree)
    pinned = await use_pinned_settings(place, started.pins, store)
    order = started.order
    run = PreparedRun(
        folder=folder,
        agent=await use_pinned_agent(pinned, started, store),
        is_dry=started.mode == "dry_run",
        pins=started.pins,
        host=await use_pinned_host(place, started.pins, store),
        order=order,
        task=await _find_task(place, order, pins=started.pins, store=store) if order is not None else None,
    )
    return replace(run, agent=apply_step(run.agent, run.steps)) if run.steps else run


async def _find_task(
    place: Host, order: ChildRequest, *, pins: Mapping[str, str], store: Store
) -> TaskDefinition | None:
    task_id = order.task_id or order.step_of
    if not task_id:
        return None
    return await find_pinned_task(place.workspace, task_id, pins=pins, store=store) or get_task(place, task_id)
