"""The code of a skill as a tool of a run: `<skill>.invoke`, with the contract's inputs, effect and risk.

A step that calls it is one conversation, named after the run and the step, and each attempt is one message. The run's
lease keeps other workers out. After a crash the engine decides about the step, and `probe` looks up its answer.
"""

from collections.abc import Iterable

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import JsonValue

from metier.capabilities.advisor import Bill
from metier.capabilities.contract import SkillContract
from metier.capabilities.executor import Capability
from metier.capabilities.impl.process import delete_saved_replies, has_saved_reply
from metier.capabilities.inputs import build_input_schema
from metier.capabilities.protocol import AgentResponse, TaskState
from metier.capabilities.skill_delegation import Lineage
from metier.capabilities.turns import Conversations, TurnRequest
from metier.definitions.names import name_capability
from metier.tools.base import Question, ToolContext, ToolInfo, ToolResult
from metier.tools.process.spool import wait_until_released

_MAX_DESCRIPTION = 300


class CapabilityTool(Struct, frozen=True, kw_only=True):
    """The tool that calls one skill."""

    info: ToolInfo
    skill: str
    conversations: Conversations
    lineage: Lineage = field(default_factory=Lineage)
    """The waiting callers, if another skill requested this run."""
    bill: Bill | None = None
    """Costs of the model's advice."""

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        response = await self.conversations.take_turn(self._build_request(arguments, context))
        # Only now: until the response is in the store, a saved reply is the only record of the effect.
        delete_saved_replies(context.spool, context.artifacts)
        return replace(build_result(response), spent=self.bill.pay() if self.bill is not None else None)

    async def probe(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult | None:
        """Return the stored answer to this attempt, or the one that its process saved; None if there is neither."""
        response = await self.conversations.find_answer(self._build_request(arguments, context))
        if response is not None:
            return build_result(response)
        spool, artifacts = context.spool, context.artifacts
        # The process may have outlived the killed agent and still write its reply.
        if spool is None or artifacts is None or not await wait_until_released(spool):
            return None
        return await self.execute(arguments, context) if has_saved_reply(spool, artifacts) else None

    def _build_request(self, arguments: dict[str, JsonValue], context: ToolContext) -> TurnRequest:
        return TurnRequest(
            skill=self.skill,
            inputs={**arguments, **context.answers},
            # Derived from the step, so that a repetition after a crash finds the conversation and its stored answer.
            context_id=name_conversation(context.run_id, context.step_id),
            resume=None,
            message_id=name_message(context.attempt),
            idempotency_key=context.idempotency_key,
            timeout_seconds=context.timeout_seconds,
            spool=context.spool,
            lineage=self.lineage,
        )


def name_conversation(run_id: str, step_id: str) -> str:
    return f"{run_id}/{step_id}"


def name_message(attempt: int) -> str:
    return f"attempt:{attempt}"


def build_capability_tools(
    capabilities: Iterable[Capability], conversations: Conversations, *, lineage: Lineage, bill: Bill | None = None
) -> tuple[CapabilityTool, ...]:
    return tuple(
        CapabilityTool(
            info=_describe(found),
            skill=found.contract.skill,
            conversations=conversations,
            lineage=lineage,
            bill=bill,
        )
        for found in capabilities
    )


def build_result(response: AgentResponse) -> ToolResult:
    """Convert a response to a tool result: a question if the skill is not done."""
    meta: dict[str, JsonValue] = {"state": response.state.value, "turn": response.metadata.turn}
    if response.metadata.handed_on is not None:
        return ToolResult(ok=True, meta=meta, handed_on=response.metadata.handed_on)
    if response.state.is_resumable:
        request = response.input_request
        text = request.render() if request else f"Skill {response.metadata.skill!r} is {response.state.value}"
        return ToolResult(
            ok=True, meta=meta, question=Question(text=text, fields=request.build_form() if request else None)
        )
    if response.state == TaskState.COMPLETED:
        files: dict[str, JsonValue] = {"artifacts": list(response.artifacts)} if response.artifacts else {}
        result: JsonValue = {**response.outputs, **files}
        return ToolResult(ok=True, output={"success": True, "result": result, "message": response.message}, meta=meta)
    code = _get_code(response)
    report = "".join(f"\n- {line}" for line in response.metadata.report)
    message = f"{response.message}{report}"
    output: JsonValue = {"success": False, "error": code, "message": message, "state": response.state.value}
    return ToolResult(ok=False, output=output, error=message, meta={**meta, "code": code})


def _get_code(response: AgentResponse) -> str:
    """Return the error code. The engine retries `timeout` and `execution_failed`; other codes go to the model."""
    first = response.errors[0] if response.errors else None
    if response.state == TaskState.TIMEOUT:
        return "timeout"
    if first is not None and (first.retryable or first.code in ("impl_raised", "execution_failed")):
        return "execution_failed"
    return first.code if first is not None else response.state.value


def _describe(found: Capability) -> ToolInfo:
    contract = found.contract
    return ToolInfo(
        id=f"capability:{contract.skill}",
        name=name_capability(contract.skill),
        description=_build_description(found, contract),
        category="custom",
        input_schema=build_input_schema(contract),
        risk=contract.risk,
        effect=contract.effect,
        # Its process notes its start and end, from which recovery concludes whether the effect happened.
        spools=True,
    )


def _build_description(found: Capability, contract: SkillContract) -> str:
    text = " ".join(found.package.definition.description.split())
    first = text.partition(". ")[0].rstrip(".")
    asks = " Asks for missing inputs." if contract.allows(TaskState.INPUT_REQUIRED) else ""
    return f"{first[:_MAX_DESCRIPTION]}.{asks}"
