"""Whom a run may hand work to: the agents of the workspace, and the tasks that its agent may run."""

from collections.abc import Mapping
from pathlib import Path

from metier.approval.judge import RUN_TASK
from metier.definitions.agent import FILE_NAME, load_agent
from metier.definitions.files.walk import FoundDefinition
from metier.definitions.ids import fold_id
from metier.definitions.inherit import resolve_list
from metier.definitions.task import FILE_NAME as TASK_FILE
from metier.definitions.task import load_task
from metier.engine.delegation.partners import Partner, Partners, read_inputs
from metier.runtime.records.pins import find_partners
from metier.runtime.workspace.listed import list_definitions
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.store.base import Store


async def choose_partners(run: PreparedRun, store: Store) -> Partners:
    """As pinned, or as the files stand now. None where a task decides, or where the depth of delegation is reached."""
    if run.is_planned:
        return Partners()
    if run.pins:
        return await find_partners(run.pins, store)
    lineage = run.order.lineage if run.order else ()
    if len(lineage) >= run.agent.place.settings.runtime.max_delegation_depth:
        return Partners()
    names = _find_reachable(run)
    return Partners(
        agents=_list_agents(run, lineage) if "delegate" in names else (),
        tasks=_list_tasks(run, lineage) if RUN_TASK in names else (),
    )


def _find_reachable(run: PreparedRun) -> tuple[str, ...]:
    """Which of the two tools the lists of agent, task and step leave; a list of tasks asks for theirs."""
    names = ("delegate", RUN_TASK)
    definition = run.agent.definition
    for owner in (definition, *run.steps) if definition else run.steps:
        chosen = resolve_list(owner.tools, names)
        names = (*chosen, RUN_TASK) if owner.tasks else chosen
    return names


def _list_agents(run: PreparedRun, lineage: tuple[str, ...]) -> tuple[Partner, ...]:
    """All that can be read, but those that wait for this run."""
    waiting = {fold_id(name) for name in (*lineage, f"agent:{run.agent.id}")}
    found: list[Partner] = []
    for each in _sorted(list_definitions(run.agent.place.workspace, "agents", FILE_NAME)):
        reading = load_agent(Path(each.path), id=each.id, within=each.within)
        if reading.agent is not None and fold_id(f"agent:{each.id}") not in waiting:
            found.append(Partner(id=each.id, name=reading.agent.name, description=reading.agent.description))
    return tuple(found)


def _list_tasks(run: PreparedRun, lineage: tuple[str, ...]) -> tuple[Partner, ...]:
    waiting = {fold_id(name) for name in lineage}
    allowed = {fold_id(name) for name in run.agent.tasks}
    found: list[Partner] = []
    for each in _sorted(list_definitions(run.agent.place.workspace, "tasks", TASK_FILE)):
        if fold_id(each.id) not in allowed or fold_id(f"task:{each.id}") in waiting:
            continue
        task = load_task(Path(each.path), id=each.id, within=each.within).task
        if task is not None:
            inputs = read_inputs(task)
            found.append(Partner(id=each.id, name=task.name, description=task.description, inputs=inputs))
    return tuple(found)


def _sorted(listed: Mapping[str, FoundDefinition]) -> list[FoundDefinition]:
    return sorted(listed.values(), key=lambda found: found.id)
