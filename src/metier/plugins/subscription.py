"""A sink that passes events to a plugin's subscriber without ever waiting for it."""

import queue
import threading
from collections.abc import Callable

from metier.events.record import EventRecord
from metier.plugins.registry import Subscriber

WAITING = 10_000
"""Maximum number of queued events; a subscriber that falls behind is disconnected."""


class Subscription:
    """Calls a subscriber in its own thread, in order. One that raises or falls too far behind is disconnected."""

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
            self._turn_off(f"it is {WAITING} events behind")

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
