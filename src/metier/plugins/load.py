"""Find plugins and let each say what it adds. One that fails or hangs is a problem in a list, never an error."""

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, cast

from metier.dataclass import dataclass
from metier.plugins.patience import Attempt, PluginProblem
from metier.plugins.registry import API, GROUP, Registry

type Enabled = Literal["all", "none"] | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plugins:
    """Those that work, in the order of their names, and what is wrong with the others."""

    registries: tuple[Registry, ...] = ()
    problems: tuple[PluginProblem, ...] = ()


def find_entry_points() -> tuple[EntryPoint, ...]:
    """Every plugin that is installed, whether it is wanted or not."""
    return _read_entry_points(tuple((folder, _find_change(folder)) for folder in sys.path))


@functools.lru_cache(maxsize=4)
def _read_entry_points(places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Opens a file of each package, so it is done again only when one of the places of packages has changed."""
    del places
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _find_change(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116  an empty name is this folder
    except OSError:
        return 0


def load_plugins(
    enabled: Enabled, *, seconds: float, points: Iterable[EntryPoint] | None = None, taken: Sequence[str] = ()
) -> Plugins:
    """Import and register what is wanted. `taken` are names of tools that no plugin may use."""
    if enabled == "none":
        return Plugins()
    found = find_entry_points() if points is None else tuple(sorted(points, key=lambda point: point.name))
    wanted = found if enabled == "all" else tuple(point for point in found if point.name in enabled)
    problems = [_absent(name) for name in _missing(enabled, found)]
    registries: list[Registry] = []
    used = set(taken)
    for point in wanted:
        registry = _register(point, seconds=seconds)
        problem = registry if isinstance(registry, PluginProblem) else _find_clash(registry, used, registries)
        if problem is not None:
            problems.append(problem)
        elif isinstance(registry, Registry):
            used.update(tool.info.name for tool in registry.tools)
            registries.append(registry)
    return Plugins(tuple(registries), tuple(problems))


def _register(point: EntryPoint, *, seconds: float) -> Registry | PluginProblem:
    registry = Registry(plugin=point.name)

    def register() -> None:
        # The group promises a function of this type.
        function = cast("Callable[[Registry], None]", point.load())
        wanted = getattr(function, "metier_api", API)
        if wanted != API:
            raise RuntimeError(f"it is written for version {wanted} of the plugin interface, this is {API}")
        function(registry)

    problem = Attempt(plugin=point.name, what="register", seconds=seconds).call(register)
    return problem or registry


def _missing(enabled: Enabled, found: Sequence[EntryPoint]) -> list[str]:
    return [] if isinstance(enabled, str) else [name for name in enabled if name not in {each.name for each in found}]


def _absent(name: str) -> PluginProblem:
    return PluginProblem(name, "It is not installed", "Install its distribution, or take it out of plugins.enabled")


def _find_clash(registry: Registry, used: set[str], others: Sequence[Registry]) -> PluginProblem | None:
    """No plugin may stand in for a tool of ours or of another plugin: rules are written about names."""
    for tool in registry.tools:
        if tool.info.name in used:
            return PluginProblem(registry.plugin, f"Its tool {tool.info.name!r} has a name that is taken")
    for other in others:
        for kind, mine, theirs in (
            ("provider", registry.providers, other.providers),
            ("store", registry.stores, other.stores),
            ("command", registry.commands, other.commands),
        ):
            both = sorted(mine.keys() & theirs.keys())
            if both:
                return PluginProblem(registry.plugin, f"Its {kind} {both[0]!r} is also one of plugin {other.plugin!r}")
    return None
