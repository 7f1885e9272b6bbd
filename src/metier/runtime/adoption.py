"""Adoption of a run that was not started in this store: imported, or in a copied folder of runs.

Its history is evidence, not authority. Settings, rules, profile, provider, keys and definitions are those of this host
as they are now; what the run was pinned to elsewhere can only narrow that.
"""

import secrets
from pathlib import Path

from msgspec.structs import replace

from metier.engine.entries.limits import Limits
from metier.engine.entries.run import RunAdopted, RunStarted
from metier.engine.services import Services
from metier.errors import UsageError
from metier.providers.options import OFFLINE
from metier.runtime.child_runs import build_limits
from metier.runtime.delegation.authority import keep_origin
from metier.runtime.host import Host
from metier.runtime.records.pins import HOST, SETTINGS, find_instructions
from metier.runtime.requests import RunRequest
from metier.runtime.workspace.agents import AgentInForce, resolve_agent
from metier.runtime.workspace.instructions import Said
from metier.runtime.workspace.prepared_run import PreparedRun, choose_hooks
from metier.runtime.workspace.tasks import apply_step, get_task
from metier.store.base import Store


async def adopt_run(host: Host, store: Store, *, folder: Path, started: RunStarted) -> PreparedRun:
    """Return the run with this host's definitions. Raises `UsageError` if its agent or task is missing here."""
    return await build_foreign_run(resolve_agent(host, started.agent), store, folder=folder, started=started)


async def build_foreign_run(agent: AgentInForce, store: Store, *, folder: Path, started: RunStarted) -> PreparedRun:
    """Build the adopted run with an agent of this host that was resolved before."""
    if started.worktree is not None:
        raise UsageError(
            f"Run {folder.name!r} works in a worktree of the host that it was started on",
            hint="Go on with it there, or look at it with `agent runs show`",
        )
    order = started.order
    task_id = (order.task_id or order.step_of) if order is not None else ""
    run = PreparedRun(
        folder=folder,
        agent=agent,
        said=await find_said(started, store),
        is_dry=started.mode == "dry_run",
        host=agent.host,
        order=order,
        task=get_task(agent.host, task_id) if task_id else None,
        inherited=await keep_origin(started, store),
        is_foreign=True,
    )
    _check_step(run)
    return replace(run, agent=apply_step(run.agent, run.steps)) if run.steps else run


def build_adoption(started: RunStarted, services: Services, *, run: PreparedRun, pins: dict[str, str]) -> RunAdopted:
    """Build the entry from which the run belongs to this store."""
    agent, provider = run.agent, services.provider.name
    return RunAdopted(
        provider=provider,
        model=agent.model.name if provider != OFFLINE else OFFLINE,
        profile=agent.profile,
        sandbox=services.sandbox,
        reading_sandbox=services.reading_sandbox,
        workspace=str(agent.host.workspace),
        limits=narrow_limits(build_limits(agent.host.settings.runtime), started.limits),
        pins=pins,
        hooks=choose_hooks(run),
        nonce=secrets.token_hex(8),
        tells_begun=True,
    )


def narrow_limits(own: Limits, brought: Limits) -> Limits:
    """Return the smaller of both limits."""
    costs = [limits.max_cost_usd for limits in (own, brought) if limits.max_cost_usd is not None]
    return replace(
        own,
        max_turns=min(own.max_turns, brought.max_turns),
        max_cost_usd=min(costs, default=None),
        max_repeated_calls=min(own.max_repeated_calls, brought.max_repeated_calls),
        max_delegation_depth=min(own.max_delegation_depth, brought.max_delegation_depth),
        delegation_share=min(own.delegation_share, brought.delegation_share),
        max_children_per_call=min(own.max_children_per_call, brought.max_children_per_call),
    )


def check_inherited(request: RunRequest, parent: RunStarted | None) -> RunRequest:
    """Drop settings and pins from the request of a child that its parent did not give it."""
    request = replace(request, parent_worktree=parent.worktree if parent is not None else None)
    given = (parent.pins.get(HOST) or parent.pins.get(SETTINGS, "")) if parent is not None else ""
    if request.settings_digest == given and (parent is not None or not request.inherited_pins):
        return request
    return replace(request, settings_digest="", inherited_pins={})


async def find_said(started: RunStarted, store: Store) -> Said | None:
    """Return the run's extra input, if any."""
    instructions = await find_instructions(started.pins, store)
    if instructions is None:
        return None
    return Said(
        facts=instructions.facts,
        summary=instructions.summary,
        conversation=instructions.conversation,
        step=instructions.step,
    )


def _check_step(run: PreparedRun) -> None:
    wanted = run.order.step_file if run.order is not None else ""
    if run.task is not None and wanted and all(step.file.name != wanted for step in run.task.steps):
        raise UsageError(
            f"Task {run.task.id!r} has no step {wanted!r} here",
            hint="The run was started elsewhere, so it needs the same task in this workspace",
        )
