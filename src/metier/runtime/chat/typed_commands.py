"""A command that a person types into a conversation: a run whose only call is that command, on record like any other.

Rules, sandbox and undo are those of every call. No model is asked: a provider of this module makes the one call and
gives back what the command said, so that later turns know it.
"""

import uuid
from dataclasses import replace

from metier.messages import ModelReply, TextPart, ToolCallPart, ToolResultPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.host import Host
from metier.runtime.questions.approvals import ApprovalQuestion, Reply
from metier.runtime.records.known_cost import TYPED

TOOL = "Bash"
MARK = "!"
"""What a line with a command begins with."""
_MOST = 4_000


class TypedCommand:
    """A provider that calls one command, then tells what came of it."""

    name = TYPED

    def __init__(self, command: str) -> None:
        self._command = command

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        del observe
        results = [part for part in request.messages[-1].parts if isinstance(part, ToolResultPart)]
        if results:
            text = results[-1].text
            said = text if len(text) <= _MOST else f"{text[:_MOST]}\n[… {len(text) - _MOST} more characters]"
            return self._build(request, TextPart(text=said or "(no output)"))
        call_id = f"typed-{uuid.uuid4().hex[:8]}"
        return self._build(request, ToolCallPart(id=call_id, name=TOOL, arguments={"command": self._command}))

    async def count_tokens(self, request: ModelRequest) -> int | None:
        del request
        return None

    async def close(self) -> None:
        """It holds nothing."""

    def _build(self, request: ModelRequest, part: TextPart | ToolCallPart) -> ModelReply:
        is_call = isinstance(part, ToolCallPart)
        return ModelReply(
            parts=(part,),
            stop_reason="tool_calls" if is_call else "end",
            usage=Usage(),
            provider=TYPED,
            model=request.model,
        )


def use_typed(place: Host, command: str) -> Host:
    """The place with nothing that could answer but the command."""
    model = place.settings.model.model_copy(update={"name": TYPED, "allowed_models": ()})
    settings = place.settings.model_copy(update={"model": model})
    return replace(place, provider=TypedCommand(command), settings=settings)


class TypedApproval:
    """Says yes to exactly the command that was typed: who typed it was asked by typing it. What is denied stays so."""

    def __init__(self, command: str, *, by: str) -> None:
        self._command = command
        self._by = by

    async def __call__(self, question: ApprovalQuestion) -> Reply | None:
        if question.tool != TOOL or question.arguments.get("command") != self._command:
            return None
        return Reply(decision="approved", by=self._by, reason="Typed by the person")
