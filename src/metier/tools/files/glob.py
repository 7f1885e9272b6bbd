"""`Glob`: the files whose path matches a pattern, the newest first."""

from collections.abc import Collection, Mapping
from itertools import islice

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.prompts.texts import describe_parameters, load_tool_text
from metier.tools.base import PathGuard, ToolContext, ToolInfo, ToolResult
from metier.tools.files.path_patterns import PathPattern, describe_stop, list_files
from metier.tools.files.scope import Scope

MAX_FILES = 200
_MAX_JUDGED = 5_000
"""So many of the newest are looked at for those that the rules let it show."""


class Glob:
    info = ToolInfo(
        id="builtin:Glob",
        name="Glob",
        description=load_tool_text("Glob").description,
        category="glob",
        input_schema=describe_parameters(
            "Glob",
            {
                "type": "object",
                "properties": {
                    "pattern": {"type": "string"},
                    "path": {"type": "string"},
                },
                "required": ["pattern"],
                "additionalProperties": False,
            },
        ),
        output_schema={"type": "string"},
        risk="low",
        effect="read",
    )

    def __init__(self, scope: Scope, *, skip: Collection[str] = ()) -> None:
        """`skip` are folders that are left out, as canonical paths."""
        self._scope = scope
        self._skip = frozenset(skip)

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        pattern = PathPattern(str(arguments["pattern"]))
        folder = str(arguments.get("path") or ".")
        return ToolResult(ok=True, output=await run_sync(self._find, folder, pattern, context.paths))

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """A path outside of the workspace."""
        return self._scope.refuse(str(arguments.get("path") or "."))

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        return {"path": await run_sync(self._scope.canonical, str(arguments.get("path") or "."))}

    def _find(self, folder: str, pattern: PathPattern, guard: PathGuard) -> str:
        listing = list_files(self._scope, folder, pattern, guard=guard, skip=self._skip)
        newest = sorted(listing.files, key=lambda file: -file.modified_ns)
        open_to_it = (file.path for file in newest[:_MAX_JUDGED] if not guard.hides(file.path))
        lines = list(islice(open_to_it, MAX_FILES))
        if len(newest) > MAX_FILES:
            lines.append(
                f"[Stopped at the limit of {MAX_FILES} files: the newest {len(lines)} of {len(newest)} that match are "
                "shown. Narrow 'pattern', or name a folder by 'path', to see the others]"
            )
        if not listing.is_complete:
            lines.append(describe_stop(listing))
        return "\n".join(lines) or "No file matches"
