"""The toolbox: calls are validated before and after, and never crash."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from metier.errors import ToolFailed, UsageError
from metier.tools.base import Schema, ToolContext, ToolInfo, ToolResult
from metier.tools.toolbox import Toolbox

pytestmark = pytest.mark.anyio

CONTEXT = ToolContext(workspace=Path())

INFO = ToolInfo(
    id="test:search",
    name="search",
    description="Search.",
    category="custom",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string"}, "where": {"type": "array", "items": {"type": "string"}}},
        "required": ["query"],
    },
    output_schema={"type": "array"},
    risk="low",
    effect="read",
)


@dataclass
class Search:
    """A scripted tool."""

    info: ToolInfo = INFO
    output: JsonValue = field(default_factory=list[JsonValue])
    error: Exception | None = None
    calls: int = 0

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        self.calls += 1
        if self.error:
            raise self.error
        return ToolResult(ok=True, output=self.output)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_valid_call_returns_the_result_of_the_tool() -> None:
    result = await Toolbox([Search(output=["found"])]).call("search", {"query": "x"}, CONTEXT)

    assert result == ToolResult(ok=True, output=["found"])


async def test_invalid_input_is_located_and_the_tool_does_not_run() -> None:
    tool = Search()

    result = await Toolbox([tool]).call("search", {"query": "x", "where": ["a", 5]}, CONTEXT)

    assert (result.ok, result.meta["code"], tool.calls) == (False, "invalid_input", 0)
    assert result.error == "Invalid input for 'search': 5 is not of type 'string' (at $.where[1])"


async def test_invalid_output_is_an_error_for_the_model() -> None:
    result = await Toolbox([Search(output="no list")]).call("search", {"query": "x"}, CONTEXT)

    assert (result.ok, result.meta["code"]) == (False, "invalid_output")


async def test_unknown_tool_gets_a_suggestion() -> None:
    toolbox = Toolbox([Search(), Search(info=replace(INFO, id="b", name="notes.find", aliases=("find",)))])

    near = await toolbox.call("serch", {}, CONTEXT)
    far = await toolbox.call("zzzzqqq", {}, CONTEXT)

    assert (near.ok, near.meta["code"]) == (False, "unknown_tool")
    assert near.error.startswith("There is no tool 'serch'; the nearest are: search")
    assert far.error == "There is no tool 'zzzzqqq'; there are: notes.find, search"


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (ToolFailed("No such file", hint="List them", code="not_found"), "No such file. List them", "not_found"),
        (UsageError("Wrong"), "Wrong", "execution_failed"),
        (KeyError("x"), "Tool 'search' failed: KeyError: 'x'", "execution_failed"),
    ],
)
async def test_tool_that_raises_becomes_a_result(error: Exception, message: str, code: str) -> None:
    result = await Toolbox([Search(error=error)]).call("search", {"query": "x"}, CONTEXT)

    assert (result.ok, result.error, result.meta["code"]) == (False, message, code)


async def test_alias_works_if_unique_and_does_not_hide_a_name() -> None:
    one = Search(info=replace(INFO, id="1", name="one.search", aliases=("search", "only")))
    two = Search(info=replace(INFO, id="2", name="two.search", aliases=("search",)))

    assert (await Toolbox([one, two]).call("only", {"query": "x"}, CONTEXT)).ok
    assert not (await Toolbox([one, two]).call("search", {"query": "x"}, CONTEXT)).ok

    named = Search()
    await Toolbox([one, named]).call("search", {"query": "x"}, CONTEXT)
    assert (named.calls, one.calls) == (1, 1)


async def test_schema_references_are_not_fetched() -> None:
    schema: Schema = {"type": "object", "properties": {"query": {"$ref": "http://127.0.0.1:9/schema.json"}}}

    result = await Toolbox([Search(info=replace(INFO, input_schema=schema))]).call("search", {"query": "x"}, CONTEXT)

    assert not result.ok
    assert "http://127.0.0.1:9/schema.json" in result.error


def test_specs_are_sorted_and_duplicate_names_and_invalid_schemas_are_rejected() -> None:
    specs = Toolbox([Search(), Search(info=replace(INFO, id="a", name="a"))]).specs()

    assert [spec.name for spec in specs] == ["a", "search"]
    with pytest.raises(UsageError, match="Two tools are called 'search'"):
        Toolbox([Search(), Search()])
    with pytest.raises(UsageError, match="invalid schema"):
        Toolbox([Search(info=replace(INFO, input_schema={"type": "nonsense"}))])
