"""Prompts for people: what a run would be told first, and what a run was told in each of its turns."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from metier.context.budget import FittedPrompt
from metier.context.layers import SYSTEM_LAYERS, LayerName
from metier.context.provenance import Difference, Segment, find_difference, list_segments
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem
from metier.definitions.task import FILE_NAME as TASK_FILE
from metier.definitions.task import TaskStep, load_task
from metier.engine import entries as e
from metier.engine.asking import compose
from metier.engine.fingerprints import Fingerprints
from metier.engine.journal import read_entries
from metier.engine.past_prompts import find_turns, rebuild_prompt
from metier.engine.planning import build_ranking
from metier.engine.services import Services
from metier.engine.state import RunState, apply
from metier.errors import ConfigError, UsageError
from metier.providers.base import ModelRequest
from metier.runtime.agents import resolve_agent
from metier.runtime.build import build_services
from metier.runtime.catalog import list_definitions
from metier.runtime.instructions import describe_cuts
from metier.runtime.kind import RunKind
from metier.runtime.replays import build_replay_services
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, build_start

LAYERS: tuple[LayerName, ...] = (
    *SYSTEM_LAYERS,
    "facts",
    "summary",
    "conversation",
    "task",
    "step",
    "disclosed",
    "input",
    "run",
)
_PREVIEW = "preview"
_GIVEN = "the request"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLayer:
    name: str
    source: str
    """Where its text is from: a file, the turns before, what was given."""
    source_sha256: str
    """Of the whole file it was read from; empty where there is none."""
    sha256: str
    """Of the text as it is sent."""
    bytes: int
    tokens: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPrompt:
    agent: str
    model: str
    turn: int
    layers: tuple[ShownLayer, ...]
    """Those that say something, in the order in which they are sent; first the schemas of the tools."""
    tokens: int
    limit: int
    prefix_hash: str
    request_hash: str
    recorded_hash: str = ""
    """What the journal says of the request; empty for a prompt that was not sent."""
    trimmed: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Made anew from the journal, it is what was sent, byte for byte."""
        return self.request_hash == self.recorded_hash


async def show_turn(runtime: Runtime, run_id: str, *, turn: int | None = None) -> ShownPrompt:
    """The prompt of a turn of a run, the last one where none is named. Raises `UsageError` for one it does not have."""
    entries = await read_entries(runtime.store, run_id)
    turns = find_turns(entries)
    services = await build_replay_services(runtime.place, runtime.store, entries)
    past = await rebuild_prompt(run_id, entries, services, turn=turn or (turns[-1] if turns else 1))
    shown = _show(past.state, services, past.fitted, request=past.request, task_source=_GIVEN)
    return replace(shown, turn=past.turn, recorded_hash=past.recorded_hash)


async def preview(runtime: Runtime, request: RunRequest, *, step: TaskStep | None = None) -> ShownPrompt:
    """The first prompt that a run of this request would have. Nothing is recorded or sent, no toolset is started."""
    place = runtime.place
    agent = resolve_agent(place, request.agent or place.settings.runtime.agent or "", model=request.model)
    run = RunKind(folder=runtime.folder(_PREVIEW), agent=agent, said=request.said, is_dry=True)
    async with build_services(agent.place, runtime.store, run=run) as services:
        state = RunState(_PREVIEW)
        names = tuple(package.definition.name for package in services.shelf.packages.values())
        apply(state, build_start(request, agent, services, pins={}))
        apply(state, e.CatalogLoaded(skills=names))
        apply(state, build_ranking(request.task, services))
        apply(state, e.ContextDisclosed())
        composed = await compose(state, services, disabled=services.read_access())
        source = step.file.relative_to(place.workspace).as_posix() if step else _GIVEN
        return _show(state, services, composed.fitted, request=composed.request, task_source=source)


def compare(first: ShownPrompt, second: ShownPrompt) -> Difference | None:
    """Where two prompts begin to differ."""
    return find_difference(first.segments, second.segments)


def find_first_step(workspace: Path, task_id: str) -> TaskStep:
    """`TASK.md` of a task. Raises `UsageError` for one that is not there, `ConfigError` for one that is wrong."""
    listed = list_definitions(workspace, "tasks", TASK_FILE)
    found = next((each for each in listed.values() if each.id == task_id), None)
    if found is None:
        known = sorted(each.id for each in listed.values())
        hint = hint_nearest(task_id, known) or f"There are: {', '.join(known) or 'none'}"
        raise UsageError(f"No task is called {task_id!r}", hint=hint)
    reading = load_task(Path(found.path), id=found.id)
    if reading.task is None:
        raise ConfigError(f"Task {task_id!r} cannot be used", hint="Correct the lines above", problems=reading.problems)
    return reading.task.steps[0]


def _show(
    state: RunState, services: Services, fitted: FittedPrompt, *, request: ModelRequest, task_source: str
) -> ShownPrompt:
    segments = list_segments(fitted)
    sources = _describe_sources(state, services, task_source)
    costs = {"tools": fitted.tool_schema_tokens, **fitted.layers}
    read = services.instructions.sources
    layers = [
        ShownLayer(
            name=name,
            source=sources[name],
            source_sha256=read[name].sha256 if name in read else "",
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            tokens=costs[name],
            text=data.decode("utf-8", "replace"),
        )
        for name in ("tools", *LAYERS)
        if (data := b"\n".join(segment.data for segment in segments if segment.layer == name))
    ]
    return ShownPrompt(
        agent=state.started.agent if state.started else "",
        model=request.model,
        turn=state.turn + 1,
        layers=tuple(layers),
        tokens=fitted.tokens,
        limit=services.model.max_context_tokens - services.model.response_headroom_tokens,
        prefix_hash=fitted.prefix_hash,
        request_hash=Fingerprints().of(request).hash,
        trimmed=fitted.trimmed,
        segments=segments,
        problems=describe_cuts(services.instructions),
    )


def _describe_sources(state: RunState, services: Services, task_source: str) -> dict[str, str]:
    """Where each layer is from, in words, or its file."""
    shown = len(state.candidates[: services.skills.prefilter_top_k])
    return {
        **dict.fromkeys(LAYERS, "built in"),
        "tools": f"{len(services.tools.infos())} tools, and those that steer the run",
        "catalog": f"{len(state.skills)} skills, {shown} of them with a description",
        "facts": "told in the conversation",
        "summary": "what was said long before",
        "conversation": "what was said before",
        "task": task_source,
        "step": "the step of the task",
        "disclosed": ", ".join(f"{piece.skill}:{piece.file.path}" for piece in state.pieces),
        "input": "given with the task",
        "run": f"{len(state.run)} turns before this one",
        **{name: source.file for name, source in services.instructions.sources.items()},
    }
