"""The agents, skills and tasks that a definition names, with the line of each name."""

from typing import Literal

from metier.dataclass import dataclass
from metier.definitions.inherit import INHERIT
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Scalar, Sequence

type Kind = Literal["agent", "skill", "task"]

_KEYS: tuple[tuple[str, Kind], ...] = (("agent", "agent"), ("skills", "skill"), ("tasks", "task"))


@dataclass(frozen=True, slots=True)
class Reference:
    kind: Kind
    name: str
    file: str
    line: int


def read_references(fields: Fields) -> tuple[Reference, ...]:
    """Every name, also of a definition that cannot be loaded for another reason."""
    found: list[Reference] = []
    for key, kind in _KEYS:
        entry = fields.find(key)
        if entry is None:
            continue
        items = entry.value.items if isinstance(entry.value, Sequence) else (entry.value,)
        for item in items:
            if isinstance(item, Scalar):
                names = [item.value] if kind == "agent" or item is not entry.value else item.value.split(",")
                found += [Reference(kind, name.strip(), fields.file, item.line) for name in names if name.strip()]
    return tuple(reference for reference in found if reference.name != INHERIT)


def read_names(fields: Fields, key: str) -> dict[str, int]:
    """The names of a list and their lines, without `inherit`."""
    entry = fields.find(key)
    if entry is None:
        return {}
    if isinstance(entry.value, Sequence):
        names = {item.value.strip(): item.line for item in entry.value.items if isinstance(item, Scalar)}
    else:
        names = dict.fromkeys(fields.texts(key) or (), entry.line)
    return {name: line for name, line in names.items() if name and name != INHERIT}
