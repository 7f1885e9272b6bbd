"""What one file says on what may be used: tools, models, commands, rules, as written and with lines. Judges nothing."""

from collections.abc import Mapping

from msgspec import Struct, field

from metier.definitions.acceptance import list_commands
from metier.definitions.references import INHERIT, read_names
from metier.definitions.text.fields import Fields
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


def read_permits(fields: Fields) -> tuple[Permits, ...]:
    """One, or none where the file says nothing of the kind."""
    if not fields.has_any(_KEYS):
        return ()
    return (
        Permits(
            file=fields.file,
            tools=read_names(fields, "tools"),
            is_limit=_is_limit(fields),
            model=read_names(fields, "model"),
            allowed_models=read_names(fields, "allowed_models"),
            commands=list_commands(fields),
            tool_approvals=fields.node("tool_approvals"),
            task_approvals=fields.node("task_approvals"),
        ),
    )


def _is_limit(fields: Fields) -> bool:
    entry = fields.find("tools")
    if entry is None or not isinstance(entry.value, Sequence):
        return False
    return not any(isinstance(item, Scalar) and item.value.strip() == INHERIT for item in entry.value.items)
