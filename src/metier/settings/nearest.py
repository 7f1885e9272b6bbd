"""Find the name that was probably meant."""

from collections.abc import Iterable

from rapidfuzz import fuzz, process

_CLOSE_ENOUGH = 60


def find_nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that looks most like `name`, if any looks like it at all."""
    choices = list(names)
    found = process.extractOne(name.lower().replace("-", "_"), choices, scorer=fuzz.ratio, score_cutoff=_CLOSE_ENOUGH)
    return found[0] if found else None


def find_nearest_key(key: str, siblings: Iterable[str], keys: Iterable[str]) -> str | None:
    """The setting that was probably meant by `key`: one that stands in another section, or one of its siblings."""
    name = key.rpartition(".")[2]
    known = list(keys)
    moved = [other for other in known if other.rpartition(".")[2] == name]
    if moved:
        return process.extractOne(key, moved)[0]
    sibling = find_nearest(name, siblings)
    if sibling:
        return sibling
    alike = find_nearest(name, {other.rpartition(".")[2] for other in known})
    return process.extractOne(key, [other for other in known if other.endswith(f".{alike}")])[0] if alike else None


def suggest(name: str | None) -> str:
    """A hint, or nothing."""
    return f"Did you mean {name!r}?" if name else ""
