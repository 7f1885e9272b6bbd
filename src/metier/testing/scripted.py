"""A model provider that follows a script and records its requests, for your tests.

    provider = ScriptedProvider(calls(ToolCall("Read", {"path": "a.txt"})), says("Done."))

Each request takes the next line of the script. A request after the last line fails the test.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from metier.messages import ModelReply, Part, StopReason, TextPart, ToolCallPart, Usage
from metier.providers.base import Delta, ModelRequest, Observer
from metier.providers.failures import CallFailed


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of the scripted model. IDs default to `call-1`, `call-2`, … throughout the script."""

    name: str
    arguments: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    id: str = ""


@dataclass(frozen=True, slots=True)
class Says:
    """A reply with text, tool calls or both."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop_reason: StopReason | None = None
    usage: Usage = field(default_factory=lambda: Usage(input_tokens=100, output_tokens=10))


@dataclass(frozen=True, slots=True)
class Fails:
    """An attempt that fails after streaming `shown`."""

    failure: CallFailed
    shown: str = ""


type Line = Says | Fails


def says(text: str, *, stop_reason: StopReason = "end") -> Says:
    """Reply with text."""
    return Says(text=text, stop_reason=stop_reason)


def calls(*tool_calls: ToolCall, text: str = "") -> Says:
    """Call these tools in parallel, after `text`."""
    return Says(text=text, calls=tool_calls)


def fails(failure: CallFailed, *, shown: str = "") -> Fails:
    """Fail the attempt."""
    return Fails(failure, shown)


# Not a `CallFailed`, which the engine would handle: the run would fail, and the test could still pass.
class ScriptExhausted(AssertionError):
    """The code under test sent more requests than the script has lines."""


class ScriptedProvider:
    """Follows a script. `requests` has all requests in order, `left` is the number of unused lines."""

    def __init__(self, *script: Line, name: str = "scripted", tokens: int | None = None) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self.closed = False
        self._script = list(script)
        self._tokens = tokens
        self._calls = 0

    @property
    def left(self) -> int:
        return len(self._script)

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        self.requests.append(request)
        if not self._script:
            raise ScriptExhausted(f"request {len(self.requests)} has no line in the script")
        match self._script.pop(0):
            case Fails(failure=failure, shown=shown):
                if observe is not None and shown:
                    observe(Delta("text", shown))
                raise failure
            case Says() as line:
                if observe is not None and line.text:
                    observe(Delta("text", line.text))
                return self._build_reply(line, request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the constructor's `tokens`."""
        del request
        return self._tokens

    async def close(self) -> None:
        self.closed = True

    def _build_reply(self, line: Says, request: ModelRequest) -> ModelReply:
        said: list[Part] = [TextPart(text=line.text)] if line.text else []
        return ModelReply(
            parts=(*said, *(self._build_call(call) for call in line.calls)),
            stop_reason=line.stop_reason or ("tool_calls" if line.calls else "end"),
            usage=line.usage,
            provider=self.name,
            model=request.model,
            response_id=f"scripted-{len(self.requests)}",
        )

    def _build_call(self, call: ToolCall) -> ToolCallPart:
        self._calls += 1
        return ToolCallPart(id=call.id or f"call-{self._calls}", name=call.name, arguments=dict(call.arguments))
