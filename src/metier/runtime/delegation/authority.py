"""What binds a run that works for another one: the rules and tools of every run above it, pinned with the run itself.

A child carries what bound its parents, so that it can be resumed, exported and replayed on its own, and so that nothing
that happens to the files or to the runs above can widen what it may do.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from metier.approval.chain import Above, ChainPolicy
from metier.approval.judge import RulePolicy
from metier.approval.reading import PAGES, ReadingPolicy
from metier.definitions.agent import FILE_NAME, parse_agent
from metier.definitions.names import SKILL_PIN as SKILL
from metier.definitions.names import canonical_name
from metier.engine.decide import Policy
from metier.engine.entries import ChildRequest, RunStarted, parse_entry, render_entry
from metier.runtime.records.pins import (
    AGENT,
    POLICY,
    TOOLS,
    TRUST,
    find_policy,
    find_tools,
    find_trusted,
    restore_package,
)
from metier.runtime.workspace.policy import DEFINITIONS, HOST_FILE, SCRIPT_TOOLS, Speakers, build_policy
from metier.runtime.workspace.prepared_run import PreparedRun
from metier.runtime.workspace.tasks import TASK, find_pinned_task
from metier.skills.package import SkillPackage
from metier.store.base import Store
from metier.tools.base import Tool
from metier.tools.mcp.listing import ID_PREFIX
from metier.tools.toolbox import Toolbox

ABOVE = "above:"
"""`above:0:…` is what the run that ordered this one is pinned to, `above:1:…` that of the one above it."""
START = "start"
ORIGIN = "origin:"
"""What a run was pinned to where it was started, if that was not here: a bound, like that of a run above."""
_KEPT = (POLICY, TRUST, TOOLS)


async def hand_down(started: RunStarted, order: ChildRequest, store: Store) -> dict[str, str]:
    """The pins that a child begins with: what its task is, and what binds it."""
    pins = {f"{ABOVE}0:{START}": await store.put_blob(render_entry(started))}
    for name, digest in started.pins.items():
        if name.startswith(ABOVE):
            number, _, rest = name.removeprefix(ABOVE).partition(":")
            pins[f"{ABOVE}{int(number) + 1}:{rest}"] = digest
        elif name.startswith(ORIGIN):
            pins[name] = digest
        elif name in _KEPT or name.startswith((AGENT, TASK)) or _is_skill(name, order.under_skill):
            pins[f"{ABOVE}0:{name}"] = digest
        if order.step_of and name.startswith(f"{TASK}{order.step_of}/"):
            pins[name] = digest
    return pins


async def keep_origin(started: RunStarted, store: Store) -> dict[str, str]:
    """The pins of a run that is adopted: what bound it before, as bounds and nothing else."""
    pins = {name: digest for name, digest in started.pins.items() if name.startswith((ABOVE, ORIGIN))}
    if f"{ORIGIN}{START}" in pins:
        return pins
    kept = {name: digest for name, digest in started.pins.items() if name in _KEPT or name.startswith((AGENT, SKILL))}
    origin = {f"{ORIGIN}{name}": digest for name, digest in kept.items()}
    return {**pins, **origin, f"{ORIGIN}{START}": await store.put_blob(render_entry(started))}


def find_inherited(pins: Mapping[str, str]) -> dict[str, str]:
    """The pins of a run that it did not choose itself."""
    return {name: digest for name, digest in pins.items() if name.startswith((ABOVE, ORIGIN, TASK))}


async def bind(own: RulePolicy, run: PreparedRun, store: Store, *, tools: Toolbox) -> Policy:
    """The policy of the run, and above it that of every run it works for."""
    pins = {**run.inherited, **run.pins}
    above: list[Above] = []
    order = run.order
    reads_only = False
    while order is not None and f"{ABOVE}{len(above)}:{START}" in pins:
        kept = _select(pins, len(above))
        started = await _read_start(kept, store)
        # The rules of the runs above hold for the same paths in the folder that this run works in.
        started = started.model_copy(update={"worktree": run.agent.place.worktree})
        policy = await _rebuild(started, kept, store, tools=tools)
        above.append(Above(run=_describe(started), policy=policy, skill=order.under_skill))
        reads_only = reads_only or order.reads_only
        order = started.order
    if f"{ORIGIN}{START}" in pins:
        above.append(await _bind_origin(pins, store, tools=tools))
    policy = ChainPolicy(own, above) if above else own
    return ReadingPolicy(policy) if reads_only else policy


async def _bind_origin(pins: Mapping[str, str], store: Store, *, tools: Toolbox) -> Above:
    kept = {name.removeprefix(ORIGIN): digest for name, digest in pins.items() if name.startswith(ORIGIN)}
    started = await _read_start(kept, store)
    policy = await _rebuild(started.model_copy(update={"order": None}), kept, store, tools=tools)
    return Above(run=f"{_describe(started)} where the run was started", policy=policy)


class ToolBounds(NamedTuple):
    """Which tools the runs above leave."""

    names: frozenset[str] | None = None
    """Those of the run above; None where there is none."""
    reads_only: bool = False
    has_worktree: bool = False

    def has(self, tool: Tool) -> bool:
        """A child has no tool that its parent has not; those that a skill brings come with the skill."""
        name = tool.info.name
        # A server outside the sandbox works in the workspace, whatever folder the run works in.
        is_outside = self.has_worktree and tool.info.id.startswith(ID_PREFIX)
        if (self.reads_only or is_outside) and tool.info.effect != "read" and name not in PAGES:
            return False
        return self.names is None or name in self.names or name in SCRIPT_TOOLS or "." in name


async def find_tool_bounds(run: PreparedRun, store: Store) -> ToolBounds:
    """A task has no tools of its own, its steps have."""
    pins = {**run.inherited, **run.pins}
    order, number = run.order, 0
    reads_only = order is not None and order.reads_only
    names: frozenset[str] | None = None
    while START in (kept := _select(pins, number)):
        started = await _read_start(kept, store)
        order, number = started.order, number + 1
        reads_only = reads_only or (order is not None and order.reads_only)
        if names is None and (order is None or not order.task_id):
            names = frozenset(info.name for info in await find_tools(kept, store))
    return ToolBounds(names, reads_only, run.agent.place.worktree is not None)


def _is_skill(pin: str, skill: str) -> bool:
    return pin.startswith(SKILL) and canonical_name(pin.removeprefix(SKILL)) == canonical_name(skill)


def _select(pins: Mapping[str, str], number: int) -> dict[str, str]:
    prefix = f"{ABOVE}{number}:"
    return {name.removeprefix(prefix): digest for name, digest in pins.items() if name.startswith(prefix)}


async def _read_start(pins: Mapping[str, str], store: Store) -> RunStarted:
    started = parse_entry(await store.get_blob(pins[START]))
    assert isinstance(started, RunStarted), "`hand_down` keeps nothing else under this name"
    return started


async def _rebuild(started: RunStarted, pins: Mapping[str, str], store: Store, *, tools: Toolbox) -> RulePolicy:
    workspace = Path(started.workspace)
    trusted = await find_trusted(pins, store)
    packages = [await _read_skill(name, digest, store) for name, digest in pins.items() if name.startswith(SKILL)]
    agent = None
    if digest := pins.get(f"{AGENT}{started.agent}", ""):
        file = workspace / ".agent/agents" / started.agent / FILE_NAME
        agent = parse_agent(await store.get_blob(digest), file=file, id=started.agent).agent
    order = started.order
    task = await find_pinned_task(workspace, order.step_of, pins=pins, store=store) if order and order.step_of else None
    step = next((s for s in task.steps if order and s.file.name == order.step_file), None) if task else None
    speakers = Speakers(
        host=await find_policy(pins, store),
        agent=agent,
        task=task,
        step=step,
        trusted=lambda package: package.definition.name in trusted,
        known=None,
        withheld=trusted & {HOST_FILE, DEFINITIONS},
    )
    profile = "guarded" if started.profile == "guarded" else "strict" if started.profile == "strict" else "permissive"
    return build_policy(packages, tools, workspace=Path(started.root), profile=profile, speakers=speakers)


async def _read_skill(name: str, digest: str, store: Store) -> SkillPackage:
    return restore_package(name, await store.get_blob(digest))


def _describe(started: RunStarted) -> str:
    order = started.order
    if order is not None and order.task_id:
        return f"task {order.task_id!r}"
    return f"agent {started.agent!r}" if started.agent else "the built-in agent"
