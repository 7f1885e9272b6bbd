"""A run as bars over time: turns, model calls, steps, child runs. Idle time is compressed, so that work is visible.

Pure: times are those of the events, positions are percentages of the width.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from metier.views.run_view import CallView, Item, NoteView, RunView, StepView, TextView

IDLE_WIDTH = 2.5
"""Percent of the width that a compressed gap takes."""
_MIN_IDLE_SECONDS = 1.5
_MIN_WIDTH = 0.4
"""Percent of the width, so that short bars are visible."""
# Together they take 30 percent of the width, which leaves enough for the work.
_MAX_GAPS = 12

type RowKind = Literal["call", "step", "text", "note", "child"]


class Gap(Struct, frozen=True, kw_only=True):
    """Time without activity: the run waited for a user, a worker or a retry."""

    at: float
    width: float
    seconds: float


class Row(Struct, frozen=True, kw_only=True):
    kind: RowKind
    turn: int
    key: str
    """Unique on the page, and stable while the run continues."""
    run_id: str = ""
    """The run of the row: that of the page or a child run."""
    at: float = 0.0
    width: float = 0.0
    seconds: float = 0.0
    step: StepView | None = None
    call: CallView | None = None
    text: TextView | None = None
    note: NoteView | None = None
    child: RunView | None = None
    depth: int = 0

    @property
    def is_failed(self) -> bool:
        if self.step is not None:
            return self.step.state in ("failed", "denied", "timeout", "in_doubt")
        return self.call is not None and self.call.state == "failed"


class Turn(Struct, frozen=True, kw_only=True):
    number: int
    rows: tuple[Row, ...]


class Waterfall(Struct, frozen=True, kw_only=True):
    turns: tuple[Turn, ...]
    gaps: tuple[Gap, ...]
    busy_seconds: float
    total_seconds: float

    @property
    def idle_seconds(self) -> float:
        return max(0.0, self.total_seconds - self.busy_seconds)


class _Span(Struct, frozen=True):
    start: float
    end: float


def build_waterfall(view: RunView) -> Waterfall:
    """Build rows in chronological order by turn. Those of a child run follow the step that started it."""
    origin = view.started_at
    now = _seconds(view.updated_at, origin)
    spans = sorted(_list_spans(view, origin, now), key=lambda span: span.start)
    scale = _Scale(spans, total=max(now, max((span.end for span in spans), default=0.0)))
    rows = list(_list_rows(view, scale, origin=origin, depth=0))
    numbers = list(dict.fromkeys(row.turn for row in rows))
    turns = [Turn(number=number, rows=tuple(row for row in rows if row.turn == number)) for number in numbers]
    return Waterfall(turns=tuple(turns), gaps=tuple(scale.gaps), busy_seconds=scale.busy, total_seconds=scale.total)


class _Scale:
    """Maps seconds of the run to percent of the width; a gap between two pieces of work takes `IDLE_WIDTH`."""

    def __init__(self, spans: Sequence[_Span], *, total: float) -> None:
        self.total = total
        covered = list(_merge(spans))
        self.busy = sum(span.end - span.start for span in covered)
        # Time before the first work is time in the queue.
        starting = [_Span(0.0, 0.0), *covered]
        idle = [_Span(before.end, after.start) for before, after in pairwise(starting)]
        # Short pauses between calls stay to scale; only waits that dwarf the work are compressed.
        least = max(_MIN_IDLE_SECONDS, 0.05 * self.busy)
        longest = sorted((span for span in idle if span.end - span.start > least), key=lambda s: s.start - s.end)
        self._idle = sorted(longest[:_MAX_GAPS], key=lambda span: span.start)
        squeezed = sum(span.end - span.start for span in self._idle)
        room = 100.0 - IDLE_WIDTH * len(self._idle)
        self._per_second = room / (total - squeezed) if total > squeezed else 0.0
        self.gaps = [
            Gap(at=self.position(span.start), width=IDLE_WIDTH, seconds=span.end - span.start) for span in self._idle
        ]

    def position(self, second: float) -> float:
        passed = [span for span in self._idle if span.end <= second]
        inside = next((span for span in self._idle if span.start < second < span.end), None)
        squeezed = sum(span.end - span.start for span in passed)
        share = 0.0
        if inside is not None:
            share = (second - inside.start) / (inside.end - inside.start)
            squeezed += second - inside.start
        at = (second - squeezed) * self._per_second + IDLE_WIDTH * (len(passed) + share)
        return round(min(100.0, max(0.0, at)), 3)

    def bar(self, start: float, seconds: float) -> tuple[float, float]:
        # A bar at the very end would start outside of the chart.
        at = min(self.position(start), 100.0 - _MIN_WIDTH)
        return at, round(max(_MIN_WIDTH, self.position(start + seconds) - at), 3)


def _merge(spans: Sequence[_Span]) -> Iterator[_Span]:
    current: _Span | None = None
    for span in spans:
        if current is None or span.start > current.end:
            if current is not None:
                yield current
            current = span
        else:
            current = _Span(current.start, max(current.end, span.end))
    if current is not None:
        yield current


def _list_spans(view: RunView, origin: datetime | None, now: float) -> Iterator[_Span]:
    for call in view.calls:
        start = _seconds(call.started_at, origin)
        yield _Span(start, now if call.state == "running" else start + call.latency_ms / 1000)
    for step in view.steps:
        start = _seconds(step.started_at, origin)
        # Not the step of a child run: the child's own work counts, so that its waits are shown as idle time.
        if step.kind != "child":
            yield _Span(start, now if step.state == "running" else start + step.duration_ms / 1000)
    for child in view.children:
        yield from _list_spans(child, origin, _seconds(child.updated_at, origin))


def _list_rows(view: RunView, scale: _Scale, *, origin: datetime | None, depth: int) -> Iterator[Row]:
    times = (origin, _seconds(view.updated_at, origin))
    rows: dict[int, list[Row]] = {}
    for number, call in enumerate(view.calls):
        row = _build_call(call, scale, key=f"{view.run_id}-c{number}", times=times, depth=depth)
        rows.setdefault(call.turn, []).append(replace(row, run_id=view.run_id))
    for number, item in enumerate(view.items):
        if isinstance(item, NoteView) and item.level == "detail":
            continue
        row = _build_item(item, scale, key=f"{view.run_id}-i{number}", times=times, depth=depth)
        rows.setdefault(item.turn, []).append(replace(row, run_id=view.run_id))
    children = {child.run_id: child for child in view.children}
    for turn in sorted(rows):
        for row in rows[turn]:
            yield row
            child = children.pop(row.step.child_run_id, None) if row.step is not None else None
            if child is not None:
                yield from _nest(child, scale, origin=origin, turn=turn, depth=depth + 1)
    for child in children.values():
        yield from _nest(child, scale, origin=origin, turn=view.turn, depth=depth + 1)


def _nest(child: RunView, scale: _Scale, *, origin: datetime | None, turn: int, depth: int) -> Iterator[Row]:
    """List the row of a child run and its own rows, all in the turn of the parent."""
    start = _seconds(child.started_at, origin)
    # A child has no duration before it ends.
    seconds = child.duration_ms / 1000 or max(0.0, _seconds(child.updated_at, origin) - start)
    at, width = scale.bar(start, seconds)
    yield Row(kind="child", turn=turn, key=child.run_id, at=at, width=width, seconds=seconds, child=child, depth=depth)
    for row in _list_rows(child, scale, origin=origin, depth=depth + 1):
        yield replace(row, turn=turn)


def _build_item(item: Item, scale: _Scale, *, key: str, times: tuple[datetime | None, float], depth: int) -> Row:
    if isinstance(item, StepView):
        return _build_step(item, scale, key=key, times=times, depth=depth)
    if isinstance(item, TextView):
        return Row(kind="text", turn=item.turn, key=key, text=item, depth=depth)
    return Row(kind="note", turn=item.turn, key=key, note=item, depth=depth)


def _build_call(call: CallView, scale: _Scale, *, key: str, times: tuple[datetime | None, float], depth: int) -> Row:
    start = _seconds(call.started_at, times[0])
    seconds = max(0.0, times[1] - start) if call.state == "running" else call.latency_ms / 1000
    at, width = scale.bar(start, seconds)
    return Row(kind="call", turn=call.turn, key=key, at=at, width=width, seconds=seconds, call=call, depth=depth)


def _build_step(step: StepView, scale: _Scale, *, key: str, times: tuple[datetime | None, float], depth: int) -> Row:
    start = _seconds(step.started_at, times[0])
    seconds = max(0.0, times[1] - start) if step.state == "running" else step.duration_ms / 1000
    at, width = scale.bar(start, seconds)
    return Row(kind="step", turn=step.turn, key=key, at=at, width=width, seconds=seconds, step=step, depth=depth)


def _seconds(moment: datetime | None, origin: datetime | None) -> float:
    return 0.0 if moment is None or origin is None else max(0.0, (moment - origin).total_seconds())
