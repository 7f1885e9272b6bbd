"""Clock, sleep and random numbers of model calls."""

import random
from collections.abc import Awaitable, Callable

import anyio
from msgspec import Struct, field

from metier.ids import Clock, SystemClock

type Sleep = Callable[[float], Awaitable[None]]


class Seams(Struct, frozen=True):
    """Replaceable time and randomness, for tests."""

    clock: Clock = field(default_factory=SystemClock)
    sleep: Sleep = anyio.sleep
    draw: Callable[[], float] = random.random
    """Returns a number in [0, 1)."""
