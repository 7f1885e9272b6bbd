"""`Write`: put a whole text file in place, whole or not at all. A crash leaves the old file or the new one."""

from collections.abc import Mapping
from functools import partial

from anyio.to_thread import run_sync
from pydantic import JsonValue

from metier.definitions.files.quarantine import adopt
from metier.errors import ToolFailed
from metier.prompts.texts import describe_parameters, load_tool_text
from metier.tools.base import Preview, ToolContext, ToolInfo, ToolResult
from metier.tools.files.file_replacement import describe_written, judge_note, read_target, replace_file
from metier.tools.files.file_text import check_saved, find_held
from metier.tools.files.scope import Scope
from metier.tools.files.text_change import build_preview, preview_write


class Write:
    info = ToolInfo(
        id="builtin:Write",
        name="Write",
        description=load_tool_text("Write").description,
        category="write",
        input_schema=describe_parameters(
            "Write",
            {
                "type": "object",
                "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
                "required": ["path", "content"],
                "additionalProperties": False,
            },
        ),
        output_schema={"type": "string"},
        risk="medium",
        # Writing twice would be harmless, but not over what a user wrote between a crash and the resume.
        effect="opaque",
        spools=True,
    )

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        path, content = str(arguments["path"]), str(arguments["content"])
        held = await find_held(path, self._scope, context.buffers)
        output, diff = await run_sync(partial(self._write, path, content, context, held=held))
        written = await run_sync(describe_written, self._scope, path, context)
        return ToolResult(ok=True, output=output, meta={**written, "diff": diff})

    async def preview(self, arguments: dict[str, JsonValue], context: ToolContext) -> Preview:
        path = str(arguments["path"])
        held = await find_held(path, self._scope, context.buffers)
        found = await run_sync(partial(preview_write, self._scope, path, str(arguments["content"]), held=held))
        return Preview(found.diff, base=found.base_hash)

    def refuse(self, arguments: Mapping[str, JsonValue]) -> str:
        """A path outside of the workspace, or one that is protected."""
        return self._scope.refuse(str(arguments["path"]), writes=True)

    async def locate(self, arguments: dict[str, JsonValue]) -> dict[str, str]:
        return {"path": await run_sync(self._scope.canonical, str(arguments["path"]))}

    async def probe(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult | None:
        """After a crash: the result where the new file is there; None where the engine has to find out or ask."""
        path = str(arguments["path"])
        finding = await run_sync(judge_note, self._scope, path, context)
        if finding == "no note" and await run_sync(self._holds, path, str(arguments["content"])):
            finding = "after"  # noted in another folder, perhaps; the file itself says enough
        if finding != "after":
            return None
        output = f"Wrote {path!r}; found so after an interruption"
        return ToolResult(ok=True, output=output, meta=await run_sync(describe_written, self._scope, path, context))

    def _holds(self, path: str, content: str) -> bool:
        try:
            with self._scope.open_target(path, create_folders=False) as target:
                return read_target(target) == content.encode("utf-8", "surrogatepass")
        except ToolFailed:
            return False

    def _write(self, path: str, content: str, context: ToolContext, *, held: str | None) -> tuple[str, str]:
        """The sentence for the model, and the change as a diff."""
        data = content.encode("utf-8", "surrogatepass")
        with self._scope.open_target(path, create_folders=True, guard=context.paths) as target:
            before = read_target(target)
            check_saved(held, before, path=path)
            # A program in the sandbox that runs now is not its author: the file stays when that ends.
            adopt(str(self._scope.workspace / target.path))
            replace_file(target, data, before=before, context=context)
        verb = "Created" if before is None else "Replaced" if before != data else "Did not need to change"
        return f"{verb} {target.path!r}, {len(data)} bytes", build_preview(target.path, before, data).diff
