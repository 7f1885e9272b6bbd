"""Call a file tool as a run does: through a toolbox, in a folder of the test's own."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from metier.tools.base import Tool, ToolContext, ToolResult
from metier.tools.files.scope import Scope
from metier.tools.toolbox import Toolbox


@dataclass(frozen=True)
class Bench:
    """A workspace and the way to call a tool in it."""

    folder: Path

    @property
    def scope(self) -> Scope:
        return Scope([self.folder])

    async def call(self, tool: Tool, context: ToolContext | None = None, /, **arguments: JsonValue) -> ToolResult:
        return await Toolbox([tool]).call(tool.info.name, arguments, context or ToolContext(workspace=self.folder))

    async def output(self, tool: Tool, /, **arguments: JsonValue) -> str:
        result = await self.call(tool, **arguments)
        assert result.ok, result.error
        return str(result.output)

    async def error(self, tool: Tool, /, **arguments: JsonValue) -> str:
        result = await self.call(tool, **arguments)
        assert not result.ok, result.output
        return result.error
