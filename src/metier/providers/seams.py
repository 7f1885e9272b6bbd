"""Time and chance where a model is asked."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import field

import anyio

from metier.dataclass import dataclass
from metier.ids import Clock, SystemClock

type Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Seams:
    """Time and chance, so that tests decide both."""

    clock: Clock = field(default_factory=SystemClock)
    sleep: Sleep = anyio.sleep
    draw: Callable[[], float] = random.random
    """A number from 0 up to 1."""
