"""Steps whose effect is a child run. The intent names the child, then this run waits until it has ended.

The driver of this run drives the children and then calls `record_children_end`.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.decisions import ActionStep, SkillCall
from metier.definitions.files.whole_file import replace_file
from metier.definitions.names import name_capability
from metier.definitions.nearest import hint_nearest
from metier.engine import actions as a
from metier.engine.delegation import (
    build_agent_request,
    build_child_id,
    build_step_request,
    build_task_request,
    fill_inputs,
    get_arguments,
    wait_for,
)
from metier.engine.entries.entry import Entry
from metier.engine.entries.run import RunFailed, RunPaused, RunResumed
from metier.engine.entries.step import StepFinished
from metier.engine.entries.task import CallPlanned, ChildEnded, ChildRequest, ChildRequested, PlannedStep, TaskPlanned
from metier.engine.execution.step_execution import build_finished, build_intent
from metier.engine.journal import RunLog
from metier.engine.services import Services
from metier.engine.state.run_state import RunState
from metier.engine.state.steps import Step
from metier.tools.base import ToolResult
from metier.tools.files.snapshots import Unavailable
from metier.tools.process.sandbox.confinement import ARTIFACTS


async def plan_task(log: RunLog, services: Services) -> None:
    order = log.state.started.order if log.state.started else None
    if order is not None and order.call is not None:
        await _plan_call(order.call, log, services)
        return
    task = services.task
    assert task is not None, "a run that a task plans is given the task"
    # The agent of steps that name none, in a task that names none: the caller's choice, else the default.
    agent = (order.agent if order else "") or services.runtime.agent or ""
    steps = tuple(
        PlannedStep(file=step.file.name, name=step.name, agent=step.agent or task.agent or agent) for step in task.steps
    )
    await log.record(TaskPlanned(steps=steps))


async def _plan_call(call: SkillCall, log: RunLog, services: Services) -> None:
    """Plan the call. A skill that is hidden from the run can't be called through another one."""
    if services.tools.find(name_capability(call.skill)) is None:
        message = f"Skill {call.skill!r} cannot be called here: it is not active, or the agent's tools leave it out"
        await log.record(RunFailed(reason="skill_not_callable", message=message))
        return
    params: dict[str, JsonValue] = {"skill": call.skill, "inputs": call.inputs}
    await log.record(CallPlanned(action=ActionStep(type="call_skill", params=params)))


async def delegate(action: a.Delegate, log: RunLog, services: Services) -> None:
    """Delegate steps. Intents, requests and the pause are one write, so a crash leaves all of them or none."""
    entries: list[Entry] = []
    children: list[str] = []
    steps = [log.state.step(step_id) for step_id in (action.step_id, *action.also)]
    for step in steps:
        intent = build_intent(step, log, services)
        siblings = [other for other in steps if other is not step]
        order = _build_request(step, log.state, services, siblings=siblings)
        if isinstance(order, str):
            refused = StepFinished(
                step_id=step.step_id, status="failed", text=order, is_error=True, error_type="invalid_input"
            )
            entries += [intent, refused]
            continue
        # With the attempt: a retried step gets a new child, a step that is repeated after a crash the same one.
        child = build_child_id(intent.idempotency_key, intent.attempt)
        entries += [intent, ChildRequested(step_id=step.step_id, child_run_id=child, order=order)]
        children.append(child)
    await log.record(*entries, *([wait_for(*children)] if children else []))


async def await_child(log: RunLog) -> None:
    open_steps = list_open_delegations(log.state)
    await log.record(wait_for(*(request.child_run_id for _, request in open_steps)))


async def stop_at_step(action: a.StopAtStep, log: RunLog) -> None:
    await log.record(RunPaused(pause="step_failed", reason=action.reason))


async def record_children_end(log: RunLog, services: Services, children: Sequence[RunState]) -> None:
    """Record the results of child runs as those of their steps, in one write with their cost.

    They are written in the order of the requests, not of the ends, so that the journal is deterministic. `children`
    are those of `list_open_delegations`, in its order.
    """
    disabled = tuple(sorted(services.read_access()))
    ends = ", ".join(f"Run {child.run_id} is {child.status}" for child in children)
    resumed = RunResumed(reason=ends, driver=log.lease.owner, disabled_tools=disabled)
    pairs = list(zip(list_open_delegations(log.state), children, strict=True))
    # All ends before all results: a hook that follows a result must find every child ended.
    ended = [_build_end(request, child) for (_, request), child in pairs]
    finished = [
        await _build_result_entry(step, child, state=log.state, services=services)
        for (step, request), child in pairs
        if request.order.call is None or child.started is None
    ]
    await log.record(resumed, *ended, *finished)


def _build_end(request: ChildRequested, child: RunState) -> ChildEnded:
    return ChildEnded(
        step_id=request.step_id,
        child_run_id=child.run_id,
        status=child.status,
        turns=child.total_turns,
        cost_usd=child.cost_usd,
        input_tokens=child.input_tokens,
        output_tokens=child.output_tokens,
    )


async def _build_result_entry(step: Step, child: RunState, *, state: RunState, services: Services) -> StepFinished:
    """Build the result of the step; a skill that called another one is called again and finds the result.

    A child that never started has no result. The skill would delegate again, so its step fails instead.
    """
    name, _ = name_call(step.action)
    result = _build_result(child)
    if step.delegated is not None and step.delegated.order.worktree:
        result = await offer_changes(result, child, services)
    finished = await build_finished(step, name, result, duration_ms=0, services=services)
    return replace(finished, counts_as_failure=True) if state.plan and not result.ok else finished


def list_open_delegations(state: RunState) -> list[tuple[Step, ChildRequested]]:
    """List the steps that child runs work on now, with their requests, in order."""
    return [(step, step.delegated) for step in state.steps if step.phase == "running" and step.delegated is not None]


def _build_request(step: Step, state: RunState, services: Services, *, siblings: Sequence[Step]) -> ChildRequest | str:
    """Build the request for a child run, or return why it is rejected."""
    if state.plan:
        assert services.task is not None
        return build_step_request(state, step, services.task)
    if step.action.type == "delegate":
        wanted = str(step.action.params.get("agent", ""))
        agent = services.partners.find_agent(wanted)
        if agent is None:
            return f"There is no agent {wanted!r}. {hint_nearest(wanted, [a.id for a in services.partners.agents])}"
        order = build_agent_request(state, step.action, siblings=[other.action for other in siblings])
        return replace(order, agent=agent.id)
    return _build_task_request(step, state, services)


def _build_task_request(step: Step, state: RunState, services: Services) -> ChildRequest | str:
    arguments = get_arguments(step.action)
    wanted = str(arguments.get("task", ""))
    task = services.partners.find_task(wanted)
    if task is None:
        return f"There is no task {wanted!r}. {hint_nearest(wanted, [t.id for t in services.partners.tasks])}"
    given = arguments.get("inputs")
    inputs, wrong = fill_inputs(task.inputs, given if isinstance(given, dict) else {})
    if wrong:
        return f"Task {task.id!r} cannot be run: {'; '.join(wrong)}"
    return build_task_request(state, task_id=task.id, text=task.name or task.id, inputs=inputs)


def _build_result(child: RunState) -> ToolResult:
    if child.status == "completed":
        return ToolResult(ok=True, output=child.result)
    failure = child.failure
    why = f"{failure.message} ({failure.reason})" if failure else child.status
    return ToolResult(ok=False, error=why, meta={"code": "child_failed", "run_id": child.run_id})


async def offer_changes(result: ToolResult, child: RunState, services: Services) -> ToolResult:
    """Append the diff of the child's worktree to the result, and save it as an artifact of this run."""
    tree = child.started.worktree if child.started is not None else None
    if tree is None or services.worktrees is None:
        return result
    try:
        diff = await services.worktrees.read(child.run_id, tree)
    except Unavailable as why:
        return _add(result, f"[Its changes cannot be shown: {why}. They are in {tree.path}]")
    if not diff:
        return _add(result, "[It changed no files]")
    file = save_changes(services.run_folder, child.run_id, diff)
    path = file.relative_to(services.workspace) if file.is_relative_to(services.workspace) else file
    note = (
        "[What it changed is not in the workspace. To have it there, make the same changes, or run"
        f" `git apply {path}`]\n{diff.decode('utf-8', 'replace')}"
    )
    artifact = {"path": str(file), "sha256": hashlib.sha256(diff).hexdigest(), "bytes": len(diff)}
    return replace(_add(result, note), meta={**result.meta, "artifacts": [artifact]})


def save_changes(folder: Path, child_run_id: str, diff: bytes) -> Path:
    """Save the diff as an artifact of the parent run, and return its path."""
    # Named after the child: if a crash repeats this, the same file is replaced.
    file = folder / ARTIFACTS / f"{child_run_id}.diff"
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, diff)
    return file


def _add(result: ToolResult, note: str) -> ToolResult:
    if result.ok:
        return replace(result, output=f"{result.output}\n\n{note}")
    return replace(result, error=f"{result.error}\n\n{note}")
