"""Call code that is not ours and may fail or never return, without failing or waiting for ever."""

import threading
from collections.abc import Callable

from metier.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PluginProblem:
    plugin: str
    sentence: str
    hint: str = ""

    def render(self) -> str:
        advice = f"\n  hint: {self.hint}" if self.hint else ""
        return f"plugin {self.plugin!r} is off: {self.sentence}{advice}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Something that a plugin is asked to do, in words that follow `It did not`."""

    plugin: str
    what: str
    seconds: float

    def call[T](self, function: Callable[[], T]) -> T | PluginProblem:
        """What the function returns, or what went wrong with it, whatever that was."""
        try:
            return _call_patiently(function, seconds=self.seconds)
        except _Hung:
            sentence = f"It did not {self.what} within {self.seconds:g} s"
            return PluginProblem(self.plugin, sentence, "Raise plugins.timeout_seconds")
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the code of a plugin raises, the engine goes on
            sentence = f"It did not {self.what}: {type(error).__name__}: {error}"
            return PluginProblem(self.plugin, sentence, "Update or uninstall it")


class _Hung(Exception):
    """It was given its time and is still at it. Its thread is left behind and does not keep the process alive."""


def _call_patiently[T](call: Callable[[], T], *, seconds: float) -> T:
    """What `call` returns or raises, `_Hung` when it takes longer. It runs on a thread of its own."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting thread
            failure.append(error)

    thread = threading.Thread(target=work, name="metier-plugin", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise _Hung
    if failure:
        raise failure[0]
    return outcome[0]
