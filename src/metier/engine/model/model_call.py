"""One turn with the model: the request is recorded and sent, then its reply is recorded and decoded."""

import dataclasses
import json
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs
from pydantic import JsonValue

from metier.approval.judge import describe_unlisted
from metier.context.budget import FittedPrompt, fit_exactly
from metier.context.decoder import Decoded, RejectedCall, Undecodable
from metier.decisions import ActionStep, answers_in_json, write_failure
from metier.definitions.names import canonical_name
from metier.definitions.skills.skill_names import hint_skill
from metier.engine.actions import CallModel
from metier.engine.decide import describe_disabled
from metier.engine.entries.model import DecisionMade, DecodeFailed, ModelCallStarted, ModelReplied, Rejection
from metier.engine.entries.question import UserMessageAdded
from metier.engine.entries.run import RunFailed, RunPaused
from metier.engine.journal import RunLog
from metier.engine.model.dry_run_reply import answer_dry_run
from metier.engine.model.media import load_media
from metier.engine.model.prompt import (
    Asking,
    asks_for_json,
    build_prompt,
    fit_request,
    get_budget,
    get_offer,
    list_hidden,
    name_schema,
)
from metier.engine.services import Services
from metier.engine.state.run_state import RunState
from metier.engine.trace_spans import MODEL
from metier.engine.turn_cache import Fingerprint
from metier.errors import ConfigError, PromptTooLarge, ProviderError
from metier.events.model import PromptBudgetComputed, PromptComposed, StructuredOutputFallback
from metier.messages import ModelReply, TextPart
from metier.providers.base import ModelRequest, get_server
from metier.providers.facts import reply_cost
from metier.providers.failures import CallFailed, ContextTooLong, SchemaUnsupported, ToolsUnsupported
from metier.providers.feature_support import Feature
from metier.providers.retry import RetryPolicy, Turn, reply_with_retries
from metier.providers.wire import own_names
from metier.telemetry.excerpt import one_line
from metier.values import dump_fields, dump_value

QUOTED_CHARACTERS = 300
_DEBUG_FOLDER = "llm"
"""Folder of a run for whole requests and replies."""


async def call_model(action: CallModel, log: RunLog, services: Services) -> None:
    """Call the model and record its reply. After a crash before the reply is recorded, the request is repeated."""
    try:
        disabled = services.read_access()
    except ConfigError as error:
        # Permissions are unknown: pause the run, neither continue nor fail it.
        await log.record(RunPaused(pause="explicit", reason=f"{error.message}: {error.hint}"))
        return
    await _add_messages(action, log, services)
    asking = Asking(disabled, asks_for_json(services), log.state.prompt_limit)
    if asking.is_json and action.turn == 1 and services.model.structured_output_mode != "json":
        log.emit(_describe_fallback("tools", action.turn, services))
    try:
        await _ask(action, log, services, asking=asking)
    except ToolsUnsupported as failure:
        # From now on, this and later runs request decisions in JSON.
        services.features.mark_unsupported("tools", services.model.name)
        log.emit(_describe_fallback("tools", action.turn, services, failure=failure))
        await _ask(action, log, services, asking=asking._replace(is_json=True))


async def _add_messages(action: CallModel, log: RunLog, services: Services) -> None:
    """Record messages that the user sent since the last request."""
    # A repeated request must not change, and before the first turn there is nothing to steer: the messages wait.
    if services.inbox is None or action.repair or log.state.call is not None or not log.state.run:
        return
    pending = services.inbox.list_pending()
    new = [each for each in pending if each.message_id not in log.state.message_ids]
    if new:
        added = [UserMessageAdded(message_id=each.message_id, text=each.text, sent_by=each.sent_by) for each in new]
        # Durable before the queue forgets them: after a crash in between, the ID shows that they are here.
        await log.record(*added)
    if pending:
        await services.inbox.mark_taken([each.message_id for each in pending])


async def _ask(action: CallModel, log: RunLog, services: Services, *, asking: Asking) -> None:
    """Send the request. If it is too long, send it again with half of the prompt. Raises `ToolsUnsupported`."""
    try:
        await _ask_once(action, log, services, asking=asking)
    except ContextTooLong as failure:
        sent = log.state.call.estimated_tokens if log.state.call is not None else 0
        # Half of the prompt, because the provider does not report its limit.
        smaller = asking._replace(prompt_limit=int(sent * log.state.factor) // 2)
        await _ask_once(action, log, services, asking=smaller, refused=failure)


async def _ask_once(
    action: CallModel, log: RunLog, services: Services, *, asking: Asking, refused: ContextTooLong | None = None
) -> None:
    """Send one request. `refused` is the provider's error for a longer one.

    Raises `ToolsUnsupported` if JSON may be requested instead, `ContextTooLong` if a smaller prompt may be tried.
    """
    try:
        fitted, request, counted = await compose(log.state, services, asking=asking)
    except PromptTooLarge as error:
        failed = RunFailed(reason="prompt_too_large", message=error.message, status="escalated")
        if refused is not None:
            failed = RunFailed(reason=refused.reason, message=refused.sentence)
        await log.record(failed)
        return
    # The hash lets a replay prove that it composes the same request.
    fingerprint = services.cache.fingerprints.of(request)
    _emit_prompt_events(action.turn, fitted, fingerprint, log=log, services=services)
    server = get_server(services.provider)
    intent = ModelCallStarted(
        turn=action.turn,
        request_hash=fingerprint.hash,
        prefix_hash=fitted.prefix_hash,
        estimated_tokens=fitted.estimated,
        counted_tokens=counted,
        repair=action.repair,
        disabled_tools=tuple(sorted(asking.disabled)),
        trims=fitted.trims,
        prompt_limit=asking.prompt_limit if refused is not None else None,
        is_json=asking.is_json,
        server_address=server.host,
        server_port=server.port,
    )
    await log.record(intent)
    _save_body(action, request, services)
    if log.state.is_dry_run:
        reply = answer_dry_run(log.state, services, fitted=fitted, request=request)
        await log.record(ModelReplied(turn=action.turn, reply=reply))
        return
    started = services.clock.monotonic()
    try:
        reply = await _reply(request, log, services, turn=action.turn)
    except CallFailed as failure:
        can_fall_back = services.model.structured_output_mode == "native_with_json_fallback" and not asking.is_json
        if isinstance(failure, ToolsUnsupported) and can_fall_back:
            raise
        # With a limit, the prompt was made smaller before. It is not halved again and again.
        if isinstance(failure, ContextTooLong) and asking.prompt_limit is None:
            raise
        await log.record(RunFailed(reason=failure.reason, message=failure.sentence))
        return
    _save_body(action, reply, services)
    latency = round((services.clock.monotonic() - started) * 1000, 3)
    # Prices change, so the cost is recorded with the reply.
    price = reply_cost(reply, requested=request.model, facts=services.facts)
    await log.record(ModelReplied(turn=action.turn, reply=reply, cost_usd=price, latency_ms=latency))


async def _reply(request: ModelRequest, log: RunLog, services: Services, *, turn: int) -> ModelReply:
    """Send the request, and again without its schema if the server supports none; the prompt describes it in words."""
    if context := log.get_context(MODEL):
        request = replace(request, trace_parent=context)
    try:
        return await reply_with_retries(services.provider, request, _turn(turn, log, services))
    except SchemaUnsupported as failure:
        if request.response_schema is None:
            raise
        # Without tools, the decision schema was rejected, so the model supports none. A result schema may itself be the
        # problem, so only this one is remembered.
        lacking = name_schema(request.model, request.response_schema) if request.tools else request.model
        services.features.mark_unsupported("response_schema", lacking)
        log.emit(_describe_fallback("response_schema", turn, services, failure=failure))
        plain = replace(request, response_schema=None)
        return await reply_with_retries(services.provider, plain, _turn(turn, log, services))


def _describe_fallback(
    feature: Feature, turn: int, services: Services, *, failure: CallFailed | None = None
) -> StructuredOutputFallback:
    return StructuredOutputFallback(
        turn=turn,
        provider=services.provider.name,
        model=services.model.name,
        lacks=feature,
        message=failure.message if failure else "",
        remembered=failure is None,
    )


class Composed(NamedTuple):
    fitted: FittedPrompt
    request: ModelRequest
    counted: int | None
    """Tokens as the provider counted them, if it was asked."""


async def compose(state: RunState, services: Services, *, asking: Asking) -> Composed:
    """Compose the request of this turn, counted by the provider if the estimate is close to the limit."""
    texts = {piece.digest: await _piece_text(piece.digest, services) for piece in state.pieces}
    prompt = build_prompt(state, services, texts)
    fitted, request = fit_request(prompt, state, services, factor=state.factor, asking=asking)
    request = await load_media(request, services.store, services.cache.media)
    budget = get_budget(services, prompt_limit=asking.prompt_limit)
    counted: int | None = None

    async def count(asked: ModelRequest) -> int | None:
        nonlocal counted
        # Many gateways have no endpoint to count tokens: then the estimate is used.
        with suppress(ProviderError):
            counted = await services.provider.count_tokens(asked)
        return counted

    factor = await fit_exactly(fitted, request=request, budget=budget, count=count)
    if factor is None:
        return Composed(fitted, request, counted)
    # The larger factor, because a provider that counts fewer tokens than it bills must not undo what was learned.
    fitted, smaller = fit_request(prompt, state, services, factor=max(factor, state.factor), asking=asking)
    return Composed(fitted, await load_media(smaller, services.store, services.cache.media), counted)


async def decode(log: RunLog, services: Services) -> None:
    """Record the decoded reply, or that it is invalid and whether the model may correct it."""
    state = log.state
    assert state.reply is not None
    offer = get_offer(state, services, disabled=state.disabled, is_json=state.is_json)
    outcome = offer.decoder.decode(state.reply)
    if isinstance(outcome, Decoded):
        outcome = _check_skill(outcome, state, services)
    if isinstance(outcome, Undecodable):
        can_repair = outcome.can_repair and state.repair is None
        message = outcome.message if can_repair else f"{outcome.message}{_quote_reply(state.reply)}"
        failed = DecodeFailed(turn=state.turn, reason=outcome.reason, message=message, repair=can_repair)
        await log.record(failed)
        return
    path = "repaired" if state.repair is not None and outcome.path == "json" else outcome.path
    rejected = tuple(_reject(no, state, services) for no in outcome.rejected)
    # Inferred: decoding the recorded reply again gives the same decision.
    log.infer(DecisionMade(turn=state.turn, decision=outcome.decision, path=path, rejected=rejected))


def _reject(no: RejectedCall, state: RunState, services: Services) -> Rejection:
    code, message = no.code, no.message
    called = no.tool
    if state.call_rules >= 4:
        # The model writes wire names; a tool that was not offered keeps the name as written.
        called = own_names(services.tools.names()).get(called, called)
    tool = services.tools.find(called) if state.has_current_call_rules else None
    name = tool.info.name if tool is not None else called
    if name in state.disabled:
        code, message = "disabled_tool", describe_disabled(state.write_tool_name(name))
    elif name in list_hidden(state.skill, services):
        code, message = "unlisted_tool", describe_unlisted(state.write_tool_name(name), "tools", skill=state.skill)
    text = write_failure(code, message) if state.has_current_call_rules or answers_in_json(name) else ""
    return Rejection(call_id=no.call_id, tool=no.tool, code=code, message=message, text=text)


def _quote_reply(reply: ModelReply) -> str:
    """Quote the start of a reply for the user who reads why the run failed."""
    quote = one_line("".join(part.text for part in reply.parts if isinstance(part, TextPart)), QUOTED_CHARACTERS)
    return f"; the model replied: {quote}" if quote else ""


def _check_skill(outcome: Decoded, state: RunState, services: Services) -> Decoded | Undecodable:
    """Reject unknown skills with the nearest names, like unknown tools.

    A JSON decision that selects an unknown skill has no call to answer, so the whole decision is rejected.
    """
    chosen = outcome.decision.selected_skill
    if outcome.path == "json" and chosen and services.skill_index.find(chosen) is None:
        message = _describe_unknown_skill(chosen, services)
        return Undecodable(reason="invalid_decision", message=message, can_repair=True)
    steps: list[ActionStep] = []
    rejected = list(outcome.rejected)
    for step in outcome.decision.planned_actions:
        name = str(step.params.get("skill", ""))
        if step.type != "call_skill" or services.skill_index.find(name) is not None:
            steps.append(_name_skill(step, name, services) if step.type == "call_skill" else step)
            continue
        message = _describe_unknown_skill(name, services)
        rejected.append(RejectedCall(call_id=step.call_id, tool="use_skill", code="unknown_tool", message=message))
    selected = outcome.decision.selected_skill
    if selected is not None:
        selected = _get_own_name(selected, services) if _may_select(selected, state, services) else None
    decision = outcome.decision
    if steps != list(decision.planned_actions) or selected != decision.selected_skill:
        decision = structs.replace(decision, planned_actions=tuple(steps), selected_skill=selected)
    return Decoded(decision=decision, path=outcome.path, rejected=tuple(rejected))


def _describe_unknown_skill(name: str, services: Services) -> str:
    hint = hint_skill(name, services.skill_index.packages) or "skill_search finds skills by words"
    return f"There is no skill {name!r}. {hint}"


def _name_skill(step: ActionStep, name: str, services: Services) -> ActionStep:
    """Replace a skill's ID by its name, which rules and records use."""
    own = _get_own_name(name, services)
    return step if own == name else structs.replace(step, params={**step.params, "skill": own})


def _get_own_name(name: str, services: Services) -> str:
    package = services.skill_index.find(name)
    is_same = package is None or canonical_name(package.definition.name) == canonical_name(name)
    return name if package is None or is_same else package.definition.name


def _may_select(skill: str, state: RunState, services: Services) -> bool:
    """Return True if a JSON decision may select the skill: the same rules apply as to a call."""
    wanted = ActionStep(type="call_skill", params={"skill": skill})
    is_there = services.skill_index.find(skill) is not None
    return is_there and services.policy.judge(wanted, skill=state.skill).decision != "deny"


async def _piece_text(digest: str, services: Services) -> str:
    if digest not in services.cache.texts:
        services.cache.texts[digest] = (await services.store.get_blob(digest)).decode("utf-8", "surrogatepass")
    return services.cache.texts[digest]


def _turn(number: int, log: RunLog, services: Services) -> Turn:
    policy = RetryPolicy(
        max_retries=services.runtime.max_llm_retries,
        base_delay_seconds=services.runtime.retry_base_delay_seconds,
        max_delay_seconds=services.runtime.retry_max_delay_seconds,
    )
    return Turn(
        number=number,
        emit=log.emit,
        policy=policy,
        facts=services.facts,
        observe=services.observe,
        fallbacks=services.fallbacks,
        seams=services.seams,
    )


def _emit_prompt_events(
    turn: int, fitted: FittedPrompt, fingerprint: Fingerprint, *, log: RunLog, services: Services
) -> None:
    log.emit(
        PromptBudgetComputed(
            turn=turn,
            max_context_tokens=services.model.max_context_tokens,
            response_headroom_tokens=services.model.response_headroom_tokens,
            allocated_prompt_tokens=fitted.tokens,
            allocated_disclosure_tokens=fitted.layers.get("disclosed", 0),
            layers=fitted.layers,
            tool_schema_tokens=fitted.tool_schema_tokens,
            counted_by="provider" if fitted.is_close else "estimate",
            trimmed=fitted.trimmed,
        )
    )
    log.emit(
        PromptComposed(
            turn=turn,
            messages=len(fitted.messages),
            tools=len(fitted.tools),
            bytes=fingerprint.bytes,
            prefix_hash=fitted.prefix_hash,
            request_hash=fingerprint.hash,
        )
    )


def dump_request(request: ModelRequest) -> JsonValue:
    """Dump a request without the bytes of its media, which messages refer to by hash."""
    names = [each.name for each in dataclasses.fields(request) if each.name != "media"]
    return {name: dump_value(getattr(request, name)) for name in names}


def _save_body(action: CallModel, body: ModelRequest | ModelReply, services: Services) -> None:
    """Save a whole request or reply for debugging, if the settings ask for it."""
    if services.redact_body is None:
        return
    kind, dumped = ("request", dump_request(body)) if isinstance(body, ModelRequest) else ("reply", dump_fields(body))
    folder = services.run_folder / _DEBUG_FOLDER
    # Bodies contain everything that the model reads and writes.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(services.redact_body(dumped), ensure_ascii=False, indent=2) + "\n"
    # A turn has a second request if the first reply could not be decoded.
    name = f"turn-{action.turn}{'-repair' if action.repair else ''}.{kind}.json"
    # Models write lone surrogates, which UTF-8 can't encode.
    (folder / name).write_text(text, encoding="utf-8", errors="replace")
