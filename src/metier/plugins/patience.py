"""Call code that is not ours and may fail or never return, without failing or waiting for ever."""

import threading
from collections.abc import Callable


class Hung(Exception):
    """It was given its time and is still at it. Its thread is left behind and does not keep the process alive."""


def call_patiently[T](call: Callable[[], T], *, seconds: float) -> T:
    """What `call` returns or raises, `Hung` when it takes longer. It runs on a thread of its own."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - handed over to whoever waits
            failure.append(error)

    thread = threading.Thread(target=work, name="metier-plugin", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Hung(f"It took longer than {seconds:g} s")
    if failure:
        raise failure[0]
    return outcome[0]
