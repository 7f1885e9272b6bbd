"""The shipped test double matches its documentation."""

import pytest

from metier.messages import TextPart, ToolCallPart, user
from metier.providers.base import Delta, ModelRequest, Provider
from metier.providers.failures import Overloaded
from metier.testing.scripted import ScriptedProvider, ScriptExhausted, ToolCall, calls, fails, says

pytestmark = pytest.mark.anyio

REQUEST = ModelRequest(model="m", messages=(user("Hello"),))


async def test_script_is_followed_line_by_line_and_requests_are_recorded() -> None:
    scripted = ScriptedProvider(
        calls(ToolCall("Read", {"path": "a"}), ToolCall("Read", {"path": "b"}, id="mine"), text="Reading"),
        fails(Overloaded("full"), shown="Hm"),
        says("Done", stop_reason="max_tokens"),
        tokens=7,
    )
    provider: Provider = scripted
    seen: list[Delta] = []

    first = await provider.reply(REQUEST, observe=seen.append)
    with pytest.raises(Overloaded):
        await provider.reply(REQUEST, observe=seen.append)
    last = await provider.reply(REQUEST)

    assert first.parts == (
        TextPart(text="Reading"),
        ToolCallPart(id="call-1", name="Read", arguments={"path": "a"}),
        ToolCallPart(id="mine", name="Read", arguments={"path": "b"}),
    )
    assert (first.stop_reason, last.stop_reason, last.parts) == ("tool_calls", "max_tokens", (TextPart(text="Done"),))
    assert seen == [Delta("text", "Reading"), Delta("text", "Hm")]
    assert (scripted.requests, scripted.left, await provider.count_tokens(REQUEST)) == ([REQUEST] * 3, 0, 7)


async def test_request_after_the_last_line_is_a_test_error() -> None:
    with pytest.raises(ScriptExhausted):
        await ScriptedProvider().reply(REQUEST)
