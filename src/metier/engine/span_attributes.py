"""Span attributes from the entries that open and close spans. Pure; names are those of `telemetry.otel.names`.

Nothing that a user, a model or a tool wrote is among them, unless content is asked for.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import JsonValue

from metier.approval.judge import name_call
from metier.decisions import ActionStep
from metier.engine.entries.model import ModelCallStarted, ModelReplied
from metier.engine.entries.question import ApprovalAsked, InputAsked
from metier.engine.entries.run import RunFailed, RunFinished, RunStarted
from metier.engine.entries.skill import CatalogLoaded
from metier.engine.entries.step import StepFinished, StepStarted
from metier.messages import ModelReply, TextPart, ToolCallPart
from metier.providers.facts import find_cost
from metier.telemetry.otel import names
from metier.telemetry.otel.span import AttributeValue

type Attributes = dict[str, AttributeValue]
BUILT_IN_AGENT = "metier"
_MCP_SEPARATOR = "/"
_SKILL_STATUS = {"succeeded": "success", "timeout": "timeout"}
_MAX_NAMES = 128
"""Maximum number of skill names on one span; backends truncate long lists."""


class Fresh(NamedTuple):
    """A message that the next request shows the model for the first time."""

    role: str
    text: str
    call_id: str = ""


@dataclass(slots=True)
class Totals:
    """Cost of the run itself: child runs have spans of their own and are not counted twice."""

    turns: int = 0
    resumes: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cost_usd: float = 0.0

    def add(self, entry: ModelReplied) -> None:
        usage = entry.reply.usage
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        self.cache_read_tokens += usage.cache_read_tokens
        self.cost_usd += entry.cost_usd


def name_run(started: RunStarted) -> Attributes:
    """Name the run: task definitions and called skills are workflows, everything else is an agent."""
    order = started.order
    workflow = (order.task_id or (order.call.skill if order.call is not None else "")) if order is not None else ""
    agent = started.agent or BUILT_IN_AGENT
    named: Attributes = (
        {names.OPERATION: names.INVOKE_WORKFLOW, names.WORKFLOW_NAME: workflow}
        if workflow
        else {names.OPERATION: names.INVOKE_AGENT, names.AGENT_NAME: agent, names.AGENT_ID: agent}
    )
    known: Attributes = {
        **named,
        names.PROVIDER: names.name_provider(started.provider),
        names.REQUEST_MODEL: started.model,
        names.CONVERSATION_ID: started.context_id,
        names.RUN_MODE: started.mode,
        names.RUN_PROFILE: started.profile,
    }
    return {**known, names.PARENT_RUN_ID: started.parent_run_id} if started.parent_run_id else known


def describe_run_end(
    started: RunStarted, entry: RunFinished | RunFailed, totals: Totals, *, with_content: bool
) -> Attributes:
    known: Attributes = {
        names.RUN_STATUS: entry.status if isinstance(entry, RunFailed) else "completed",
        names.RUN_TURNS: totals.turns,
        names.RUN_RESUMES: totals.resumes,
        names.INPUT_TOKENS: totals.input_tokens,
        names.OUTPUT_TOKENS: totals.output_tokens,
        names.CACHE_READ_TOKENS: totals.cache_read_tokens,
        **_describe_cost(totals.cost_usd, tokens=totals.input_tokens + totals.output_tokens),
    }
    if with_content:
        known[names.INPUT_MESSAGES] = _render([_message("user", [_text(started.task)])])
        known[names.OUTPUT_MESSAGES] = _render([_message("assistant", [_text(entry.result)])])
    return known


def _describe_cost(cost: float, *, tokens: int) -> Attributes:
    """Describe the cost; empty if a price is unknown."""
    return {} if find_cost(cost, tokens=tokens) is None else {names.COST_USD: round(cost, 9)}


def describe_model_call(started: RunStarted, entry: ModelCallStarted) -> Attributes:
    return {
        names.OPERATION: names.CHAT,
        names.PROVIDER: names.name_provider(started.provider),
        names.REQUEST_MODEL: started.model,
        names.CONVERSATION_ID: started.context_id,
        names.TURN: entry.turn,
    }


def describe_reply(entry: ModelReplied, fresh: Sequence[Fresh] | None) -> Attributes:
    """Describe the reply; `fresh` is the new content of the request, None if content is not wanted."""
    reply, usage = entry.reply, entry.reply.usage
    known: Attributes = {
        names.PROVIDER: names.name_provider(reply.provider),
        names.RESPONSE_MODEL: reply.model,
        names.FINISH_REASONS: (reply.stop_reason,),
        names.INPUT_TOKENS: usage.input_tokens,
        names.OUTPUT_TOKENS: usage.output_tokens,
        **_describe_cost(entry.cost_usd, tokens=usage.input_tokens + usage.output_tokens),
    }
    for name, value in (
        (names.RESPONSE_ID, reply.response_id),
        (names.CACHE_READ_TOKENS, usage.cache_read_tokens),
        (names.CACHE_WRITE_TOKENS, usage.cache_write_tokens),
        (names.REASONING_TOKENS, usage.reasoning_tokens),
    ):
        if value:
            known[name] = value
    if fresh is not None:
        known[names.INPUT_MESSAGES] = _render([_message(each.role, [_part(each)]) for each in fresh])
        known[names.OUTPUT_MESSAGES] = _render([_render_reply(reply)])
    return known


def describe_action(action: ActionStep, step_id: str) -> Attributes:
    tool, _ = name_call(action)
    known: Attributes = {
        names.OPERATION: names.EXECUTE_TOOL,
        names.TOOL_NAME: tool,
        names.TOOL_TYPE: "extension" if _MCP_SEPARATOR in tool else "function",
        names.STEP_ID: step_id,
    }
    return {**known, names.TOOL_CALL_ID: action.call_id} if action.call_id else known


def describe_step(entry: StepStarted, *, with_content: bool) -> Attributes:
    known = describe_action(entry.action, entry.step_id)
    known[names.STEP_EFFECT] = entry.effect
    if entry.verdict:
        known[names.STEP_VERDICT] = entry.verdict
    if entry.attempt > 1:
        known[names.STEP_ATTEMPT] = entry.attempt
    if with_content:
        known[names.TOOL_ARGUMENTS] = json.dumps(name_call(entry.action)[1], ensure_ascii=False)
    return known


def describe_result(entry: StepFinished, *, with_content: bool) -> Attributes:
    known: Attributes = {names.STEP_STATUS: entry.status}
    if entry.skill_name:
        known[names.SKILL] = entry.skill_name
    if entry.exit_code is not None:
        known |= _describe_process(entry)
    if with_content:
        known[names.TOOL_RESULT] = entry.text
    return known


def describe_script(entry: StepFinished) -> Attributes:
    """Describe duration, bytes and outcome of a script's process."""
    return {
        names.OPERATION: names.RUN_SCRIPT,
        names.SCRIPT: f"{entry.skill_name}/{entry.script}",
        names.SKILL: entry.skill_name,
        names.STEP_ID: entry.step_id,
        names.STEP_STATUS: entry.status,
        names.DURATION_MS: entry.duration_ms,
        **_describe_process(entry),
        names.SKILL_NAME: entry.skill_name,
        names.SKILL_SCRIPT: entry.script,
        names.SKILL_DURATION_MS: entry.duration_ms,
        names.SKILL_STATUS: _SKILL_STATUS.get(entry.status, "error"),
        names.SKILL_STDOUT_BYTES: entry.stdout_bytes,
        names.SKILL_STDERR_BYTES: entry.stderr_bytes,
        **({names.SKILL_ERROR_TYPE: entry.error_type or entry.status} if entry.is_error else {}),
    }


def describe_catalog(entry: CatalogLoaded) -> Attributes:
    return {
        names.OPERATION: names.LOAD_SKILLS,
        names.SKILL_COUNT: len(entry.skills),
        names.SKILL_NAMES: entry.skills[:_MAX_NAMES],
        names.SKILL_PROBLEMS: entry.problems,
    }


def describe_wait(entry: ApprovalAsked | InputAsked, action: ActionStep | None) -> Attributes:
    if isinstance(entry, InputAsked):
        return {names.OPERATION: names.AWAIT_INPUT, names.STEP_ID: entry.step_id}
    tool = name_call(action)[0] if action is not None else ""
    return {names.OPERATION: names.AWAIT_APPROVAL, names.TOOL_NAME: tool, names.STEP_ID: entry.step_id}


def _describe_process(entry: StepFinished) -> Attributes:
    known: Attributes = {
        names.STDOUT_BYTES: entry.stdout_bytes,
        names.STDERR_BYTES: entry.stderr_bytes,
        names.TRUNCATED: entry.truncated,
    }
    return {**known, names.EXIT_CODE: entry.exit_code} if entry.exit_code is not None else known


def _render_reply(reply: ModelReply) -> JsonValue:
    parts: list[JsonValue] = []
    for part in reply.parts:
        if isinstance(part, TextPart):
            parts.append(_text(part.text))
        elif isinstance(part, ToolCallPart):
            parts.append({"type": "tool_call", "id": part.id, "name": part.name, "arguments": part.arguments})
    return {**_message("assistant", parts), "finish_reason": reply.stop_reason}


def _part(fresh: Fresh) -> JsonValue:
    if fresh.role == "tool":
        return {"type": "tool_call_response", "id": fresh.call_id, "response": fresh.text}
    return _text(fresh.text)


def _text(content: str) -> JsonValue:
    return {"type": "text", "content": content}


def _message(role: str, parts: list[JsonValue]) -> dict[str, JsonValue]:
    return {"role": role, "parts": parts}


def _render(messages: Sequence[JsonValue]) -> str:
    return json.dumps(messages, ensure_ascii=False)
