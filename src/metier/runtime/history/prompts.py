"""Prompts for display: the first prompt of a future run, and those of a run's turns."""

import hashlib
from collections.abc import Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from metier.context.budget import FittedPrompt
from metier.context.layers import SYSTEM_LAYERS, LayerName
from metier.context.provenance import Difference, Segment, find_difference, list_segments
from metier.definitions.problems import Problem
from metier.engine.decide import get_read_denial
from metier.engine.entries.skill import CatalogLoaded, ContextDisclosed
from metier.engine.journal import read_entries
from metier.engine.model.model_call import compose
from metier.engine.model.past_prompts import list_turns, rebuild_prompt
from metier.engine.model.prompt import Asking, asks_for_json, list_described
from metier.engine.model.skill_selection import build_ranking
from metier.engine.services import Services
from metier.engine.state.fold import apply, fold
from metier.engine.state.run_state import RunState
from metier.engine.turn_cache import Fingerprints
from metier.errors import UsageError
from metier.providers.base import ModelRequest
from metier.providers.facts import Prices
from metier.runtime.build import build_services
from metier.runtime.child_runs import prepare_run
from metier.runtime.history.replays import build_replay_services
from metier.runtime.model_providers import load_host_facts
from metier.runtime.requests import RunRequest
from metier.runtime.run_start import build_start
from metier.runtime.runs import Runtime
from metier.runtime.workspace.agents import resolve_agent
from metier.runtime.workspace.instructions import describe_truncation, load_project

LAYERS: tuple[LayerName, ...] = (
    *SYSTEM_LAYERS,
    "facts",
    "summary",
    "conversation",
    "task",
    "step",
    "environment",
    "disclosed",
    "input",
    "run",
)
_PREVIEW = "preview"
_GIVEN = "the request"


class ShownLayer(Struct, frozen=True, kw_only=True):
    name: str
    source: str
    """Origin of the text: a file, earlier turns, or the input."""
    source_sha256: str
    """Hash of the whole source file; empty if there is none."""
    sha256: str
    """Hash of the sent text."""
    bytes: int
    tokens: int
    text: str


class ShownPrompt(Struct, frozen=True, kw_only=True):
    agent: str
    model: str
    turn: int
    layers: tuple[ShownLayer, ...]
    """Layers with content, in the order in which they are sent, starting with the tool schemas."""
    tokens: int
    limit: int
    prefix_hash: str
    request_hash: str
    prices: Prices | None = None
    """Prices of the requested model, if known."""
    recorded_hash: str = ""
    """The journal's hash of the request; empty for a prompt that was not sent."""
    trimmed: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Return True if the rebuilt request has the recorded hash."""
        return self.request_hash == self.recorded_hash


async def show_turn(runtime: Runtime, run_id: str, *, turn: int | None = None) -> ShownPrompt:
    """Return the prompt of a turn, the last one by default. Raises `UsageError` for an unknown turn."""
    entries = await read_entries(runtime.store, run_id)
    turns = list_turns(entries)
    if not turns and (children := fold(run_id, entries).children):
        names = ", ".join(child.run_id for child in children)
        raise UsageError(
            f"No model was asked in run {run_id!r}: its steps are runs of their own", hint=f"Show one of them: {names}"
        )
    services = await build_replay_services(runtime.host, runtime.store, entries)
    past = await rebuild_prompt(run_id, entries, services, turn=turn or (turns[-1] if turns else 1))
    shown = _show(past.state, services, past.fitted, request=past.request, files=())
    known = load_host_facts(runtime.host).get(services.provider.name, shown.model)
    return replace(shown, turn=past.turn, recorded_hash=past.recorded_hash, prices=known.prices)


async def preview(runtime: Runtime, request: RunRequest) -> ShownPrompt:
    """Return the first prompt of a run with this request. Nothing is recorded, sent or started."""
    host = runtime.host
    wanted = request.agent if request.order is not None else request.agent or host.settings.runtime.agent or ""
    agent = resolve_agent(host, wanted, model=request.model)
    folder = runtime.folder(_PREVIEW)
    # A dry run opens no connection and starts neither toolsets nor servers.
    run = await prepare_run(agent, runtime.store, host=host, folder=folder, request=replace(request, mode="dry_run"))
    async with build_services(run.agent.host, runtime.store, run=run) as services:
        state = RunState(_PREVIEW)
        names = tuple(package.definition.name for package in services.skill_index.packages.values())
        # Without pins, which would have to be stored.
        apply(state, await build_start(request, run, services, pins={}))
        apply(state, CatalogLoaded(skills=names))
        near = await services.skill_index.get_similar(request.task)
        apply(state, build_ranking(request.task, services, similar=near.ranked))
        # Nothing is disclosed before the first request, because no skill is in charge yet.
        apply(state, ContextDisclosed())
        asking = Asking(services.read_access(), asks_for_json(services))
        composed = await compose(state, services, asking=asking)
        files = [step.file.relative_to(host.workspace).as_posix() for step in run.steps]
        shown = _show(state, services, composed.fitted, request=composed.request, files=files)
        problems = (
            problem
            for file in load_project(host, deny=partial(get_read_denial, services.policy))
            for problem in file.problems
        )
        return replace(shown, problems=(*shown.problems, *problems))


def compare(first: ShownPrompt, second: ShownPrompt) -> Difference | None:
    """Return the first difference of two prompts, or None."""
    return find_difference(first.segments, second.segments)


def _show(
    state: RunState, services: Services, fitted: FittedPrompt, *, request: ModelRequest, files: Sequence[str]
) -> ShownPrompt:
    """Build the shown prompt; `files` are the task's `TASK.md` and, if different, the file of the step."""
    segments = list_segments(fitted)
    sources = _describe_sources(state, services, files)
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
        problems=describe_truncation(services.instructions),
    )


def _describe_sources(state: RunState, services: Services, files: Sequence[str]) -> dict[str, str]:
    """Describe the origin of each layer, or name its file."""
    shown = len(list_described(state, services))
    return {
        **dict.fromkeys(LAYERS, "built in"),
        "tools": f"{len(services.tools.infos())} tools and the control tools",
        "catalog": f"{len(state.skills)} skills, {shown} of them with a description",
        "facts": "facts of the conversation",
        "summary": "summary of earlier messages",
        "conversation": "earlier messages",
        "task": files[0] if files else _GIVEN,
        "step": files[-1] if files else "the step of the task",
        "environment": "date, system and workspace at the start",
        "disclosed": ", ".join(f"{piece.skill}:{piece.file.path}" for piece in state.pieces),
        "input": "given with the task",
        "run": f"{len(state.run)} turns before this one",
        **{name: source.file for name, source in services.instructions.sources.items()},
    }
