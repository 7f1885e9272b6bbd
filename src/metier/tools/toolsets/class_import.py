"""Turn `module:Class` of a skill into an object, and its methods into described tools. For the worker process."""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast, get_type_hints

from pydantic import BaseModel, ConfigDict, JsonValue, create_model

from metier.errors import ToolFailed
from metier.tools.toolsets import AgentToolset, find_declaration
from metier.tools.toolsets.messages import DescribedTool

_REFERENCE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<class>[A-Za-z_]\w*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTool:
    toolset: AgentToolset
    method: Callable[..., object]
    parameters: type[BaseModel]
    description: DescribedTool


def load_toolset(package: str, reference: str, config: dict[str, JsonValue]) -> AgentToolset:
    """Runs the skill's code: anything may be raised here, `SystemExit` included."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise ToolFailed(f"Toolset {reference!r} is not of the form 'module:Class'", code="toolset_reference")
    module = importlib.import_module(f"{package}.{parts['module']}")
    found = cast("object", getattr(module, parts["class"], None))
    if found is None:
        raise ToolFailed(f"Module {parts['module']!r} has no class {parts['class']!r}", code="toolset_missing")
    if not (isinstance(found, type) and issubclass(found, AgentToolset)):
        raise ToolFailed(f"{parts['class']!r} does not inherit from AgentToolset", code="toolset_class")
    takes_config = bool(inspect.signature(found).parameters)
    return found(config) if takes_config else found()


def describe_tool(method: Callable[..., object], toolset: AgentToolset) -> LoadedTool:
    """Raises `ToolFailed` when the parameters cannot be described by a schema."""
    name = method.__name__
    parameters = build_parameters(method)
    declaration = find_declaration(method)
    documentation = inspect.getdoc(method) or ""
    return LoadedTool(
        toolset=toolset,
        method=method,
        parameters=parameters,
        description=DescribedTool(
            name=name,
            toolset=type(toolset).__name__,
            description=" ".join(documentation.split("\n\n")[0].split()),
            input_schema=cast("dict[str, JsonValue]", _without_titles(parameters.model_json_schema())),
            effect=declaration.effect,
            risk=declaration.risk,
        ),
    )


def build_parameters(method: Callable[..., object]) -> type[BaseModel]:
    """A model with one field per parameter, from its type hint, its default and its `Annotated[…, Field(…)]`."""
    hints = get_type_hints(method, include_extras=True)
    fields: dict[str, tuple[object, object]] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolFailed(f"Parameter {name!r} cannot be described; use named parameters", code="toolset_schema")
        if name not in hints:
            raise ToolFailed(f"Parameter {name!r} has no type hint", code="toolset_schema")
        fields[name] = (hints[name], ... if parameter.default is parameter.empty else parameter.default)
    # Fields come as keywords whose types are only known now, which no overload of this function describes.
    model = create_model(method.__name__, __config__=ConfigDict(extra="forbid"), **fields)  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
    return cast("type[BaseModel]", model)


def _without_titles(schema: object) -> object:
    """The titles that pydantic adds repeat the names, and every one of them costs tokens."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    entries = cast("dict[str, object]", schema)  # keys of a JSON object
    return {
        key: _without_titles(value) for key, value in entries.items() if not (key == "title" and isinstance(value, str))
    }
