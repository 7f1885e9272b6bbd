"""`Edit`: replace an exact text in a file and nothing else: its mode, encoding, line ends and other bytes stay."""

from collections.abc import Mapping

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.errors import ToolFailed
from metier.prompts.texts import describe_parameters, load_tool_text
from metier.tools.base import Preview, ToolContext, ToolInfo, ToolResult
from metier.tools.files.file_replacement import describe_written, judge_note, read_target, replace_file
from metier.tools.files.file_text import check_saved, find_held
from metier.tools.files.scope import Scope
from metier.tools.files.text_change import build_preview, edit_bytes, preview_edit


class Edit:
    info = ToolInfo(
        id="builtin:Edit",
        name="Edit",
        description=load_tool_text("Edit").description,
        category="edit",
        input_schema=describe_parameters(
            "Edit",
            {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "old": {"type": "string"},
                    "new": {"type": "string"},
                    "replace_all": {"type": "boolean"},
                },
                "required": ["path", "old", "new"],
                "additionalProperties": False,
            },
        ),
        output_schema={"type": "string"},
        risk="medium",
        effect="opaque",
        spools=True,
    )

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        held = await find_held(str(arguments["path"]), self._scope, context.buffers)
        output, diff = await run_sync(self._edit, arguments, context, held)
        written = await run_sync(describe_written, self._scope, str(arguments["path"]), context)
        return ToolResult(ok=True, output=output, meta={**written, "diff": diff})

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview:
        held = await find_held(str(arguments["path"]), self._scope, context.buffers)
        found = await run_sync(preview_edit, self._scope, arguments, held)
        return Preview(found.diff, base=found.base_hash)

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """A path outside of the workspace, or one that is protected."""
        return self._scope.refuse(str(arguments["path"]), writes=True)

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        return {"path": await run_sync(self._scope.canonical, str(arguments["path"]))}

    async def probe(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult | None:
        """After a crash: the new text is there, or nothing happened and the call may run, or the outcome is unknown."""
        path = str(arguments["path"])
        if await run_sync(judge_note, self._scope, path, context) != "after":
            return None
        output = f"Edited {path!r}; found so after an interruption"
        return ToolResult(ok=True, output=output, meta=await run_sync(describe_written, self._scope, path, context))

    def _edit(self, arguments: dict[str, JsonValue], context: ToolContext, held: str | None) -> tuple[str, str]:
        """The sentence for the model, and the change as a diff."""
        path = str(arguments["path"])
        with self._scope.open_target(path, create_folders=False, guard=context.paths) as target:
            before = read_target(target)
            if before is None:
                raise ToolFailed(f"There is no file {path!r}", hint="Use Write to create it", code="not_found")
            check_saved(held, before, path=path)
            after, lines = edit_bytes(before, arguments)
            replace_file(target, after, before=before, context=context)
        where = f"on line {lines[0]}" if len(lines) == 1 else f"in {len(lines)} places, first on line {lines[0]}"
        return f"Edited {target.path!r} {where}", build_preview(target.path, before, after).diff
