"""Forks: new runs that share the first entries of another run and continue with the current files."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.approval.profile import read_profile
from metier.engine.entries.entry import Entry
from metier.engine.entries.question import ApprovalAsked, ApprovalDecided
from metier.engine.entries.run import RunStarted
from metier.engine.execution.approval_requests import build_approval_id
from metier.engine.journal import read_entries, store_entries
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.errors import UsageError
from metier.providers.model_names import parse_model_name, qualify_model_name
from metier.runtime.build import build_services
from metier.runtime.child_runs import restore_run
from metier.runtime.delegation.authority import get_inherited
from metier.runtime.driver import UNATTENDED, DriveOptions
from metier.runtime.history.replays import get_start, list_changed
from metier.runtime.host import Host
from metier.runtime.records.pins import CODE, INSTRUCTIONS, POLICY, TOOLS, pin
from metier.runtime.records.record import build_row
from metier.runtime.records.signatures import is_started_here, seal
from metier.runtime.run_start import build_adoption, build_foreign_run, find_extra_input
from metier.runtime.runs import Runtime
from metier.runtime.workspace.agents import ResolvedAgent, get_stricter, resolve_agent
from metier.runtime.workspace.prepared_run import PreparedRun, choose_hooks
from metier.runtime.workspace.tasks import apply_step
from metier.store.base import Store

_UNSETTLED = frozenset({"running", "in_doubt", "asking"})


class Point(Struct, frozen=True, kw_only=True):
    """A point in a journal where a run can be forked, after entry `number` of this `kind`."""

    number: int
    kind: str
    turn: int
    phase: str


class ForkRequest(Struct, frozen=True, kw_only=True):
    at: int
    model: str = ""
    provider: str = ""
    task: str = ""


class Fork(Struct, frozen=True, kw_only=True):
    state: RunState
    changed: tuple[str, ...]
    """Differences from the parent: definitions, instructions, tools, model, provider, task."""


def find_points(run_id: str, entries: Sequence[Entry]) -> tuple[Point, ...]:
    """List the points at which a run can be forked: no step is running and no answer is pending."""
    state = RunState(run_id)
    points: list[Point] = []
    for number, entry in enumerate(entries, start=1):
        apply(state, entry)
        if can_fork(state):
            points.append(Point(number=number, kind=entry.kind, turn=state.turn, phase=state.phase))
    return tuple(points)


async def fork_run(runtime: Runtime, run_id: str, request: ForkRequest, *, watch: DriveOptions = UNATTENDED) -> Fork:
    """Create the new run and drive it. Raises `UsageError` if the run can't be forked at this entry."""
    entries = await read_entries(runtime.store, run_id)
    started = get_start(run_id, entries)
    _check_point(request.at, find_points(run_id, entries), run_id=run_id, most=len(entries))
    is_own = is_started_here(runtime.host, run_id, entries)
    agent = _resolve(runtime.host, started, request, is_own=is_own)
    forking = Runtime(agent.host, runtime.store)
    now = forking.host.clock.now()
    new_id = forking.host.ids.run_id(now)
    prepare = _prepare if is_own else build_foreign_run
    run = await prepare(agent, runtime.store, folder=forking.folder(new_id), started=started)
    beginning, adopted = await _build_start(forking, started, request, parent=run_id, run=run)
    # One transaction with all shared entries: a crash leaves no fork, or a complete one.
    taken = [beginning, *_adapt(entries[1 : request.at], new_id), *adopted]
    # Without a lease, which `resume` acquires. A fork that a crash leaves here can be resumed like any run.
    await forking.store.create_run(build_row(new_id, *taken, now=now), store_entries(taken))
    changed = (*list_changed(started, agent), *_changed_words(started, beginning))
    return Fork(state=await forking.resume(new_id, options=watch), changed=changed)


async def _prepare(agent: ResolvedAgent, store: Store, *, folder: Path, started: RunStarted) -> PreparedRun:
    restored = await restore_run(agent.host, store, folder=folder, started=started)
    return replace(
        restored,
        agent=apply_step(agent, restored.steps) if restored.steps else agent,
        extra_input=await find_extra_input(started, store),
        pins={},
        inherited=get_inherited(started.pins),
    )


def can_fork(state: RunState) -> bool:
    if state.phase in ("INIT", "DONE", "ERROR") or state.pause is not None or state.call is not None:
        return False
    return state.question is None and not state.aborted and not any(step.phase in _UNSETTLED for step in state.steps)


def _check_point(number: int, points: Sequence[Point], *, run_id: str, most: int) -> None:
    numbers = [point.number for point in points]
    if number in numbers:
        return
    before = max((found for found in numbers if found < number), default=None)
    after = min((found for found in numbers if found > number), default=None)
    nearest = " or ".join(str(found) for found in (before, after) if found is not None)
    why = "something is under way or awaited there, or it has ended" if number <= most else f"it has only {most}"
    raise UsageError(
        f"The run cannot be forked at entry {number}: {why}",
        hint=f"Fork at {nearest}; `agent fork {run_id}` lists every point" if nearest else "",
    )


def _resolve(host: Host, started: RunStarted, request: ForkRequest, *, is_own: bool) -> ResolvedAgent:
    """Resolve the current agent and settings, with the parent's model unless another one is requested.

    The model of a parent from elsewhere is not used, because an imported journal must not choose the provider.
    """
    # The parent may have been started with `--profile guarded`. The fork must not do unasked what the user denied.
    host = host.with_runtime(profile=get_stricter(host.settings.runtime.profile, read_profile(started.profile)))
    if not (is_own or request.provider or request.model):
        return resolve_agent(host, started.agent)
    model = host.settings.model
    provider = request.provider or (model.provider if host.provider else started.provider)
    name = request.model or (model.name if request.provider else started.model)
    is_routed = bool(request.model) and not request.provider
    wanted = name if is_routed else qualify_model_name(name, provider=provider)
    chosen = parse_model_name(wanted, provider=provider)
    changed = type(model).model_validate({**model.model_dump(), "provider": chosen.provider, "name": chosen.model})
    forking = replace(host, settings=host.settings.model_copy(update={"model": changed}))
    return resolve_agent(forking, started.agent, model="" if request.provider and not request.model else str(chosen))


async def _build_start(
    runtime: Runtime, started: RunStarted, request: ForkRequest, *, parent: str, run: PreparedRun
) -> tuple[RunStarted, list[Entry]]:
    """Return the first entry, and an adoption entry if the parent was not started in this store."""
    host, new_id = runtime.host, run.folder.name
    async with build_services(host, runtime.store, run=run) as services:
        pins = await pin(services, run)
        provider = services.provider.name
        adopted = [build_adoption(started, services, run=run, pins=pins)] if run.is_foreign else []
    beginning = replace(
        started,
        task=request.task or started.task,
        provider=provider,
        profile=run.agent.profile,
        model=host.settings.model.name if provider != "offline" else "offline",
        # Not the parent's: the fork would appear as a turn of its conversation.
        context_id=new_id,
        trace_id=hashlib.sha256(new_id.encode()).hexdigest()[:32],
        parent_run_id=parent,
        forked_at=request.at,
        workspace=str(host.workspace),
        pins=pins,
        hooks=choose_hooks(run),
        started_at=host.clock.now().isoformat(),
    )
    return seal(beginning, host, new_id), [seal(entry, host, new_id) for entry in adopted]


def _adapt(entries: Sequence[Entry], new_id: str) -> list[Entry]:
    """Give approvals an ID of the new run, because an approval belongs to one run. Decisions stay."""
    adapted: list[Entry] = []
    times_asked: dict[str, int] = {}
    for entry in entries:
        if not isinstance(entry, ApprovalAsked | ApprovalDecided):
            adapted.append(entry)
            continue
        if isinstance(entry, ApprovalAsked):
            times_asked[entry.step_id] = times_asked.get(entry.step_id, -1) + 1
        approval_id = build_approval_id(new_id, entry.step_id, times_asked=times_asked[entry.step_id])
        adapted.append(replace(entry, approval_id=approval_id))
    return adapted


def _changed_words(before: RunStarted, after: RunStarted) -> list[str]:
    names = ("provider", "model", "task")
    words = [name for name in names if getattr(before, name) != getattr(after, name)]
    code = [name for name, tree in after.pins.items() if name.startswith(CODE) and before.pins.get(name, tree) != tree]
    return [
        *code,
        *(name for name in (INSTRUCTIONS, TOOLS, POLICY) if before.pins.get(name) != after.pins.get(name)),
        *words,
    ]
