"""The forecast: the astronomical tide from harmonic constants, plus a linear estimate of the surge.

The surge estimate is deliberately simple. It may be wrong by 15 cm in a storm, and callers must say so.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

STANDARD_PRESSURE = 1013.25
CENTIMETRES_PER_HECTOPASCAL = 1.0


@dataclass(frozen=True)
class Constituent:
    """One harmonic part of the tide: amplitude in metres, speed in degrees per hour, phase in degrees."""

    amplitude: float
    speed: float
    phase: float


def tide(constituents: Iterable[Constituent], hours: float) -> float:
    """Height of the astronomical tide, in metres, so many hours after the epoch."""
    return sum(c.amplitude * math.cos(math.radians(c.speed * hours - c.phase)) for c in constituents)


def surge(pressure: float, wind: float) -> float:
    """Rise of the water by low pressure and onshore wind, in metres."""
    # FIXME: wind of the sheltered mast is too low, use the offshore buoy
    barometric = (STANDARD_PRESSURE - pressure) * CENTIMETRES_PER_HECTOPASCAL / 100
    return barometric + 0.002 * wind * abs(wind)
