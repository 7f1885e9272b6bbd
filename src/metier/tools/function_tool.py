"""A typed Python function as a tool: its signature is the schema, its docstring the description.

    @tool(effect="read", risk="low")
    def find_order(number: Annotated[int, Field(description="As printed on the invoice")]) -> Order:
        \"\"\"Look up an order.\"\"\"
        ...

The function runs in the agent's process, without a sandbox, because it is part of the program that opened the agent.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, cast, get_type_hints, overload

import anyio
import anyio.to_thread
from msgspec import Struct
from pydantic import JsonValue, PydanticUserError, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from metier.errors import ToolFailed, UsageError
from metier.tools.base import Tool, ToolContext, ToolInfo, ToolResult
from metier.tools.effects import Effect, Risk
from metier.tools.function_signatures import Signature, read_description, read_signature


class FunctionTool[**P, R](Struct, frozen=True, kw_only=True):
    """A function that a model may call. Calling the object calls the function itself."""

    function: Callable[P, R]
    info: ToolInfo
    signature: Signature
    context_name: str = ""
    """The parameter that receives the `ToolContext`; the model does not see it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        """Convert the arguments, call the function and convert its result. Raises `ToolFailed`."""
        try:
            values = self.signature.parse(arguments)
        except ValidationError as error:
            raise ToolFailed(_describe(error), code="invalid_input") from error
        if self.context_name:
            values[self.context_name] = context
        with anyio.move_on_after(context.timeout_seconds) as scope:
            returned = await self._call(values)
            return _build_result(returned, self.info.name)
        assert scope.cancelled_caught, "the block above returns, raises or runs out of time"
        raise ToolFailed(f"Tool {self.info.name!r} took longer than {context.timeout_seconds:g} s", code="timeout")

    async def _call(self, values: dict[str, object]) -> object:
        # The parameters were validated against the signature, but the type of the keywords is not known here.
        call = partial(cast("Callable[..., object]", self.function), **values)
        if inspect.iscoroutinefunction(self.function):
            return await cast("Callable[[], Awaitable[object]]", call)()
        # A plain function must not block the event loop. Python can't stop a thread, so one that hangs is abandoned.
        returned = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        return await cast("Awaitable[object]", returned) if inspect.isawaitable(returned) else returned


class _Decorator(Protocol):
    def __call__[**P, R](self, function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool[**P, R](function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(*, name: str = "", description: str = "", effect: Effect = "opaque", risk: Risk = "medium") -> _Decorator: ...


def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    effect: Effect = "opaque",
    risk: Risk = "medium",
) -> object:
    """Turn a typed function, plain or `async`, into a tool.

    `effect` is the consequence of repeating a call after a crash: `read` and `idempotent` calls may be repeated,
    `keyed` calls may be repeated with the same `ToolContext.idempotency_key`, and `opaque` calls are never repeated
    without asking the user. `risk` is shown to the approver. A parameter of type `ToolContext` receives the context of
    the call.

    Raises `UsageError` if the parameters cannot be described by a JSON schema.
    """

    def build(target: Callable[..., object]) -> object:
        return _build_tool(target, name=name, description=description, effect=effect, risk=risk)

    return build if function is None else build(function)


def as_tool(given: Tool | Callable[..., object]) -> Tool:
    """Return a tool unchanged, and a plain function as a tool. Raises `UsageError`."""
    if hasattr(given, "info") and hasattr(given, "execute"):
        return cast("Tool", given)
    if not callable(given):
        raise UsageError(
            f"{given!r} is neither a tool nor a function", hint="Pass functions, or results of `metier.tool`"
        )
    return _build_tool(given)


def _build_tool(
    function: Callable[..., object],
    *,
    name: str = "",
    description: str = "",
    effect: Effect = "opaque",
    risk: Risk = "medium",
) -> FunctionTool[..., object]:
    called = name or function.__name__
    try:
        context_name = _get_context(function)
        signature = read_signature(function, skip=(context_name,))
        schema = signature.schema
    except (ToolFailed, PydanticUserError, NameError, TypeError) as error:
        fact = error.message if isinstance(error, ToolFailed | PydanticUserError) else str(error)
        raise UsageError(f"Function {called!r} cannot be a tool: {fact}") from error
    summary = description or read_description(function)
    if not summary:
        raise UsageError(
            f"Function {called!r} cannot be a tool: it has no description",
            hint="Write a docstring; the model reads its first paragraph",
        )
    info = ToolInfo(
        id=f"python:{called}",
        name=called,
        description=summary,
        category="custom",
        input_schema=schema,
        risk=risk,
        effect=effect,
    )
    return FunctionTool(function=function, info=info, signature=signature, context_name=context_name)


def _get_context(function: Callable[..., object]) -> str:
    hints = get_type_hints(function)
    return next((name for name, hint in hints.items() if hint is ToolContext and name != "return"), "")


def _build_result(returned: object, name: str) -> ToolResult:
    if isinstance(returned, ToolResult):
        return returned
    try:
        output = cast("JsonValue", to_jsonable_python(returned))  # the function promises to return JSON
    except PydanticSerializationError as error:
        raise ToolFailed(f"Tool {name!r} returned a {type(returned).__name__}, which is not JSON") from error
    return ToolResult(ok=True, output=output)


def _describe(error: ValidationError) -> str:
    """Describe every invalid argument in one sentence, without values, which may be secret."""
    wrong = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)]
    return "; ".join(wrong)
