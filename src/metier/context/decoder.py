"""Model replies: the instructions for replies in JSON, and the decoder, which returns a decision or a failure. Pure.

Native calls come first. A reply without calls is parsed as a JSON decision if one was requested or is clearly intended;
otherwise its text is the result. An invalid call (unknown tool, invalid arguments) doesn't affect the others: the model
gets an error as its result.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field, JsonValue, ValidationError

from metier.context.control import ACTION_OF_TOOL, describe_batch_error, expand
from metier.context.json_text import NotJson, recover_object
from metier.decisions import SCRIPT_TOOLS, ActionStep, ActionType, ModelDecision
from metier.definitions.nearest import list_nearest
from metier.messages import ModelReply, TextPart, ToolCallPart, ToolSpec
from metier.prompts.texts import load_text
from metier.tools.schemas import SchemaCheck
from metier.values import Value

type OutputMode = Literal["native_with_json_fallback", "native", "json"]
type DecodePath = Literal["native", "json", "text"]
type FailureReason = Literal["refusal", "truncated", "empty", "invalid_json", "invalid_decision"]

SUMMARY_CHARACTERS = 2_000
DECISION_KEYS = frozenset(ModelDecision.__struct_fields__)

# Limited to 4,000 characters, so that a long reply with an unrelated `{` is not searched to its end.
_BROKEN_DECISION = re.compile(r"\s*(?:```\w*\s*)?\{.{0,4000}?\"(?:planned_actions|selected_skill)\"\s*:", re.DOTALL)
_FINISH_TEXT = re.compile(r"(?:```\w*\s*)?\{.*\}(?:\s*```)?\Z", re.DOTALL)

_SCRIPT_KEYS = {"skill": "skill_name", "script": "script_name"}
_OWN_KEYS = {"use_skill": {"skill_name": "skill"}, **dict.fromkeys(SCRIPT_TOOLS, _SCRIPT_KEYS)}
"""Aliases of arguments, by tool."""

LAST: dict[str, int] = {"ask_user": 1, "finish": 2}
"""Actions that end or pause a turn. They run after all other actions of the same reply."""


class RejectedCall(Struct, frozen=True, kw_only=True):
    """A call that gets an error as its result instead of being run."""

    call_id: str
    tool: str
    code: Literal["unknown_tool", "invalid_arguments", "one_at_a_time"]
    message: str


class Decoded(Struct, frozen=True, kw_only=True):
    decision: ModelDecision
    path: DecodePath
    rejected: tuple[RejectedCall, ...] = ()


class Undecodable(Struct, frozen=True, kw_only=True):
    """A reply without a decision. If `can_repair` is True, the model gets the error once and may fix it."""

    reason: FailureReason
    message: str
    can_repair: bool


class Decoder:
    """Decodes replies to requests that offered these tools."""

    def __init__(
        self,
        tools: Iterable[ToolSpec],
        *,
        mode: OutputMode = "native_with_json_fallback",
        other_names: Mapping[str, str] | None = None,
        unwraps_finish: bool = True,
        write_name: Callable[[str], str] = str,
    ) -> None:
        """Create a decoder.

        `other_names` maps aliases of tools to their names. None means a run of an older version, which also ignored
        native calls in JSON mode and had no aliases of arguments. `unwraps_finish` accepts a single `finish` written as
        JSON text. `write_name` converts a tool's name to the one that the model must write.
        """
        self.mode: OutputMode = mode
        self._other_names = other_names or {}
        self._is_older = other_names is None
        self._ignores_calls = self._is_older and mode == "json"
        self._unwraps_finish = unwraps_finish
        self._write_name = write_name
        self._schemas = {tool.name: tool.input_schema for tool in tools}
        self._checks: dict[str, SchemaCheck] = {}

    def decode(self, reply: ModelReply) -> Decoded | Undecodable:
        """Decode one complete reply."""
        text = "".join(part.text for part in reply.parts if isinstance(part, TextPart)).strip()
        calls = [part for part in reply.parts if isinstance(part, ToolCallPart)]
        if reply.stop_reason == "refusal":
            message = f"The model refused: {text[:500]}" if text else "The model refused to answer"
            return Undecodable(reason="refusal", message=message, can_repair=False)
        if reply.stop_reason == "max_tokens":
            # The last text or call is incomplete, and the others may depend on it: nothing is run.
            message = "The reply was truncated at its token limit"
            return Undecodable(reason="truncated", message=message, can_repair=True)
        if calls and not self._ignores_calls:
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
        """Split calls into actions, in the order of execution, and rejected calls."""
        accepted: list[ActionStep] = []
        rejected: list[RejectedCall] = []
        for call in calls:
            step = self._accept(call)
            if isinstance(step, RejectedCall):
                rejected.append(step)
            elif _is_second(step, accepted):
                message = f"Only one {call.name!r} per reply; the first one is used"
                rejected.append(_rejection(call, "one_at_a_time", message))
            else:
                accepted.extend(expand(step))
        ordered, refused = _finish_last(accepted)
        return ordered, rejected + refused

    def _accept(self, call: ToolCallPart) -> ActionStep | RejectedCall:
        name = call.name if call.name in self._schemas else self._other_names.get(call.name, call.name)
        if name not in self._schemas:
            names = [self._write_name(name) for name in self._schemas]
            near = list_nearest(call.name, names, at_least=0.60)
            known = f"; did you mean {', '.join(near)}?" if near else f"; known are {', '.join(sorted(names))}"
            return _rejection(call, "unknown_tool", f"There is no tool {call.name!r}{known}")
        arguments: dict[str, JsonValue] | NotJson = call.arguments
        if call.raw_arguments:
            arguments = recover_object(call.raw_arguments)
        if isinstance(arguments, NotJson):
            return _rejection(call, "invalid_arguments", f"The arguments are not a JSON object: {arguments.message}")
        if not self._is_older:
            arguments = _use_own_keys(name, arguments)
        wrong = self._describe_argument_error(name, arguments)
        if wrong:
            return _rejection(call, "invalid_arguments", wrong)
        return build_step(name, arguments, call_id=call.id)

    def _describe_argument_error(self, tool: str, arguments: dict[str, JsonValue]) -> str:
        # Built when needed, because a reply calls few of the offered tools.
        if tool not in self._checks:
            self._checks[tool] = SchemaCheck(tool, self._schemas[tool])
        wrong = self._checks[tool].describe_errors(arguments)
        wrong = wrong or (describe_batch_error(arguments) if tool == "delegate" else "")
        return f"Invalid input for {self._write_name(tool)!r}: {wrong}" if wrong else ""

    def _from_text(self, text: str) -> Decoded | Undecodable:
        found = recover_object(text)
        if self._unwraps_finish and self.mode != "native" and _FINISH_TEXT.match(text):
            finish = _find_finish(found)
            if finish is not None:
                return self._from_object({"planned_actions": [{"type": "finish", "params": finish}]})
        if self.mode == "native" or (self.mode != "json" and not _is_meant_as_decision(text, found)):
            return _as_result(text)
        if isinstance(found, NotJson):
            return Undecodable(reason="invalid_json", message=found.message, can_repair=True)
        return self._from_object(found)

    def _from_object(self, found: dict[str, JsonValue]) -> Decoded | Undecodable:
        try:
            decision = _DecisionFields.model_validate(found).build()
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(str(part) for part in first["loc"])
            message = f"{location or 'The decision'}: {first['msg']}"
            return Undecodable(reason="invalid_decision", message=message, can_repair=True)
        if not decision.planned_actions and not decision.selected_skill and not decision.required_disclosure_paths:
            message = "The decision has nothing to do: no action, no skill, nothing to disclose"
            return Undecodable(reason="invalid_decision", message=message, can_repair=True)
        steps = [replace(step, call_id=f"json-{i}") for i, step in enumerate(decision.planned_actions)]
        # Steps written as JSON get the same checks as native calls.
        accepted, rejected = self._sift(as_call(step) for step in steps)
        # Kept aside, because a native call has no field for it.
        expected = {step.call_id: step.expected_output for step in steps}
        planned = [replace(step, expected_output=expected[step.call_id]) for step in accepted]
        decision = replace(decision, planned_actions=tuple(planned))
        return Decoded(decision=decision, path="json", rejected=tuple(rejected))


class _ActionFields(Value):
    type: ActionType
    params: dict[str, JsonValue] = Field(default_factory=dict)
    expected_output: str = ""
    call_id: str = ""


class _DecisionFields(Value):
    """A decision as a model writes it."""

    # pydantic, not msgspec: the model gets its error messages, so they are in the requests that a replay compares.

    selected_skill: str | None = None
    reasoning_summary: str = ""
    required_disclosure_paths: tuple[str, ...] = ()
    planned_actions: tuple[_ActionFields, ...] = ()

    def build(self) -> ModelDecision:
        return ModelDecision(
            selected_skill=self.selected_skill,
            reasoning_summary=self.reasoning_summary,
            required_disclosure_paths=self.required_disclosure_paths,
            planned_actions=tuple(
                ActionStep(type=each.type, params=each.params, expected_output=each.expected_output)
                for each in self.planned_actions
            ),
        )


def _use_own_keys(tool: str, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Replace aliases of arguments: `skill` and `skill_name`, `script` and `script_name`."""
    own = {key: name for key, name in _OWN_KEYS.get(tool, {}).items() if name not in arguments}
    return {own.get(key, key): value for key, value in arguments.items()} if own else arguments


def build_step(tool: str, arguments: dict[str, JsonValue], *, call_id: str) -> ActionStep:
    """Build the action for a call."""
    action = ACTION_OF_TOOL.get(tool)
    if action is None:
        return ActionStep(type="call_tool", params={"tool": tool, "arguments": arguments}, call_id=call_id)
    return ActionStep(type=action, params=arguments, call_id=call_id)


def as_call(step: ActionStep) -> ToolCallPart:
    """Build the call for an action, the inverse of `build_step`."""
    if step.type == "call_tool":
        arguments = step.params.get("arguments")
        name = str(step.params.get("tool", ""))
        return ToolCallPart(id=step.call_id, name=name, arguments=arguments if isinstance(arguments, dict) else {})
    name = next(tool for tool, action in ACTION_OF_TOOL.items() if action == step.type)
    return ToolCallPart(id=step.call_id, name=name, arguments=step.params)


def repair_request(failure: Undecodable, *, is_json: bool = False) -> str:
    """Build the message to the model after a reply that couldn't be decoded."""
    if failure.reason == "truncated":
        return f"{failure.message}. Answer again, shorter: call one tool, or write less at a time."
    schema = json.dumps(build_decision_schema(), separators=(",", ":"))
    instead = "Answer" if is_json else "Call a tool, or answer"
    return (
        f"Your last reply could not be used: {failure.message}.\n"
        f"{instead} with one JSON object of this schema and nothing else:\n{schema}"
    )


def _is_meant_as_decision(text: str, found: dict[str, JsonValue] | NotJson) -> bool:
    """Return True for text with the keys of a decision. Even if it is invalid, it must not become the run's result."""
    if isinstance(found, NotJson):
        return _BROKEN_DECISION.match(text) is not None
    # A result may also have a key `selected_skill`. Keys that no decision has then show that it is data.
    return "planned_actions" in found or ("selected_skill" in found and found.keys() <= DECISION_KEYS)


def _find_finish(found: dict[str, JsonValue] | NotJson) -> dict[str, JsonValue] | None:
    """Find the parameters of a `finish` that isn't part of a decision: an action, a call, or only its `params`."""
    if isinstance(found, NotJson):
        return None
    # The form of OpenAI's tool calls, whose `arguments` are JSON in a string.
    call = found.get("function")
    if isinstance(call, dict):
        found = call
    if all(found.get(key) != "finish" for key in ("type", "name", "tool", "action")):
        # Only an object with nothing else in it: any other one may be the result itself.
        given = found.get("params")
        return given if found.keys() == {"params"} and isinstance(given, dict) and given.keys() == {"result"} else None
    given = next((found[key] for key in ("params", "arguments", "parameters") if key in found), None)
    if isinstance(given, str):
        parsed = recover_object(given)
        if isinstance(parsed, NotJson):
            return {"result": given}
        return parsed
    if isinstance(given, dict):
        return given
    return {"result": found["result"]} if "result" in found else None


def _rejection(
    call: ToolCallPart, code: Literal["unknown_tool", "invalid_arguments", "one_at_a_time"], message: str
) -> RejectedCall:
    return RejectedCall(call_id=call.id, tool=call.name, code=code, message=message)


def _is_second(step: ActionStep, accepted: list[ActionStep]) -> bool:
    """Return True for a second action of a type that a reply can have only once."""
    return step.type in ("call_skill", "ask_user", "finish") and any(other.type == step.type for other in accepted)


def _finish_last(steps: list[ActionStep]) -> tuple[list[ActionStep], list[RejectedCall]]:
    """Move questions and `finish` after all other actions. A run that asks a question can't finish in the same turn."""
    # Sorting is stable, so the other actions keep the order in which the model wrote them.
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


_ORDER: tuple[ActionType, ...] = ("call_tool", "run_command", "call_skill", "ask_user", "delegate", "finish")
_WITHOUT_ACTION = frozenset({"read_skill_files"})
"""Tools that need no action: a decision lists the files in `required_disclosure_paths`."""
_CALL_TOOL = '- `call_tool`, params `{"tool": NAME, "arguments": {…}}`: call one of the tools below'


def render_protocol(tools: Iterable[ToolSpec]) -> str:
    """Render the instructions: reply format, actions, tools with their schemas, decision schema, example."""
    offered = list(tools)
    called = [tool for tool in offered if ACTION_OF_TOOL.get(tool.name) is None and tool.name not in _WITHOUT_ACTION]
    steering = [tool for tool in offered if tool.name in ACTION_OF_TOOL]
    pieces = [
        load_text("json_mode"),
        "## Types of actions",
        "\n".join([*([_CALL_TOOL] if called else []), *(_describe_action(tool) for tool in steering)]),
    ]
    if called or steering:
        pieces += ["## Tools", *(_describe_tool(tool) for tool in (*called, *steering))]
    pieces += [
        "## Schema of your reply",
        _write(build_decision_schema(offered)),
        f"Example: {_write(_build_example(called))}",
    ]
    return "\n\n".join(pieces)


def build_decision_schema(tools: Iterable[ToolSpec] | None = None) -> dict[str, JsonValue]:
    """Build the schema of a decision, limited to the offered tools if given."""
    action: dict[str, JsonValue] = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": list[JsonValue](_ORDER if tools is None else _list_types(tools))},
            "params": {"type": "object"},
            "expected_output": {"type": "string"},
        },
        "required": ["type", "params"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {
            "reasoning_summary": {"type": "string"},
            "selected_skill": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "required_disclosure_paths": {"type": "array", "items": {"type": "string"}},
            "planned_actions": {"type": "array", "items": action},
        },
        "required": ["reasoning_summary", "planned_actions"],
        "additionalProperties": False,
    }


def _list_types(tools: Iterable[ToolSpec]) -> list[ActionType]:
    found = {ACTION_OF_TOOL.get(tool.name, "call_tool") for tool in tools} | {"finish"}
    return [kind for kind in _ORDER if kind in found]


def _describe_action(tool: ToolSpec) -> str:
    return f"- `{ACTION_OF_TOOL[tool.name]}`, params as the arguments of `{tool.name}` below"


def _describe_tool(tool: ToolSpec) -> str:
    return f"### {tool.name}\n{tool.description}\nArguments: {_write(tool.input_schema)}"


def _build_example(called: list[ToolSpec]) -> dict[str, JsonValue]:
    action: JsonValue = {"type": "finish", "params": {"result": "…"}}
    if any(tool.name == "Read" for tool in called):
        action = {"type": "call_tool", "params": {"tool": "Read", "arguments": {"path": "README.md"}}}
    return {"reasoning_summary": "…", "planned_actions": [action]}


def _write(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
