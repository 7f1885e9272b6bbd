"""What a model's reply means. Pure: a reply and the tools that were offered in, a decision or a typed failure out.

Native calls come first; a reply without calls is read as the JSON decision where that was asked for or is plainly
meant, else its text is the result. A call that cannot run (unknown tool, wrong arguments) does not spoil the others:
it is rejected with a sentence the model reads as that call's result.
"""

import json
import re
from collections.abc import Iterable
from typing import Literal

from pydantic import JsonValue, ValidationError

from metier.context.batches import expand, find_wrong_batch
from metier.context.control import ACTION_OF_TOOL
from metier.context.json_mode import build_decision_schema
from metier.context.json_text import NotJson, recover_object
from metier.dataclass import dataclass
from metier.decisions import ActionStep, ModelDecision
from metier.definitions.nearest import list_nearest
from metier.lazy_regex import lazy_regex
from metier.messages import ModelReply, TextPart, ToolCallPart, ToolSpec
from metier.tools.schemas import SchemaCheck

type OutputMode = Literal["native_with_json_fallback", "native", "json"]
type DecodePath = Literal["native", "json", "text"]
type FailureReason = Literal["refusal", "truncated", "empty", "invalid_json", "invalid_decision"]

SUMMARY_CHARACTERS = 2_000
DECISION_KEYS = frozenset(ModelDecision.model_fields)

_BROKEN_DECISION = lazy_regex(r"\s*(?:```\w*\s*)?\{.{0,4000}?\"(?:planned_actions|selected_skill)\"\s*:", re.DOTALL)

LAST: dict[str, int] = {"ask_user": 1, "finish": 2}
"""Actions that end or suspend the turn run after everything else of the same reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCall:
    """A call that is answered with a sentence instead of being run."""

    call_id: str
    tool: str
    code: Literal["unknown_tool", "invalid_arguments", "one_at_a_time"]
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    decision: ModelDecision
    path: DecodePath
    rejected: tuple[RejectedCall, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """No decision. `can_repair`: telling the model what was wrong may help, once."""

    reason: FailureReason
    message: str
    can_repair: bool


class Decoder:
    """Reads replies to requests that offered these tools."""

    def __init__(self, tools: Iterable[ToolSpec], *, mode: OutputMode = "native_with_json_fallback") -> None:
        self.mode: OutputMode = mode
        self._schemas = {tool.name: tool.input_schema for tool in tools}
        self._checks: dict[str, SchemaCheck] = {}

    def decode(self, reply: ModelReply) -> Decoded | Undecodable:
        """The meaning of one complete reply."""
        text = "".join(part.text for part in reply.parts if isinstance(part, TextPart)).strip()
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        if reply.stop_reason == "refusal":
            return Undecodable(reason="refusal", message=_refusal(text), can_repair=False)
        if reply.stop_reason == "max_tokens":
            # Whatever was being said or called when the room ran out is incomplete: nothing of it is acted on.
            message = "The reply was cut off at its token limit"
            return Undecodable(reason="truncated", message=message, can_repair=True)
        if calls and self.mode != "json":
            return self._from_calls(calls, text)
        if not text:
            return Undecodable(reason="empty", message="The reply is empty", can_repair=True)
        return self._from_text(text)

    def _from_calls(self, calls: list[ToolCallPart], text: str) -> Decoded:
        accepted, rejected = self._sift(calls)
        decision = ModelDecision(
            selected_skill=_selected_skill(accepted),
            reasoning_summary=_summary(accepted, text),
            required_disclosure_paths=_disclosure_paths(accepted),
            planned_actions=tuple(accepted),
        )
        return Decoded(decision=decision, path="native", rejected=tuple(rejected))

    def _sift(self, calls: Iterable[ToolCallPart]) -> tuple[list[ActionStep], list[RejectedCall]]:
        """What may run, in the order in which it should, and what is answered instead."""
        accepted: list[ActionStep] = []
        rejected: list[RejectedCall] = []
        for call in calls:
            step = self._accept(call)
            if isinstance(step, RejectedCall):
                rejected.append(step)
            elif _is_second(step, accepted):
                message = f"Only one {call.name!r} in a reply; the first one counts"
                rejected.append(_rejection(call, "one_at_a_time", message))
            else:
                accepted.extend(expand(step))
        ordered, refused = _finish_last(accepted)
        return ordered, rejected + refused

    def _accept(self, call: ToolCallPart) -> ActionStep | RejectedCall:
        if call.name not in self._schemas:
            near = list_nearest(call.name, list(self._schemas), at_least=0.60)
            known = f"; did you mean {', '.join(near)}?" if near else f"; known are {', '.join(sorted(self._schemas))}"
            return _rejection(call, "unknown_tool", f"There is no tool {call.name!r}{known}")
        arguments: dict[str, JsonValue] | NotJson = call.arguments
        if call.raw_arguments:
            arguments = recover_object(call.raw_arguments)
        if isinstance(arguments, NotJson):
            return _rejection(call, "invalid_arguments", f"The arguments are not a JSON object: {arguments.message}")
        wrong = self._find_wrong_argument(call.name, arguments)
        if wrong:
            return _rejection(call, "invalid_arguments", wrong)
        return build_step(call.name, arguments, call_id=call.id)

    def _find_wrong_argument(self, tool: str, arguments: dict[str, JsonValue]) -> str:
        if tool not in self._checks:
            self._checks[tool] = SchemaCheck(tool, self._schemas[tool])
        wrong = self._checks[tool].describe_errors(arguments)
        wrong = wrong or (find_wrong_batch(arguments) if tool == "delegate" else "")
        return f"Invalid input for {tool!r}: {wrong}" if wrong else ""

    def _from_text(self, text: str) -> Decoded | Undecodable:
        found = recover_object(text)
        if self.mode == "native" or (self.mode != "json" and not _is_meant_as_decision(text, found)):
            return _as_result(text)
        if isinstance(found, NotJson):
            return Undecodable(reason="invalid_json", message=found.message, can_repair=True)
        return self._from_object(found)

    def _from_object(self, found: dict[str, JsonValue]) -> Decoded | Undecodable:
        try:
            decision = ModelDecision.model_validate(found)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            message = f"{place or 'The decision'}: {first['msg']}"
            return Undecodable(reason="invalid_decision", message=message, can_repair=True)
        if not decision.planned_actions and not decision.selected_skill and not decision.required_disclosure_paths:
            message = "The decision has nothing to do: no action, no skill, nothing to disclose"
            return Undecodable(reason="invalid_decision", message=message, can_repair=True)
        steps = [step.model_copy(update={"call_id": f"json-{i}"}) for i, step in enumerate(decision.planned_actions)]
        # Steps written as JSON pass the same gate as native calls.
        accepted, rejected = self._sift(as_call(step) for step in steps)
        expected = {step.call_id: step.expected_output for step in steps}
        planned = [step.model_copy(update={"expected_output": expected[step.call_id]}) for step in accepted]
        decision = decision.model_copy(update={"planned_actions": tuple(planned)})
        return Decoded(decision=decision, path="json", rejected=tuple(rejected))


def build_step(tool: str, arguments: dict[str, JsonValue], *, call_id: str) -> ActionStep:
    """The action that a call of this tool means."""
    action = ACTION_OF_TOOL.get(tool)
    if action is None:
        return ActionStep(type="call_tool", params={"tool": tool, "arguments": arguments}, call_id=call_id)
    return ActionStep(type=action, params=arguments, call_id=call_id)


def as_call(step: ActionStep) -> ToolCallPart:
    """The call that would have meant this action: the inverse of `build_step`."""
    if step.type == "call_tool":
        arguments = step.params.get("arguments")
        name = str(step.params.get("tool", ""))
        return ToolCallPart(id=step.call_id, name=name, arguments=arguments if isinstance(arguments, dict) else {})
    name = next(tool for tool, action in ACTION_OF_TOOL.items() if action == step.type)
    return ToolCallPart(id=step.call_id, name=name, arguments=step.params)


def repair_request(failure: Undecodable, *, is_json: bool = False) -> str:
    """What the model is told, once, after a reply that could not be decoded."""
    if failure.reason == "truncated":
        return f"{failure.message}. Answer again, shorter: call one tool, or write less at a time."
    schema = json.dumps(build_decision_schema(), separators=(",", ":"))
    instead = "Answer" if is_json else "Call a tool, or answer"
    return (
        f"Your last reply could not be used: {failure.message}.\n"
        f"{instead} with one JSON object of this schema and nothing else:\n{schema}"
    )


def _is_meant_as_decision(text: str, found: dict[str, JsonValue] | NotJson) -> bool:
    """A reply that names the parts of a decision is one, also where it cannot be read: it is no result of a run."""
    if isinstance(found, NotJson):
        return _BROKEN_DECISION.match(text) is not None
    return "planned_actions" in found or ("selected_skill" in found and found.keys() <= DECISION_KEYS)


def _rejection(
    call: ToolCallPart, code: Literal["unknown_tool", "invalid_arguments", "one_at_a_time"], message: str
) -> RejectedCall:
    return RejectedCall(call_id=call.id, tool=call.name, code=code, message=message)


def _is_second(step: ActionStep, accepted: list[ActionStep]) -> bool:
    """One skill is in charge, one question is open, one result ends a run."""
    return step.type in ("call_skill", "ask_user", "finish") and any(other.type == step.type for other in accepted)


def _finish_last(steps: list[ActionStep]) -> tuple[list[ActionStep], list[RejectedCall]]:
    """Ending and asking come after the rest; a run that asks does not end in the same breath."""
    ordered = sorted(steps, key=lambda step: LAST.get(step.type, 0))
    if any(step.type == "ask_user" for step in ordered) and ordered[-1].type == "finish":
        message = "A question is open; finish after its answer"
        last = ordered.pop()
        return ordered, [RejectedCall(call_id=last.call_id, tool="finish", code="one_at_a_time", message=message)]
    return ordered, []


def _selected_skill(steps: list[ActionStep]) -> str | None:
    return next((str(step.params.get("skill")) for step in steps if step.type == "call_skill"), None)


def _disclosure_paths(steps: list[ActionStep]) -> tuple[str, ...]:
    for step in steps:
        arguments = step.params.get("arguments")
        if step.params.get("tool") == "read_skill_files" and isinstance(arguments, dict):
            paths = arguments.get("paths")
            return tuple(str(path) for path in paths) if isinstance(paths, list) else ()
    return ()


def _summary(steps: list[ActionStep], text: str) -> str:
    reason = next((str(step.params.get("reason") or "") for step in steps if step.type == "call_skill"), "")
    return (text or reason)[:SUMMARY_CHARACTERS]


def _as_result(text: str) -> Decoded:
    step = ActionStep(type="finish", params={"result": text})
    return Decoded(decision=ModelDecision(planned_actions=(step,)), path="text")


def _refusal(text: str) -> str:
    return f"The model refused: {text[:500]}" if text else "The model refused to answer"
