"""Call a file tool like a run does: through a toolbox, in the test's folder."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from metier.tools.base import Tool, ToolContext, ToolResult
from metier.tools.files.scope import Scope
from metier.tools.toolbox import Toolbox


@dataclass(frozen=True)
class Bench:
    """A workspace with a toolbox."""

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
