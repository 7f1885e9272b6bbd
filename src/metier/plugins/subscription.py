"""Hand events to a subscriber without ever waiting for it. A sink like any other, but one that cannot hold up a run."""

import queue
import threading
from collections.abc import Callable

from metier.events.record import EventRecord
from metier.plugins.registry import Subscriber

WAITING = 10_000
"""Maximum number of events that may wait for a subscriber before it counts as stuck."""


class Subscription:
    """Calls the subscriber on a thread of its own, in order. One that raises or falls too far behind is left out."""

    def __init__(self, plugin: str, subscriber: Subscriber, *, report: Callable[[str], None], seconds: float) -> None:
        self._plugin = plugin
        self._subscriber = subscriber
        self._report = report
        self._seconds = seconds
        self._waiting: queue.Queue[EventRecord | None] = queue.Queue(WAITING)
        self._is_off = False
        self._thread = threading.Thread(target=self._work, name=f"metier-plugin-{plugin}", daemon=True)
        self._thread.start()

    def write(self, record: EventRecord) -> None:
        if self._is_off:
            return
        try:
            self._waiting.put_nowait(record)
        except queue.Full:
            self._turn_off(f"{WAITING} events wait for it")

    def close(self) -> None:
        """Wait, for a while, until it has seen everything."""
        if self._is_off:
            return
        try:
            self._waiting.put(None, timeout=self._seconds)
            self._thread.join(self._seconds)
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._turn_off(f"it had not seen every event after {self._seconds:g} s")

    def _work(self) -> None:
        while (record := self._waiting.get()) is not None:
            try:
                self._subscriber(record)
            except Exception as error:  # noqa: BLE001 - whatever the code of a plugin raises, the engine goes on
                self._turn_off(f"{type(error).__name__}: {error}")
                return

    def _turn_off(self, why: str) -> None:
        self._is_off = True
        self._report(f"plugin {self._plugin!r} no longer gets events: {why}")
