"""Plugins: discovery, loading, start, stop, and delivery of events. A plugin that fails or hangs is left out."""

import functools
import os
import queue
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, cast

from msgspec import Struct

from metier.events.record import EventRecord
from metier.plugins.registry import API, GROUP, PromptLayer, Registry, Subscriber

MAX_QUEUED_EVENTS = 10_000
"""Maximum number of events that wait for a subscriber; one that falls further behind is disconnected."""


class PluginProblem(Struct, frozen=True):
    plugin: str
    sentence: str
    hint: str = ""

    def render(self) -> str:
        advice = f"\n  hint: {self.hint}" if self.hint else ""
        return f"plugin {self.plugin!r} is off: {self.sentence}{advice}"


class Attempt(Struct, frozen=True, kw_only=True):
    """A call of a plugin with a time limit. `what` completes the sentence `It did not …`."""

    plugin: str
    what: str
    seconds: float

    def call[T](self, function: Callable[[], T]) -> T | PluginProblem:
        """Return the function's result, or a problem for any failure."""
        try:
            return _call_patiently(function, seconds=self.seconds)
        except _Hung:
            sentence = f"It did not {self.what} within {self.seconds:g} s"
            return PluginProblem(self.plugin, sentence, "Raise plugins.timeout_seconds")
        # Not failures of the plugin: they concern the whole process.
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001 - no error of a plugin may stop a run
            sentence = f"It did not {self.what}: {type(error).__name__}: {error}"
            return PluginProblem(self.plugin, sentence, "Update or uninstall it")


class _Hung(Exception):
    """A plugin exceeded its time limit. Its daemon thread is abandoned and doesn't keep the process alive."""


def _call_patiently[T](call: Callable[[], T], *, seconds: float) -> T:
    """Return or raise the outcome of `call`, run on its own thread; raises `_Hung` if it takes too long."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting thread
            failure.append(error)

    # Python cannot interrupt a call, so a plugin that hangs is left behind in a thread.
    thread = threading.Thread(target=work, name="metier-plugin", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _Hung
    if failure:
        raise failure[0]
    return outcome[0]


type Enabled = Literal["all", "none"] | tuple[str, ...]


class Plugins(Struct, frozen=True):
    """The working plugins by name, and the problems of the others."""

    registries: tuple[Registry, ...] = ()
    problems: tuple[PluginProblem, ...] = ()


def list_entry_points() -> tuple[EntryPoint, ...]:
    """List all installed plugins, enabled or not."""
    return _read_entry_points(tuple((folder, _get_change(folder)) for folder in sys.path))


@functools.lru_cache(maxsize=4)
def _read_entry_points(places: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    # Cached until a folder of packages changes, because this opens a file of every installed package.
    del places
    return tuple(sorted(entry_points(group=GROUP), key=lambda point: point.name))


def _get_change(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116  an empty name is this folder
    # `sys.path` names folders that need not exist, such as the standard library's zip file.
    except OSError:
        return 0


def load_plugins(
    enabled: Enabled, *, seconds: float, points: Iterable[EntryPoint] | None = None, taken: Sequence[str] = ()
) -> Plugins:
    """Import and register the enabled plugins. `taken` has tool names that plugins can't use."""
    if enabled == "none":
        return Plugins()
    # By name: of two plugins that offer the same, the same one must win on every machine.
    found = list_entry_points() if points is None else tuple(sorted(points, key=lambda point: point.name))
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
        # An entry point of this group is a function of this type, by contract.
        function = cast("Callable[[Registry], None]", point.load())
        wanted = getattr(function, "metier_api", API)
        if wanted != API:
            raise RuntimeError(f"it requires version {wanted} of the plugin interface, but this is version {API}")
        function(registry)

    problem = Attempt(plugin=point.name, what="register", seconds=seconds).call(register)
    return problem or registry


def _missing(enabled: Enabled, found: Sequence[EntryPoint]) -> list[str]:
    return [] if isinstance(enabled, str) else [name for name in enabled if name not in {each.name for each in found}]


def _absent(name: str) -> PluginProblem:
    return PluginProblem(name, "It is not installed", "Install it, or remove it from plugins.enabled")


def _find_clash(registry: Registry, used: set[str], others: Sequence[Registry]) -> PluginProblem | None:
    """Find a name that is already taken. Rules refer to tools by name, so no plugin may replace another tool."""
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


@contextmanager
def running(plugins: Plugins, *, seconds: float, report: Callable[[str], None]) -> Generator[tuple[Registry, ...]]:
    """Start plugins, yield the working ones, and stop them in reverse order."""
    for problem in plugins.problems:
        report(problem.render())
    started: list[Registry] = []
    working: list[Registry] = []
    try:
        for registry in plugins.registries:
            # Before the start: a plugin that fails halfway must be stopped too.
            started.append(registry)
            if _call(registry, registry.start, seconds=seconds, report=report):
                working.append(registry)
        yield tuple(working)
    finally:
        for registry in reversed(started):
            _call(registry, registry.stop, seconds=seconds, report=report)


def ask_for_layer(registry: Registry, layer: PromptLayer, *, seconds: float, report: Callable[[str], None]) -> str:
    """Return the text of a layer, or report a problem and return an empty text if the plugin fails or hangs."""
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


class Subscription:
    """A sink that passes events to a plugin's subscriber in order, on a thread of its own, without waiting for it.

    A subscriber that raises or falls too far behind is disconnected.
    """

    def __init__(self, plugin: str, subscriber: Subscriber, *, report: Callable[[str], None], seconds: float) -> None:
        self._plugin = plugin
        self._subscriber = subscriber
        self._report = report
        self._seconds = seconds
        self._waiting: queue.Queue[EventRecord | None] = queue.Queue(MAX_QUEUED_EVENTS)
        self._is_off = False
        self._thread = threading.Thread(target=self._work, name=f"metier-plugin-{plugin}", daemon=True)
        self._thread.start()

    def write(self, record: EventRecord) -> None:
        if self._is_off:
            return
        try:
            self._waiting.put_nowait(record)
        # Disconnected for good: with single events dropped, a subscriber would not notice the gap.
        except queue.Full:
            self._turn_off(f"it is {MAX_QUEUED_EVENTS} events behind")

    def close(self) -> None:
        """Wait, up to the time limit, until all events are delivered."""
        if self._is_off:
            return
        try:
            self._waiting.put(None, timeout=self._seconds)
            self._thread.join(self._seconds)
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._turn_off(f"it didn't process all events within {self._seconds:g} s")

    def _work(self) -> None:
        while (record := self._waiting.get()) is not None:
            try:
                self._subscriber(record)
            except Exception as error:  # noqa: BLE001 - no error of a plugin may stop a run
                self._turn_off(f"{type(error).__name__}: {error}")
                return

    def _turn_off(self, reason: str) -> None:
        self._is_off = True
        self._report(f"plugin {self._plugin!r} no longer gets events: {reason}")
