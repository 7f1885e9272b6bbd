"""A call and its result in each vendor's format: the next request always has a valid result.

The providers talk to a local server. It answers the first request with a call and the second with text; the
second request is what a vendor would have accepted or rejected.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from vendors import VENDORS, Vendor
from wire_server import Answer, WireServer, whole

from metier.engine.state.run_state import RunState
from metier.errors import ToolFailed
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.tools.base import ToolContext, ToolInfo, ToolResult

pytestmark = pytest.mark.anyio

CALL_ID = "call_a"
OVERSIZED = 200_000


class Search:
    """A tool that obeys its query."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.info = ToolInfo(
            id="test:notes.search",
            name="notes.search",
            description="Search the notes.",
            category="custom",
            input_schema={
                "type": "object",
                "properties": {"query": {"type": "string"}},
                "required": ["query"],
                "additionalProperties": False,
            },
            risk="low",
            effect="read",
        )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        query = str(arguments["query"])
        self.ran.append(query)
        if query == "fail":
            raise ToolFailed("The notes are locked", hint="Unlock them first", code="locked")
        return ToolResult(ok=True, output="x" * OVERSIZED if query == "much" else {"found": ["a.md", "ünïcode"]})


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    tool: str = "notes__search"
    arguments: dict[str, str] | None = None
    is_disabled: bool = False
    ran: int = 0
    is_error: bool = True
    expected: str = ""


CASES = [
    Case("success", arguments={"query": "tax"}, ran=1, is_error=False, expected="ünïcode"),
    Case("failure", arguments={"query": "fail"}, ran=1, expected="The notes are locked. Unlock them first"),
    Case("unknown tool", tool="notes__serch", arguments={"query": "x"}, expected="notes__search"),
    Case("disabled tool", arguments={"query": "x"}, is_disabled=True, expected="Tool 'notes__search' is turned off"),
    Case("invalid input", arguments={"qery": "x"}, expected="'query' is a required property"),
    Case("oversized output", arguments={"query": "much"}, ran=1, is_error=False, expected="characters omitted"),
]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of the call in the second request."""

    text: str
    is_error: bool


def build_call(vendor: Vendor, case: Case) -> Answer:
    """Build the vendor's recorded reply, reduced to one call with the case's arguments."""
    reply: Any = vendor.load("calls")
    arguments = case.arguments or {}
    match vendor.folder:
        case "anthropic":
            said, call, _ = reply["content"]
            reply["content"] = [said, {**call, "name": case.tool, "input": arguments}]
        case "gemini":
            content = reply["candidates"][0]["content"]
            said, _, _ = content["parts"]
            content["parts"] = [said, {"functionCall": {"id": CALL_ID, "name": case.tool, "args": arguments}}]
        case "openai_chat":
            message = reply["choices"][0]["message"]
            (call, _) = message["tool_calls"]
            message["tool_calls"] = [{**call, "function": {"name": case.tool, "arguments": json.dumps(arguments)}}]
        case _:
            said, call, _ = reply["output"]
            reply["output"] = [said, {**call, "name": case.tool, "arguments": json.dumps(arguments)}]
    return whole(reply)


def read_anthropic(body: Any) -> Result:
    *_, call, result = body["messages"]
    (use,) = [block for block in call["content"] if block["type"] == "tool_use"]
    block = result["content"][0]
    assert (call["role"], result["role"]) == ("assistant", "user")
    assert (block["type"], block["tool_use_id"], use["id"]) == ("tool_result", CALL_ID, CALL_ID)
    content = block["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return Result(text, block.get("is_error", False))


def read_gemini(body: Any) -> Result:
    *_, call, result = body["contents"]
    (asked,) = [part["functionCall"] for part in call["parts"] if "functionCall" in part]
    response = result["parts"][0]["functionResponse"]
    assert (call["role"], result["role"]) == ("model", "user")
    assert (response["name"], response["id"]) == (asked["name"], asked["id"])
    (key,) = response["response"]
    return Result(str(response["response"][key]), key == "error")


def read_chat(body: Any) -> Result:
    *_, call, result = body["messages"]
    assert (call["role"], result["role"]) == ("assistant", "tool")
    assert [each["id"] for each in call["tool_calls"]] == [result["tool_call_id"]] == [CALL_ID]
    return Result(result["content"], _says_error(result["content"]))


def read_responses(body: Any) -> Result:
    (call,) = [item for item in body["input"] if item.get("type") == "function_call"]
    (result,) = [item for item in body["input"] if item.get("type") == "function_call_output"]
    assert call["call_id"] == result["call_id"] == CALL_ID
    assert body["input"].index(call) < body["input"].index(result)
    return Result(result["output"], _says_error(result["output"]))


def _says_error(text: str) -> bool:
    """Return whether the text reports an error, for formats without an error flag."""
    return text.startswith(("Error: ", '{"success": false'))


READERS: dict[str, Callable[[Any], Result]] = {
    "anthropic": read_anthropic,
    "gemini": read_gemini,
    "openai_chat": read_chat,
    "openai_responses": read_responses,
}


async def run(vendor: Vendor, case: Case, server: WireServer, tool: Search, folder: Path) -> RunState:
    server.will_answer(build_call(vendor, case), vendor.answer("text"))
    if case.is_disabled:
        (folder / ".agent").mkdir()
        (folder / ".agent/tool-access.json").write_text('{"tools": {"notes.search": {"enabled": false}}}')
    async with vendor.opened(server.url) as provider:
        host = Host(
            trust=MADE_HERE,
            settings=Settings(),
            workspace=folder,
            home=folder,
            environ={},
            provider=provider,
            tools=(tool,),
        )
        async with open_runtime(host) as runtime:
            return await runtime.start(RunRequest(task="look at the notes"))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("vendor", VENDORS, ids=[vendor.folder for vendor in VENDORS])
async def test_the_request_after_a_call_contains_its_result(
    vendor: Vendor, case: Case, server: WireServer, tmp_path: Path
) -> None:
    tool = Search()

    state = await run(vendor, case, server, tool, tmp_path)

    assert state.status == "completed", state.failure
    assert len(tool.ran) == case.ran
    first, second = (received.body for received in server.received)
    assert ("notes__search" in json.dumps(first.get("tools"))) is not case.is_disabled
    result = READERS[vendor.folder](second)
    assert case.expected in result.text
    assert result.is_error == case.is_error
    assert len(result.text) < 40_000


async def test_the_result_schema_is_sent_to_the_vendor_from_the_first_turn(server: WireServer, tmp_path: Path) -> None:
    vendor = next(vendor for vendor in VENDORS if vendor.folder == "anthropic")
    schema: dict[str, JsonValue] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    reply: Any = vendor.load("text")
    server.will_answer(whole({**reply, "content": [{"type": "text", "text": '{"a": 1}'}]}))

    async with vendor.opened(server.url) as provider:
        host = Host(
            trust=MADE_HERE, settings=Settings(), workspace=tmp_path, home=tmp_path, environ={}, provider=provider
        )
        async with open_runtime(host) as runtime:
            state = await runtime.start(RunRequest(task="count", output_schema=schema))

    assert (state.status, state.result) == ("completed", '{"a": 1}')
    body: Any = server.received[0].body
    assert body["output_config"]["format"]["schema"] == {**schema, "additionalProperties": False}
    assert body["tools"]
