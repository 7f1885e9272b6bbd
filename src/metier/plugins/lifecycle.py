"""Start and stop plugins. One that fails or hangs is reported and left out; the others go on."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from metier.plugins.load import PluginProblem, Plugins
from metier.plugins.patience import Hung, call_patiently
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
    asking = _Asking(registry.plugin, f"render its layer {layer.title!r}", seconds, report)
    return asking.call(layer.render) or ""


def _call(
    registry: Registry, function: Callable[[], None] | None, *, seconds: float, report: Callable[[str], None]
) -> bool:
    if function is None:
        return True
    word = "start" if function is registry.start else "stop"

    def call() -> bool:
        function()
        return True

    return _Asking(registry.plugin, word, seconds, report).call(call) or False


@dataclass(frozen=True, slots=True)
class _Asking:
    """One call of a plugin's function."""

    plugin: str
    what: str
    seconds: float
    report: Callable[[str], None]

    def call[T](self, function: Callable[[], T]) -> T | None:
        try:
            return call_patiently(function, seconds=self.seconds)
        except Hung:
            why = f"It did not {self.what} within {self.seconds:g} s"
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever somebody else's code raises, the engine goes on
            why = f"It did not {self.what}: {type(error).__name__}: {error}"
        self.report(PluginProblem(self.plugin, why).render())
        return None
