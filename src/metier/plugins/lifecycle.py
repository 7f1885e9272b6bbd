"""Start and stop plugins. One that fails or hangs is reported and left out; the others go on."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from metier.plugins.load import Plugins
from metier.plugins.patience import Attempt, PluginProblem
from metier.plugins.registry import PromptLayer, Registry


@contextmanager
def running(plugins: Plugins, *, seconds: float, report: Callable[[str], None]) -> Generator[tuple[Registry, ...]]:
    """The plugins that started, for as long as the block lasts; they stop in the opposite order."""
    for problem in plugins.problems:
        report(problem.render())
    begun: list[Registry] = []
    working: list[Registry] = []
    try:
        for registry in plugins.registries:
            begun.append(registry)
            if _call(registry, registry.start, seconds=seconds, report=report):
                working.append(registry)
        yield tuple(working)
    finally:
        for registry in reversed(begun):
            _call(registry, registry.stop, seconds=seconds, report=report)


def ask_for_layer(registry: Registry, layer: PromptLayer, *, seconds: float, report: Callable[[str], None]) -> str:
    """The text of a layer; nothing, and a report, when the plugin fails or hangs."""
    what = f"render its layer {layer.title!r}"
    text = Attempt(plugin=registry.plugin, what=what, seconds=seconds).call(layer.render)
    if isinstance(text, PluginProblem):
        report(text.render())
        return ""
    return text


def _call(
    registry: Registry, function: Callable[[], None] | None, *, seconds: float, report: Callable[[str], None]
) -> bool:
    if function is None:
        return True
    word = "start" if function is registry.start else "stop"
    problem = Attempt(plugin=registry.plugin, what=word, seconds=seconds).call(function)
    if isinstance(problem, PluginProblem):
        report(problem.render())
        return False
    return True
