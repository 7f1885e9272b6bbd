"""Start and stop plugins. One that fails or hangs is reported and left out; the others go on."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from metier.plugins.load import PluginProblem, Plugins
from metier.plugins.patience import Hung, call_patiently
from metier.plugins.registry import Registry


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


def _call(
    registry: Registry, function: Callable[[], None] | None, *, seconds: float, report: Callable[[str], None]
) -> bool:
    if function is None:
        return True
    word = "start" if function is registry.start else "stop"
    try:
        call_patiently(function, seconds=seconds)
    except Hung:
        report(PluginProblem(registry.plugin, f"It did not {word} within {seconds:g} s").render())
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001 - whatever somebody else's code raises, the engine goes on
        report(PluginProblem(registry.plugin, f"It did not {word}: {type(error).__name__}: {error}").render())
    else:
        return True
    return False
