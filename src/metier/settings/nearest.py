"""The setting that the user probably meant, wherever it stands."""

from collections.abc import Iterable

from metier.definitions.nearest import find_nearest, list_nearest


def find_nearest_key(key: str, siblings: Iterable[str], keys: Iterable[str]) -> str | None:
    """The setting that was probably meant by `key`: one that stands in another section, or one of its siblings."""
    name = key.rpartition(".")[2]
    known = list(keys)
    moved = [other for other in known if other.rpartition(".")[2] == name]
    if moved:
        return list_nearest(key, moved, most=1)[0]
    sibling = find_nearest(name, siblings)
    if sibling:
        return sibling
    alike = find_nearest(name, {other.rpartition(".")[2] for other in known})
    return list_nearest(key, [other for other in known if other.endswith(f".{alike}")], most=1)[0] if alike else None
