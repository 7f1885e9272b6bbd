"""Permissions between runs: rules and tools that parents impose, and the agents and tasks a run may delegate to."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from metier.approval.judge import RUN_TASK, RulePolicy
from metier.approval.narrowed_policy import PAGES, ChainPolicy, Parent, ReadingPolicy
from metier.approval.profile import ProfilePolicy, read_profile
from metier.definitions.agent import FILE_NAME, AgentDefinition, load_agent, parse_agent
from metier.definitions.names import SKILL_PIN as SKILL
from metier.definitions.names import canonical_name, fold_id, name_capability
from metier.definitions.references import find_limit, resolve_list
from metier.definitions.task import TaskDefinition, TaskStep, load_task
from metier.engine.decide import Policy
from metier.engine.delegation import Partner, Partners, read_inputs
from metier.engine.entries.entry import parse_entry, render_entry
from metier.engine.entries.run import RunStarted
from metier.engine.entries.task import ChildRequest
from metier.runtime.records.pins import (
    AGENT,
    OUTSIDE,
    POLICY,
    TOOLS,
    TRUST,
    find_tools,
    get_outside,
    get_partners,
    get_policy,
    list_trusted,
    restore_package,
)
from metier.runtime.workspace.lookup import list_definitions
from metier.runtime.workspace.policy import DEFINITIONS, HOST_FILE, SCRIPT_TOOLS, PolicySources, build_policy
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.tasks import TASK, find_pinned_task
from metier.store.base import Store
from metier.tools.base import Tool
from metier.tools.mcp.offered_tools import ID_PREFIX
from metier.tools.toolbox import Toolbox

PARENT_PREFIX = "above:"  # stored in runs of all versions, hence the old word
"""Prefix of inherited pins: `above:0:…` for those of the parent, `above:1:…` for those of its parent."""
START = "start"
ORIGIN_PREFIX = "origin:"
"""Prefix of the pins that an imported run had on its original machine. They restrict it like those of a parent."""
_INHERITED_PINS = (POLICY, TRUST, TOOLS, OUTSIDE)


# A child has its own copy of the pins that restrict its parents. So it can be resumed, exported and replayed alone, and
# no change to files or parent runs can extend its permissions.
async def inherit_pins(started: RunStarted, order: ChildRequest, store: Store) -> dict[str, str]:
    """Return the pins that a child starts with: its task and the restrictions of its parents."""
    pins = {f"{PARENT_PREFIX}0:{START}": await store.put_blob(render_entry(started))}
    for name, digest in started.pins.items():
        if name.startswith(PARENT_PREFIX):
            number, _, rest = name.removeprefix(PARENT_PREFIX).partition(":")
            pins[f"{PARENT_PREFIX}{int(number) + 1}:{rest}"] = digest
        elif name.startswith(ORIGIN_PREFIX):
            pins[name] = digest
        elif name in _INHERITED_PINS or name.startswith((AGENT, TASK)) or _is_skill(name, order.under_skill):
            pins[f"{PARENT_PREFIX}0:{name}"] = digest
        if order.step_of and name.startswith(f"{TASK}{order.step_of}/"):
            pins[name] = digest
    return pins


async def pin_origin(started: RunStarted, store: Store) -> dict[str, str]:
    """Return the pins of an adopted run: only the restrictions that it had before."""
    pins = {name: digest for name, digest in started.pins.items() if name.startswith((PARENT_PREFIX, ORIGIN_PREFIX))}
    # The run was adopted before. The restrictions of its first host stay; its other pins are those of a host that
    # adopted it.
    if f"{ORIGIN_PREFIX}{START}" in pins:
        return pins
    selected = {
        name: digest
        for name, digest in started.pins.items()
        if name in _INHERITED_PINS or name.startswith((AGENT, SKILL))
    }
    origin = {f"{ORIGIN_PREFIX}{name}": digest for name, digest in selected.items()}
    return {**pins, **origin, f"{ORIGIN_PREFIX}{START}": await store.put_blob(render_entry(started))}


def get_inherited(pins: Mapping[str, str]) -> dict[str, str]:
    """Return the pins that a run got from its parents, its origin or its task."""
    return {name: digest for name, digest in pins.items() if name.startswith((PARENT_PREFIX, ORIGIN_PREFIX, TASK))}


async def bind(own: RulePolicy, run: PreparedRun, store: Store, *, tools: Toolbox) -> Policy:
    """Restrict the policy of the run by those of all its ancestors."""
    pins = {**run.inherited, **run.pins}
    parents: list[Parent] = []
    order = run.order
    reads_only = False
    while order is not None and f"{PARENT_PREFIX}{len(parents)}:{START}" in pins:
        selected = _select(pins, len(parents))
        started = await _read_start(selected, store)
        # The parents' rules apply to the same paths in the folder that this run works in.
        started = replace(started, worktree=run.agent.host.worktree)
        policy = await _rebuild(started, selected, store, tools=tools)
        parents.append(Parent(run=_describe(started), policy=policy, skill=order.under_skill))
        reads_only = reads_only or order.reads_only
        order = started.order
    if f"{ORIGIN_PREFIX}{START}" in pins:
        parents.append(await _bind_origin(pins, store, tools=tools))
    # Each ancestor is evaluated separately. In one merged list, a parent's `allow` would permit calls of the child.
    policy = ChainPolicy(own, parents) if parents else own
    return ReadingPolicy(policy) if reads_only else policy


async def _bind_origin(pins: Mapping[str, str], store: Store, *, tools: Toolbox) -> Parent:
    selected = {
        name.removeprefix(ORIGIN_PREFIX): digest for name, digest in pins.items() if name.startswith(ORIGIN_PREFIX)
    }
    started = await _read_start(selected, store)
    policy = await _rebuild(replace(started, order=None), selected, store, tools=tools)
    return Parent(run=f"{_describe(started)} where the run was started", policy=policy)


class ToolBounds(NamedTuple):
    """The tools that the parents of a run allow."""

    names: frozenset[str] | None = None
    """Tool names of the parent; None without a parent."""
    lists: tuple[frozenset[str], ...] = ()
    """Tool lists of all ancestors that are exhaustive."""
    called: str = ""
    """Tool of the skill that the parent's skill calls with this run."""
    reads_only: bool = False
    has_worktree: bool = False

    def has(self, tool: Tool) -> bool:
        """Return True if the child may have the tool. A child has no tool that its parent lacks.

        Tools of skills are an exception, because the parent may only lack the skill: scripts, toolsets and `impl.py`
        are restricted by the tool lists of all ancestors instead.
        """
        name = tool.info.name
        # An external server may change the workspace, even if the run works in its own worktree.
        is_outside = self.has_worktree and tool.info.id.startswith(ID_PREFIX)
        if (self.reads_only or is_outside) and tool.info.effect != "read" and name not in PAGES:
            return False
        if self.names is None or name in self.names or name == self.called:
            return True
        comes_with_skill = name in SCRIPT_TOOLS or "." in name
        return comes_with_skill and all(name in names for names in self.lists)


async def get_tool_bounds(run: PreparedRun, store: Store) -> ToolBounds:
    """Return the tool bounds of a run. Tasks are skipped: their steps have tools, they have none."""
    pins = {**run.inherited, **run.pins}
    order, number = run.order, 0
    call = order.call if order is not None else None
    reads_only = order is not None and order.reads_only
    names: frozenset[str] | None = None
    lists: list[frozenset[str]] = []
    while START in (selected := _select(pins, number)):
        started = await _read_start(selected, store)
        order, number = started.order, number + 1
        reads_only = reads_only or (order is not None and order.reads_only)
        if order is not None and order.task_id:
            continue
        # The nearest parent is enough, because its tools were bounded by its own parents.
        if names is None:
            names = frozenset(info.name for info in await find_tools(selected, store))
        if (allowed := (await _read_definitions(started, selected, store)).find_allowed_tools()) is not None:
            lists.append(allowed)
    return ToolBounds(
        names=names,
        lists=tuple(lists),
        called=name_capability(call.skill) if call is not None else "",
        reads_only=reads_only,
        has_worktree=run.agent.host.worktree is not None,
    )


def _is_skill(pin: str, skill: str) -> bool:
    return pin.startswith(SKILL) and canonical_name(pin.removeprefix(SKILL)) == canonical_name(skill)


def _select(pins: Mapping[str, str], number: int) -> dict[str, str]:
    prefix = f"{PARENT_PREFIX}{number}:"
    return {name.removeprefix(prefix): digest for name, digest in pins.items() if name.startswith(prefix)}


async def _read_start(pins: Mapping[str, str], store: Store) -> RunStarted:
    started = parse_entry(await store.get_blob(pins[START]))
    assert isinstance(started, RunStarted), "`inherit_pins` keeps nothing else under this name"
    return started


class _Definitions(NamedTuple):
    """The pinned definitions of a parent."""

    agent: AgentDefinition | None = None
    task: TaskDefinition | None = None
    step: TaskStep | None = None

    def find_allowed_tools(self) -> frozenset[str] | None:
        """Return the tools that the lists of agent, `TASK.md` and step allow; None if they allow all."""
        first = self.task.steps[0] if self.task is not None else None
        allowed: frozenset[str] | None = None
        for owner in (self.agent, first, self.step if self.step is not first else None):
            if owner is not None and (limit := find_limit(owner.tools)) is not None:
                allowed = frozenset(limit)
            elif owner is not None and allowed is not None:
                allowed = frozenset(resolve_list(owner.tools, tuple(allowed)))
        return allowed


async def _read_definitions(started: RunStarted, pins: Mapping[str, str], store: Store) -> _Definitions:
    workspace, order = Path(started.workspace), started.order
    agent = None
    if digest := pins.get(f"{AGENT}{started.agent}", ""):
        file = workspace / ".agent/agents" / started.agent / FILE_NAME
        agent = parse_agent(await store.get_blob(digest), file=file, id=started.agent).agent
    task = await find_pinned_task(workspace, order.step_of, pins=pins, store=store) if order and order.step_of else None
    step = next((s for s in task.steps if order and s.file.name == order.step_file), None) if task else None
    return _Definitions(agent, task, step)


async def _rebuild(started: RunStarted, pins: Mapping[str, str], store: Store, *, tools: Toolbox) -> RulePolicy:
    trusted = await list_trusted(pins, store)
    packages = [
        restore_package(name, await store.get_blob(digest)) for name, digest in pins.items() if name.startswith(SKILL)
    ]
    definitions = await _read_definitions(started, pins, store)
    sources = PolicySources(
        host=await get_policy(pins, store),
        agent=definitions.agent,
        task=definitions.task,
        step=definitions.step,
        trusted=lambda package: package.definition.name in trusted,
        known=None,
        withheld=trusted & {HOST_FILE, DEFINITIONS},
        outside=await get_outside(pins, store),
    )
    default = ProfilePolicy(read_profile(started.profile), tools, reading=started.reading_sandbox)
    return build_policy(packages, tools, workspace=Path(started.root), profile=default, sources=sources)


def _describe(started: RunStarted) -> str:
    order = started.order
    if order is not None and order.task_id:
        return f"task {order.task_id!r}"
    return f"agent {started.agent!r}" if started.agent else "the built-in agent"


async def choose_partners(run: PreparedRun, store: Store) -> Partners:
    """Choose the partners, pinned or from the current files. A task and a run at the maximum depth have none."""
    if run.is_planned:
        return Partners()
    if run.pins:
        return await get_partners(run.pins, store)
    lineage = run.order.lineage if run.order else ()
    if len(lineage) >= run.agent.host.settings.runtime.max_delegation_depth:
        return Partners()
    names = _list_reachable(run)
    return Partners(
        agents=_list_agents(run, lineage) if "delegate" in names else (),
        tasks=_list_tasks(run, lineage) if RUN_TASK in names else (),
    )


def _list_reachable(run: PreparedRun) -> tuple[str, ...]:
    """List the delegation tools that agent, task and step allow. A list of tasks implies `run_task`."""
    names = ("delegate", RUN_TASK)
    definition = run.agent.definition
    for owner in (definition, *run.steps) if definition else run.steps:
        chosen = resolve_list(owner.tools, names)
        names = (*chosen, RUN_TASK) if owner.tasks else chosen
    return names


def _list_agents(run: PreparedRun, lineage: tuple[str, ...]) -> tuple[Partner, ...]:
    """List the agents with a valid file, except those that wait for this run."""
    waiting = {fold_id(name) for name in (*lineage, f"agent:{run.agent.id}")}
    found: list[Partner] = []
    for each in list_definitions(run.agent.host.workspace, "agent").values():
        reading = load_agent(Path(each.path), id=each.id, within=each.within)
        if reading.agent is not None and fold_id(f"agent:{each.id}") not in waiting:
            found.append(Partner(id=each.id, name=reading.agent.name, description=reading.agent.description))
    return tuple(found)


def _list_tasks(run: PreparedRun, lineage: tuple[str, ...]) -> tuple[Partner, ...]:
    waiting = {fold_id(name) for name in lineage}
    allowed = {fold_id(name) for name in run.agent.tasks}
    found: list[Partner] = []
    for each in list_definitions(run.agent.host.workspace, "task").values():
        if fold_id(each.id) not in allowed or fold_id(f"task:{each.id}") in waiting:
            continue
        task = load_task(Path(each.path), id=each.id, within=each.within).task
        if task is not None:
            inputs = read_inputs(task)
            found.append(Partner(id=each.id, name=task.name, description=task.description, inputs=inputs))
    return tuple(found)
