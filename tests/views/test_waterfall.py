"""The waterfall of a run: rows, bar positions, and idle time."""

from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from metier.views.run_view import CallView, RunView, StepView, TextView
from metier.views.waterfall import IDLE_WIDTH, build_waterfall

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def call(turn: int, at: float, seconds: float) -> CallView:
    return CallView(
        turn=turn,
        provider="p",
        model="m",
        state="replied",
        started_at=BEGAN + timedelta(seconds=at),
        latency_ms=seconds * 1000,
    )


def step(name: str, turn: int, at: float, *, child: str = "") -> StepView:
    return StepView(
        step_id=name,
        turn=turn,
        tool="Read",
        state="succeeded",
        started_at=BEGAN + timedelta(seconds=at),
        duration_ms=1000,
        child_run_id=child,
        kind="child" if child else "tool",
    )


def run(**changes: object) -> RunView:
    view = RunView(run_id="r", started_at=BEGAN, updated_at=BEGAN + timedelta(seconds=10), turn=2)
    return replace(view, **changes)


def test_rows_are_ordered_by_turn_with_the_call_before_its_steps() -> None:
    items = (TextView(turn=1, text="I look"), step("s1", 1, 2), step("s2", 2, 6))

    fall = build_waterfall(run(calls=(call(1, 0, 2), call(2, 4, 2)), items=items))

    assert [[row.kind for row in turn.rows] for turn in fall.turns] == [["call", "text", "step"], ["call", "step"]]
    assert [turn.number for turn in fall.turns] == [1, 2]


def test_a_wait_of_three_hours_is_compressed_and_labeled() -> None:
    end = BEGAN + timedelta(hours=3, seconds=10)
    view = run(calls=(call(1, 0, 4), call(2, 10_804, 4)), items=(step("s1", 1, 4),), updated_at=end)

    fall = build_waterfall(view)

    (gap,) = fall.gaps
    assert gap.width == IDLE_WIDTH
    assert 10_790 < gap.seconds < 10_800
    last = fall.turns[-1].rows[0]
    assert gap.at + gap.width <= last.at
    assert last.width > 30, "work is wide enough to be seen"


def test_time_in_the_queue_is_a_compressed_segment_before_the_first_call() -> None:
    fall = build_waterfall(run(calls=(call(1, 600, 4),), updated_at=BEGAN + timedelta(seconds=604)))

    (gap,) = fall.gaps
    assert (gap.at, gap.width, gap.seconds) == (0, IDLE_WIDTH, 600)
    assert fall.turns[0].rows[0].width > 90


def test_bars_stay_within_the_width_for_any_times() -> None:
    late = call(2, 9_999, 5)
    before = replace(call(1, 0, 1), started_at=BEGAN - timedelta(hours=1))

    fall = build_waterfall(run(calls=(before, late), items=(step("s1", 1, 0),)))

    for row in (row for turn in fall.turns for row in turn.rows):
        assert 0 <= row.at <= 100
        assert row.width > 0
        assert row.at + row.width <= 100.5


def test_a_child_run_follows_the_step_that_started_it() -> None:
    child = run(run_id="child", items=(step("c1", 1, 3),), parent_run_id="r")
    view = run(items=(step("s1", 1, 1, child="child"), step("s2", 1, 8)), children=(child,))

    rows = build_waterfall(view).turns[0].rows

    assert [(row.kind, row.depth) for row in rows] == [("step", 0), ("child", 1), ("step", 2), ("step", 0)]
    assert len({row.key for row in rows}) == len(rows)


def test_a_run_without_events_has_no_rows() -> None:
    fall = build_waterfall(RunView())

    assert fall.turns == ()
    assert fall.busy_seconds == 0
