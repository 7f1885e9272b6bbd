"""`agent cost` adds up the usage of runs; an unknown price is not zero."""

import json
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

from metier.errors import UsageError
from metier.runtime.history.spending import parse_since
from metier.views.run_view import Usage
from metier.views.spending import Spent, group_spending, render_totals


def spent(model: str, cost: float | None, *, day: str = "2026-01-02") -> Spent:
    usage = Usage(
        input_tokens=1_000, cached_tokens=500, output_tokens=50, cost_usd=cost or 0.0, unpriced_calls=int(cost is None)
    )
    return Spent(model=model, agent="a", skill="s", task="t", day=day, usage=usage)


def test_calls_of_two_runs_are_added_up_and_an_unknown_price_stays_unknown(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("Glob", pattern="*"), says("done"))
    workspace.agent("run", "one")
    workspace.agent("run", "two")
    capsys.readouterr()

    assert workspace.agent("cost", "--json") == 0

    (row,) = json.loads(capsys.readouterr().out)
    assert (row["model"], row["calls"], row["input_tokens"], row["cost_usd"]) == ("openai/m", 3, 300, None)
    assert workspace.agent("cost", "--by", "task") == 0
    shown = capsys.readouterr().out
    assert "cost unknown" in shown
    assert [line.split()[0] for line in shown.splitlines()] == ["one", "two", "all:"]


def test_empty_report_is_explained(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert workspace.agent("cost", "--since", "7d") == 0

    assert "No model calls" in capsys.readouterr().err


def test_highest_cost_comes_first_with_the_longest_bar() -> None:
    totals = group_spending([spent("cheap", 0.01), spent("dear", 0.03), spent("dear", 0.01)], "model")

    lines = [line.plain for line in render_totals(totals, width=100)]

    assert lines[0].startswith("dear   " + "█" * 30 + "  $0.040   2.0k in (50 % cached)   100 out   2 calls")
    assert lines[1].startswith("cheap  " + "█" * 7)


def test_days_are_in_order() -> None:
    totals = group_spending([spent("m", 1, day="2026-01-03"), spent("m", 2, day="2026-01-02")], "day")

    assert [total.name for total in totals] == ["2026-01-02", "2026-01-03"]


@pytest.mark.parametrize("width", [40, 80])
def test_narrow_screen_shortens_bars_before_it_truncates_text(width: int) -> None:
    lines = render_totals(group_spending([spent("m", 1.0)], "model"), width=width)

    assert lines[0].plain.startswith("m  ")
    assert len(lines[0].plain) <= width


def test_since_is_an_age_or_a_date() -> None:
    now = datetime(2026, 1, 31, 12, tzinfo=UTC)

    assert parse_since("24h", now=now) == datetime(2026, 1, 30, 12, tzinfo=UTC)
    assert parse_since("2w", now=now) == datetime(2026, 1, 17, 12, tzinfo=UTC)
    assert parse_since("2026-01-30T00:00:00+00:00", now=now) == datetime(2026, 1, 30, tzinfo=UTC)
    with pytest.raises(UsageError):
        parse_since("soon", now=now)


def test_runs_in_a_store_without_totals_are_counted(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("Glob", pattern="*"), says("done"), calls("ask_user", question="Which one?"))
    workspace.agent("run", "one")
    assert workspace.agent("run", "waits") == 4
    # The store as 0.2 left it: without the tables that later steps of the schema added, and no event log.
    with closing(sqlite3.connect(workspace.folder / "runs/state.db")) as store, store:
        for name in ("runs_without_usage", "runs_by_creation"):
            store.execute(f"DROP INDEX {name}")
        for name in ("run_usage", "usage_totals"):
            store.execute(f"DROP TABLE {name}")
        store.execute("ALTER TABLE runs DROP COLUMN has_usage")
        store.execute("DELETE FROM schema_version WHERE version >= 11")
    for run_id in workspace.run_ids():
        (workspace.folder / "runs" / run_id / "events.jsonl").unlink()
    capsys.readouterr()

    for _ in range(2):
        assert workspace.agent("cost", "--json") == 0

        (row,) = json.loads(capsys.readouterr().out)
        assert (row["model"], row["calls"], row["input_tokens"]) == ("openai/m", 3, 300)


def test_forks_count_only_their_own_calls(
    workspace: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    model.follow(calls("Glob", pattern="*"), says("done"), says("forked"))
    workspace.agent("run", "one")
    (run_id,) = workspace.run_ids()
    capsys.readouterr()
    assert workspace.agent("replay", run_id, "--points") == 0
    points = re.findall(r"^\s*(\d+)", capsys.readouterr().out, re.MULTILINE)
    assert workspace.agent("replay", run_id, "--fork-at", points[-2]) == 0
    capsys.readouterr()

    assert workspace.agent("cost", "--json") == 0

    (row,) = json.loads(capsys.readouterr().out)
    assert row["calls"] == len(model.received)
