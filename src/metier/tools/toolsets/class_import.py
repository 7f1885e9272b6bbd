"""Turn `module:Class` of a skill into an object, and its methods into described tools. For the worker process."""

import importlib
import inspect
import re
from collections.abc import Callable
from typing import cast

from pydantic import JsonValue

from metier.dataclass import dataclass
from metier.errors import ToolFailed
from metier.lazy_regex import lazy_regex
from metier.tools.signatures import Signature, read_description, read_signature
from metier.tools.toolsets import AgentToolset, find_declaration
from metier.tools.toolsets.messages import DescribedTool

_REFERENCE = lazy_regex(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<class>[A-Za-z_]\w*)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTool:
    toolset: AgentToolset
    method: Callable[..., object]
    signature: Signature
    description: DescribedTool


def load_toolset(package: str, reference: str, config: dict[str, JsonValue]) -> AgentToolset:
    """Runs the skill's code: anything may be raised here, `SystemExit` included."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise ToolFailed(f"Toolset {reference!r} is not of the form 'module:Class'", code="toolset_reference")
    try:
        module = importlib.import_module(f"{package}.{parts['module']}")
    except ModuleNotFoundError as error:
        # The name of the private package would tell its author nothing.
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
    """Raises `ToolFailed` when the parameters cannot be described by a schema."""
    name = method.__name__
    signature = read_signature(method)
    declaration = find_declaration(method)
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
