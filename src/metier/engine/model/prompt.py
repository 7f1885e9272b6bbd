"""Requests to the model, built from a run's state. Pure: the caller loads the blobs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace
from pydantic import JsonValue

from metier.approval.judge import RUN_TASK
from metier.context.budget import FittedPrompt, TokenBudget, fit
from metier.context.control import PLAN, build_control_specs, choose_specs
from metier.context.decoder import Decoder, Undecodable, build_decision_schema, render_protocol, repair_request
from metier.context.disclosure import render_catalog
from metier.context.layers import Disclosed, Exchange, Prompt, without_native_calls
from metier.context.operating import Subjects
from metier.context.tokens import estimate_tokens
from metier.definitions.references import find_limit
from metier.definitions.task import render_criterion
from metier.engine.entries.model import DecodeFailed
from metier.engine.entries.task import ChildRequest
from metier.engine.services import Services
from metier.engine.state.run_state import RunState, write_tool_name
from metier.engine.turn_cache import Offer
from metier.messages import Message, TextPart, ToolSpec, user
from metier.providers.base import ModelRequest
from metier.providers.offline.progress import DONE_TITLE, SCHEMA_TITLE
from metier.providers.options import OFFLINE
from metier.providers.wire import own_names

CONTROL_TOOLS = ("use_skill", "read_skill_files", "skill_search", "ask_user", "finish")
DELEGATE = "delegate"
CATALOG_TOKENS = 2_000
"""Maximum tokens of a catalog that is described completely."""
CATALOG_SHARE = 8
"""The prompt's budget divided by this is the budget for descriptions."""
SKILL_TOOLS = frozenset({"use_skill", "read_skill_files", "skill_search"})


def asks_for_json(services: Services) -> bool:
    """Return True if the settings want JSON, or the endpoint is known to support no tools."""
    mode = services.model.structured_output_mode
    if mode == "native_with_json_fallback":
        return services.features.is_unsupported("tools", services.model.name)
    return mode == "json"


def get_offer(state: RunState, services: Services, *, disabled: frozenset[str], is_json: bool | None = None) -> Offer:
    """Return the offered tools; the same object while they don't change. A run without skills has no skill tools."""
    has_skills = bool(state.skills)
    hidden = list_hidden(state.skill, services)
    mode = services.model.structured_output_mode
    if is_json is None:
        is_json = mode == "json"
    key = (has_skills, disabled, hidden, is_json)
    if key not in services.cache.offers:
        control = services.instructions.control or build_control_specs()
        subjects = Subjects(tools=services.tools.names())
        names = [name for name in CONTROL_TOOLS if has_skills or name not in SKILL_TOOLS]
        steering = choose_specs(control, [*names, PLAN] if subjects.can_plan else names)
        all_specs = (*steering, *services.partners.specs(control), *services.tools.specs())
        tools = tuple(spec for spec in all_specs if spec.name not in disabled and spec.name not in hidden)
        other_names = _list_other_names(tools, services) if state.has_current_call_rules else None
        decoder = Decoder(
            tools,
            mode="json" if is_json else mode,
            other_names=other_names,
            unwraps_finish=state.call_rules >= 3,
            write_name=partial(write_tool_name, call_rules=state.call_rules, is_json=is_json),
        )
        services.cache.offers[key] = Offer(tools, decoder, render_protocol(tools) if is_json else "")
    return services.cache.offers[key]


def _list_other_names(tools: Sequence[ToolSpec], services: Services) -> dict[str, str]:
    """Map other accepted names of the offered tools to their own: short names and wire names."""
    offered = {spec.name for spec in tools}
    short = {alias: name for alias, name in services.tools.aliases().items() if name in offered}
    return {**own_names(offered), **short}


def list_hidden(skill: str, services: Services) -> frozenset[str]:
    """List the tools of the run that the skill in charge leaves out."""
    package = services.skill_index.find(skill) if skill else None
    if package is None:
        return frozenset()
    hidden = {RUN_TASK} if find_limit(package.definition.tasks) == () else set[str]()
    limit = find_limit(package.definition.tools)
    if limit is not None:
        known = {DELEGATE, *(info.name for info in services.tools.infos())}
        hidden |= known - services.tools.resolve(limit)
    return frozenset(hidden)


def list_described(state: RunState, services: Services) -> list[str]:
    """List the skills that the catalog describes, candidates first; it only names the others.

    A catalog whose descriptions fit their share of the prompt is described completely, in the order of the ranking:
    omitting a description would save little and could hide the right skill.
    """
    limit = services.skills.prefilter_top_k
    ranked = [candidate.skill_name for candidate in state.candidates]
    known = set(ranked)
    everything = [*ranked, *(name for name in state.skills if name not in known)]
    is_whole = len(state.skills) <= limit or _fits_catalog(everything, services)
    return everything if is_whole else ranked[:limit]


def _fits_catalog(names: Sequence[str], services: Services) -> bool:
    left = min(CATALOG_TOKENS, get_budget(services).limit // CATALOG_SHARE)
    for name in names:
        # One by one: a catalog of thousands exceeds the budget after a few dozen.
        left -= estimate_tokens(render_catalog(services.skill_index.describe([name]), ()))
        if left < 0:
            return False
    return True


def build_catalog(state: RunState, services: Services) -> str:
    """Build the catalog of skills for the model, while none is in charge; empty if there is none."""
    shown = list_described(state, services)
    others = [name for name in state.skills if name not in shown]
    return render_catalog(services.skill_index.describe(shown), others) if state.skills else ""


def build_prompt(state: RunState, services: Services, texts: Mapping[str, str]) -> Prompt:
    """Build every layer of this turn. `texts` are the disclosed pieces by digest."""
    # The cache key: all state that the prompt is built from, except the history, which grows every turn.
    parts = (
        state.started,
        state.skill,
        state.skills,
        tuple(state.candidates),
        tuple(state.pieces),
        state.new_pieces,
        state.earlier,
        tuple(state.hooks.context),
    )
    stable = services.cache.prompts.prompts.get(parts, lambda: _build_stable(state, services, texts))
    return replace(stable, run=(*state.run, *_repair_exchange(state)))


def _build_stable(state: RunState, services: Services, texts: Mapping[str, str]) -> Prompt:
    assert state.started is not None
    disclosed = tuple(
        Disclosed(
            skill=piece.skill,
            path=piece.file.path,
            stage=piece.stage,
            text=texts[piece.digest],
            digest=piece.digest,
            is_new=piece.digest in state.new_pieces,
        )
        for piece in state.pieces
    )
    order = state.started.order
    begun = services.instructions.begin(order.brief if order and order.brief else state.started.task)
    return replace(
        begun,
        step=render_step(order) if order else begun.step,
        catalog=build_catalog(state, services),
        disclosed=disclosed,
        environment=state.started.environment,
        input=render_input(state.started.extra_context, order.inputs if order else {}, hooks=state.hooks.context),
        attachments=state.started.attachments,
        earlier=state.earlier,
        skill=state.skill,
    )


def render_input(piped: str, inputs: Mapping[str, str], *, hooks: Sequence[str] = ()) -> str:
    """Render the inputs of a task as JSON, then piped input, then hooks' texts."""
    written = f"```json\n{json.dumps(dict(inputs), ensure_ascii=False, indent=2)}\n```" if inputs else ""
    return "\n\n".join(piece for piece in (written, piped, *hooks) if piece)


def render_step(order: ChildRequest) -> str:
    """Render the step of a larger task, with the checks of its result."""
    pieces = [order.task] if order.brief else []
    if order.criteria:
        pieces.append(DONE_TITLE + "\n".join(f"- {render_criterion(criterion)}" for criterion in order.criteria))
    if order.output_schema is not None:
        schema = json.dumps(order.output_schema, ensure_ascii=False)
        pieces.append(f"{SCHEMA_TITLE}{schema}")
    return "\n\n".join(pieces)


class Asking(NamedTuple):
    """The format in which a decision is requested in this turn."""

    disabled: frozenset[str] = frozenset()
    is_json: bool = False
    prompt_limit: int | None = None
    """Maximum tokens, if the provider rejected a larger prompt."""


def fit_request(
    prompt: Prompt, state: RunState, services: Services, *, factor: float, asking: Asking
) -> tuple[FittedPrompt, ModelRequest]:
    """Return the request that fits the budget. Raises `PromptTooLarge`."""
    offer = get_offer(state, services, disabled=asking.disabled, is_json=asking.is_json)
    if asking.is_json:
        # Earlier turns may have native calls, which an endpoint without tools rejects.
        prompt = replace(prompt, protocol=offer.protocol, run=tuple(without_native_calls(each) for each in prompt.run))
    tools = () if asking.is_json else offer.tools
    fitted = fit(
        prompt,
        tools=tools,
        budget=get_budget(services, prompt_limit=asking.prompt_limit),
        counter=services.counter,
        factor=factor,
        memory=services.cache.prompts,
    )
    model = state.started.model if state.started else services.model.name
    request = ModelRequest(
        model=model,
        messages=fitted.messages,
        system=fitted.system,
        tools=tools,
        max_tokens=services.model.max_tokens,
        temperature=services.model.temperature,
        response_schema=_find_response_schema(state, services, offer=offer, model=model, is_json=asking.is_json),
        timeout_seconds=services.model.timeout_seconds,
    )
    return fitted, request


def _find_response_schema(
    state: RunState, services: Services, *, offer: Offer, model: str, is_json: bool
) -> dict[str, JsonValue] | None:
    """Return the schema of the reply: the decision in JSON mode, otherwise the requested result.

    Servers other than the vendor's own may stop calling tools if there is a schema. They only get it in the turn that
    corrects a result, when the work is done.
    """
    if is_json:
        return (
            None if services.features.is_unsupported("response_schema", model) else build_decision_schema(offer.tools)
        )
    order = state.started.order if state.started else None
    schema = order.output_schema if order else None
    if schema is None or services.provider.name == OFFLINE:
        return None
    is_wanted = services.enforces_schema or state.unaccepted is not None
    return (
        schema
        if is_wanted and not services.features.is_unsupported("response_schema", name_schema(model, schema))
        else None
    )


def name_schema(model: str, schema: dict[str, JsonValue]) -> str:
    """Build the key under which an unsupported schema is remembered: endpoints may reject one and accept another."""
    return f"{model} {hashlib.sha256(json.dumps(schema).encode()).hexdigest()[:16]}"


def get_budget(services: Services, *, prompt_limit: int | None = None) -> TokenBudget:
    """Return the budget of the settings, or a smaller one if the provider rejected a prompt."""
    headroom, window = services.model.response_headroom_tokens, services.model.max_context_tokens
    window = window if prompt_limit is None else min(window, prompt_limit + headroom)
    return TokenBudget(max_context_tokens=window, response_headroom_tokens=headroom)


def _repair_exchange(state: RunState) -> tuple[Exchange, ...]:
    """Build an exchange of the rejected reply and its problems."""
    if state.repair is None or state.reply is None:
        return ()
    text = "".join(part.text for part in state.reply.parts if isinstance(part, TextPart)).strip()
    # Only its text: vendors expect a result for every call, and the calls of this reply were never run.
    reply = Message(role="assistant", parts=(TextPart(text=text or "(nothing)"),))
    request = repair_request(_undecodable(state.repair), is_json=bool(state.is_json))
    return (Exchange(reply=reply, results=(user(request),)),)


def _undecodable(failed: DecodeFailed) -> Undecodable:
    reasons = {"refusal", "truncated", "empty", "invalid_json", "invalid_decision"}
    assert failed.reason in reasons
    return Undecodable(reason=failed.reason, message=failed.message, can_repair=failed.repair)  # pyright: ignore[reportArgumentType]
