"""Bar charts: the values that the chart template draws, with a scale of round numbers."""

import math
from collections.abc import Callable, Sequence

from msgspec import Struct

MAX_LABELS = 8
"""Labels of one axis; more do not fit on a phone."""
_TICKS = 3
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


class BarPart(Struct, frozen=True, kw_only=True):
    """A segment of a bar. `below` and `share` are fractions of the chart's height."""

    color: str
    """The suffix of a CSS class, see `charts` in the style sheet."""
    below: float
    share: float
    name: str = ""


class Bar(Struct, frozen=True, kw_only=True):
    label: str
    title: str
    """The tooltip."""
    hour: str = ""
    """The start of the hour in ISO 8601: the browser shows the label in its own time zone."""
    parts: tuple[BarPart, ...] = ()


class Tick(Struct, frozen=True, kw_only=True):
    label: str
    share: float


class BarChart(Struct, frozen=True, kw_only=True):
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]

    @property
    def label_step(self) -> int:
        """Return n, where every n-th bar has a label."""
        return max(1, -(-len(self.bars) // MAX_LABELS))


def round_up(highest: float, *, is_whole: bool = False) -> tuple[float, float]:
    """Return the top of a scale and the distance between ticks, both round numbers."""
    rough = max(highest, 1e-9) / _TICKS
    if is_whole:
        rough = max(1.0, rough)
    magnitude = 10.0 ** math.floor(math.log10(rough))
    # The tolerance keeps rounding errors from choosing the next larger step.
    step = next(each * magnitude for each in _STEPS if each * magnitude >= rough * (1 - 1e-9))
    if is_whole:
        step = math.ceil(step)
    return step * max(1, math.ceil(highest / step - 1e-9)), step


def build_ticks(top: float, step: float, render: Callable[[float], str]) -> tuple[Tick, ...]:
    return tuple(
        Tick(label=render(number * step), share=number * step / top) for number in range(round(top / step) + 1)
    )


def stack(amounts: Sequence[tuple[str, str, float]], *, top: float) -> tuple[BarPart, ...]:
    """Put the parts of a bar on top of each other: color, name and amount of each."""
    parts: list[BarPart] = []
    below = 0.0
    for color, name, amount in amounts:
        share = amount / top
        if share > 0:
            parts.append(BarPart(color=color, name=name, below=below, share=share))
        below += share
    return tuple(parts)
