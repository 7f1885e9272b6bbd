"""Time and chance where a model is asked."""

import random
from collections.abc import Awaitable, Callable

import anyio
from msgspec import Struct, field

from metier.ids import Clock, SystemClock

type Sleep = Callable[[float], Awaitable[None]]


class Seams(Struct, frozen=True):
    """Time and chance, so that tests decide both."""

    clock: Clock = field(default_factory=SystemClock)
    sleep: Sleep = anyio.sleep
    draw: Callable[[], float] = random.random
    """A number from 0 up to 1."""
