"""Names that a definition refers to, and the tools, models and commands that it permits, with their lines."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct, field

from metier.definitions.text.yaml_text import Mapping, Node, Scalar, list_texts
from metier.definitions.text.yaml_text import Sequence as ListNode

INHERIT = "inherit"


def find_limit(own: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the names to which a skill's list limits its parent's list, or None without a limit.

    Additions to `inherit` are ignored: a skill can only narrow authority.
    """
    return None if own is None or INHERIT in own else tuple(own)


def resolve_list(own: Sequence[str] | None, inherited: Sequence[str]) -> tuple[str, ...]:
    """Return the effective names without duplicates, inherited ones first.

    Without a list, the names are inherited. A list with `inherit` adds its other names to the inherited ones. A list
    without `inherit` replaces them, so an empty list allows nothing.
    """
    if own is None:
        return tuple(dict.fromkeys(inherited))
    names = [name for name in own if name != INHERIT]
    if INHERIT in own:
        return tuple(dict.fromkeys([*inherited, *names]))
    return tuple(dict.fromkeys(names))


type Kind = Literal["agent", "skill", "task"]

_KEYS: tuple[tuple[str, Kind], ...] = (("agent", "agent"), ("skills", "skill"), ("tasks", "task"))


class Reference(Struct, frozen=True):
    kind: Kind
    name: str
    file: str
    line: int


def read_references(root: Mapping, *, file: str) -> tuple[Reference, ...]:
    """Return every name, even if the definition cannot be loaded."""
    found: list[Reference] = []
    for key, kind in _KEYS:
        value = root.find_value(key)
        items = value.items if isinstance(value, ListNode) else (value,)
        for item in items:
            if isinstance(item, Scalar):
                names = [item.value] if kind == "agent" or item is not value else item.value.split(",")
                found += [Reference(kind, name.strip(), file, item.line) for name in names if name.strip()]
    return tuple(reference for reference in found if reference.name != INHERIT)


def read_names(root: Mapping, key: str) -> dict[str, int]:
    """Return the names of a list with their lines, without `inherit`."""
    entry = root.find(key)
    if entry is None or root.find_value(key) is None:
        return {}
    if isinstance(entry.value, ListNode):
        names = {item.value.strip(): item.line for item in entry.value.items if isinstance(item, Scalar)}
    else:
        names = dict.fromkeys(list_texts(entry.value) if isinstance(entry.value, Scalar) else (), entry.line)
    return {name: line for name, line in names.items() if name and name != INHERIT}


_PERMIT_KEYS = ("tools", "model", "allowed_models", "tool_approvals", "task_approvals", "acceptance")


class Permits(Struct, frozen=True, kw_only=True):
    """Tools, models and commands that a file permits, even if its definition cannot be loaded."""

    file: str
    tools: dict[str, int] = field(default_factory=dict[str, int])
    """Names with their lines, without `inherit`."""
    is_limit: bool = False
    """True if `tools` is a list without `inherit`, which makes other tools unavailable."""
    model: dict[str, int] = field(default_factory=dict[str, int])
    allowed_models: dict[str, int] = field(default_factory=dict[str, int])
    commands: dict[str, int] = field(default_factory=dict[str, int])
    """Commands of acceptance criteria."""
    tool_approvals: Node | None = None
    task_approvals: Node | None = None


def read_permits(root: Mapping, *, file: str) -> tuple[Permits, ...]:
    """Read the permissions of a file: one item, or none if it has none of these keys."""
    if not any(entry.key in _PERMIT_KEYS for entry in root.entries):
        return ()
    return (
        Permits(
            file=file,
            tools=read_names(root, "tools"),
            is_limit=_is_limit(root),
            model=read_names(root, "model"),
            allowed_models=read_names(root, "allowed_models"),
            commands=_list_commands(root),
            tool_approvals=root.find_value("tool_approvals"),
            task_approvals=root.find_value("task_approvals"),
        ),
    )


def _is_limit(root: Mapping) -> bool:
    tools = root.find_value("tools")
    if not isinstance(tools, ListNode):
        return False
    return not any(isinstance(item, Scalar) and item.value.strip() == INHERIT for item in tools.items)


def _list_commands(root: Mapping) -> dict[str, int]:
    """Return the commands below `acceptance` with their lines, even from an invalid list."""
    acceptance = root.find_value("acceptance")
    items = acceptance.items if isinstance(acceptance, ListNode) else ()
    found = [item.find("command") for item in items if isinstance(item, Mapping)]
    return {each.value.value.strip(): each.value.line for each in found if each and isinstance(each.value, Scalar)}
