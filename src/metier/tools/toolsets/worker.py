"""The process that runs the toolsets of one skill (`python -I -m metier.tools.toolsets.worker`), and its protocol.

It turns each `module:Class` of the skill into described tools, reads requests from standard input and answers them one
at a time, as JSON lines, on the original standard output. The agent's secrets never reach it: its environment is built
from a list. The skill's own output goes to standard error.
"""

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, assert_never, cast

import anyio
import anyio.to_thread
from msgspec import Struct
from pydantic import BaseModel, Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from metier.errors import ToolFailed
from metier.tools.effects import Effect, Risk
from metier.tools.function_signatures import Signature, read_description, read_signature
from metier.tools.process.json_lines_worker import open_private_package, take_streams
from metier.tools.toolsets import AgentToolset, get_declaration
from metier.values import Value


class LoadRequest(Value):
    """Import the toolsets and describe their tools."""

    kind: Literal["load"] = "load"
    skill: str
    folder: str
    toolsets: tuple[str, ...]
    config: dict[str, JsonValue] = Field(default_factory=dict)


class CallRequest(Value):
    kind: Literal["call"] = "call"
    tool: str
    arguments: dict[str, JsonValue]
    idempotency_key: str = ""


type Request = Annotated[LoadRequest | CallRequest, Field(discriminator="kind")]


class DescribedTool(Value):
    name: str
    toolset: str
    """The name of its class."""
    description: str
    input_schema: dict[str, JsonValue]
    effect: Effect
    risk: Risk


class LoadFailure(Value):
    toolset: str
    """As written in `SKILL.md`, with the method if only that one failed."""
    code: str
    message: str


class LoadReply(Value):
    tools: tuple[DescribedTool, ...] = ()
    failures: tuple[LoadFailure, ...] = ()


class CallReply(Value):
    success: bool
    result: JsonValue = None
    message: str = ""
    error: str | None = None


_REFERENCE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<class>[A-Za-z_]\w*)", re.ASCII)


class LoadedTool(Struct, frozen=True, kw_only=True):
    toolset: AgentToolset
    method: Callable[..., object]
    signature: Signature
    description: DescribedTool


def load_toolset(package: str, reference: str, config: dict[str, JsonValue]) -> AgentToolset:
    """Import and create a toolset. This runs the skill's code, which may raise anything, even `SystemExit`."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise ToolFailed(f"Toolset {reference!r} is not of the form 'module:Class'", code="toolset_reference")
    try:
        module = importlib.import_module(f"{package}.{parts['module']}")
    except ModuleNotFoundError as error:
        # The original error names the private package, which the skill's author does not know.
        if not error.name or not f"{package}.{parts['module']}.".startswith(f"{error.name}."):
            raise
        file = f"{parts['module'].replace('.', '/')}.py"
        raise ToolFailed(f"The skill has no file '{file}'", code="toolset_missing") from error
    found = cast("object", getattr(module, parts["class"], None))
    if found is None:
        raise ToolFailed(f"Module {parts['module']!r} has no class {parts['class']!r}", code="toolset_missing")
    if not (isinstance(found, type) and issubclass(found, AgentToolset)):
        raise ToolFailed(f"{parts['class']!r} does not inherit from AgentToolset", code="toolset_class")
    takes_config = bool(inspect.signature(found).parameters)
    return found(config) if takes_config else found()


def describe_tool(method: Callable[..., object], toolset: AgentToolset) -> LoadedTool:
    """Describe a method as a tool. Raises `ToolFailed` if a schema cannot describe its parameters."""
    name = method.__name__
    signature = read_signature(method)
    declaration = get_declaration(method)
    return LoadedTool(
        toolset=toolset,
        method=method,
        signature=signature,
        description=DescribedTool(
            name=name,
            toolset=type(toolset).__name__,
            description=read_description(method),
            input_schema=signature.schema,
            effect=declaration.effect,
            risk=declaration.risk,
        ),
    )


_REQUEST: TypeAdapter[LoadRequest | CallRequest] = TypeAdapter(Request)


def main() -> None:
    requests, replies = take_streams()
    anyio.run(serve, requests, replies)


async def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    worker = Worker()
    while line := await anyio.to_thread.run_sync(requests.readline):
        reply = await worker.answer(_REQUEST.validate_json(line))
        replies.write(reply.model_dump_json().encode() + b"\n")
        replies.flush()


@dataclasses.dataclass(slots=True)
class Worker:
    tools: dict[str, LoadedTool] = dataclasses.field(default_factory=dict[str, LoadedTool])

    async def answer(self, request: LoadRequest | CallRequest) -> BaseModel:
        match request:
            case LoadRequest():
                return self.load(request)
            case CallRequest():
                return await self.call(request)
            case _:
                assert_never(request)

    def load(self, request: LoadRequest) -> LoadReply:
        failures: list[LoadFailure] = []
        package = open_private_package(Path(request.folder))
        for reference in request.toolsets:
            try:
                toolset = load_toolset(package, reference, request.config)
                failures += self._add_tools(toolset, reference)
            except ToolFailed as error:
                failures.append(LoadFailure(toolset=reference, code=error.code, message=error.message))
            except (Exception, SystemExit) as error:  # noqa: BLE001  a skill's code may raise anything
                failures.append(LoadFailure(toolset=reference, code="toolset_import", message=_say(error)))
        return LoadReply(tools=tuple(tool.description for tool in self.tools.values()), failures=tuple(failures))

    def _add_tools(self, toolset: AgentToolset, reference: str) -> list[LoadFailure]:
        failures: list[LoadFailure] = []
        kind = type(toolset).__name__
        for method in toolset.get_tools():
            place = f"{reference}.{getattr(method, '__name__', method)}"
            try:
                tool = describe_tool(method, toolset)
            except ToolFailed as error:
                failures.append(LoadFailure(toolset=place, code=error.code, message=error.message))
                continue
            except Exception as error:  # noqa: BLE001  type hints are the skill's code too
                failures.append(LoadFailure(toolset=place, code="toolset_schema", message=_say(error)))
                continue
            first = self.tools.setdefault(tool.description.name, tool)
            if first is not tool:
                message = f"Tool {tool.description.name!r} exists twice, in {first.description.toolset!r} and {kind!r}"
                failures.append(LoadFailure(toolset=place, code="tool_collision", message=message))
        return failures

    async def call(self, request: CallRequest) -> CallReply:
        tool = self.tools.get(request.tool)
        if tool is None:
            return CallReply(success=False, error="not_found", message=f"There is no tool {request.tool!r}")
        try:
            arguments = tool.signature.parse(request.arguments)
        except ValidationError as error:
            return CallReply(success=False, error="invalid_input", message=_say_invalid(error))
        try:
            # An attribute is safe, because the worker answers one request at a time.
            tool.toolset.idempotency_key = request.idempotency_key
            return build_reply(await _invoke(tool, arguments))
        except (Exception, SystemExit) as error:  # noqa: BLE001  a skill's code may raise anything
            return CallReply(success=False, error="execution_failed", message=_say(error))


async def _invoke(tool: LoadedTool, arguments: dict[str, object]) -> object:
    if inspect.iscoroutinefunction(tool.method):
        return await tool.method(**arguments)
    result = await anyio.to_thread.run_sync(lambda: tool.method(**arguments))
    return await result if inspect.isawaitable(result) else result


def build_reply(returned: object) -> CallReply:
    """Pass on `{success, result, message, error}`; anything else is the result of a successful call."""
    try:
        value = cast("JsonValue", to_jsonable_python(returned))
    except PydanticSerializationError as error:
        return CallReply(success=False, error="execution_failed", message=f"The result is not JSON: {error}")
    if not isinstance(value, Mapping) or not isinstance(value.get("success"), bool):
        return CallReply(success=True, result=value)
    error_code = value.get("error")
    return CallReply(
        success=value["success"] is True,
        result=value.get("result"),
        message=str(value.get("message") or ""),
        error=None if error_code is None else str(error_code),
    )


def _say(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _say_invalid(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}"


if __name__ == "__main__":
    sys.exit(main())
