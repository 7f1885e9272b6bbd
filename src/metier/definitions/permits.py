"""What one file says on what may be used: tools, models, commands, rules, as written and with lines. Judges nothing."""

from collections.abc import Mapping

from msgspec import Struct, field

from metier.definitions.acceptance import list_commands
from metier.definitions.references import INHERIT, read_names
from metier.definitions.text.yaml_text import Mapping as MappingNode
from metier.definitions.text.yaml_text import Node, Scalar, Sequence

_KEYS = ("tools", "model", "allowed_models", "tool_approvals", "task_approvals", "acceptance")


class Permits(Struct, frozen=True, kw_only=True):
    """Also of a definition that cannot be loaded for another reason."""

    file: str
    tools: Mapping[str, int] = field(default_factory=dict[str, int])
    """Names and their lines, without `inherit`."""
    is_limit: bool = False
    """`tools` is a list without `inherit`: what it does not name is not there."""
    model: Mapping[str, int] = field(default_factory=dict[str, int])
    allowed_models: Mapping[str, int] = field(default_factory=dict[str, int])
    commands: Mapping[str, int] = field(default_factory=dict[str, int])
    """Those that say whether a step is done."""
    tool_approvals: Node | None = None
    task_approvals: Node | None = None


def read_permits(root: MappingNode, *, file: str) -> tuple[Permits, ...]:
    """One, or none if the file has none of these keys."""
    if not any(entry.key in _KEYS for entry in root.entries):
        return ()
    return (
        Permits(
            file=file,
            tools=read_names(root, "tools"),
            is_limit=_is_limit(root),
            model=read_names(root, "model"),
            allowed_models=read_names(root, "allowed_models"),
            commands=list_commands(root),
            tool_approvals=root.find_value("tool_approvals"),
            task_approvals=root.find_value("task_approvals"),
        ),
    )


def _is_limit(root: MappingNode) -> bool:
    tools = root.find_value("tools")
    if not isinstance(tools, Sequence):
        return False
    return not any(isinstance(item, Scalar) and item.value.strip() == INHERIT for item in tools.items)
