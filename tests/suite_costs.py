"""What tests cost in processor time, and what follows from it: slow ones run first, and quick runs leave them out.

Processor time, because a machine that does other things at the same time changes it little. A process that a test
leaves to others is not counted.
"""

import os
from collections import Counter
from collections.abc import Generator
from pathlib import PurePosixPath

import pytest
from _pytest.terminal import TerminalReporter

UNMARKED_SECONDS = 2.0
"""A test that costs more and has not the marker `slow` is named, because it makes quick runs slow."""
MOST_NAMED = 20

SLOW_ROOMS = ("dev", "docs", "packs", "worker")
"""Every test there installs, starts commands one after the other, or waits for other processes."""

_began = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("metier")
    group.addoption("--quick", action="store_true", help="leave out tests marked slow")
    group.addoption("--costs", action="store_true", help="show processor time by folder, and unmarked slow tests")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CostTable())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests first: if one of them came last, the other processes would wait for it with nothing to do."""
    for item in items:
        if _room(item.nodeid) in SLOW_ROOMS:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if config.getoption("--quick"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_began] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        # The report of the tear-down carries it to the process that shows the summary.
        item.user_properties.append(("processor_seconds", _processor_seconds() - item.stash[_began]))


def _processor_seconds() -> float:
    return sum(os.times()[:4])


def _room(nodeid: str) -> str:
    return PurePosixPath(nodeid).parts[1]


class CostTable:
    """Adds up what the reports say."""

    def __init__(self) -> None:
        self.rooms: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self.unmarked: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        seconds = dict(report.user_properties).get("processor_seconds")
        if report.when != "teardown" or not isinstance(seconds, float):
            return
        room = _room(report.nodeid)
        self.rooms[room] += seconds  # pyright: ignore[reportArgumentType]  a counter also counts seconds
        self.tests[room] += 1
        if seconds > UNMARKED_SECONDS and "slow" not in report.keywords:
            self.unmarked[report.nodeid] = seconds  # pyright: ignore[reportArgumentType]

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        terminalreporter.section("processor time", sep="-")
        for room, seconds in self.rooms.most_common():
            terminalreporter.write_line(f"{seconds:8.1f} s  {self.tests[room]:5} tests  tests/{room}")
        terminalreporter.write_line(f"{sum(self.rooms.values()):8.1f} s  {self.tests.total():5} tests")
        for nodeid, seconds in self.unmarked.most_common(MOST_NAMED):
            terminalreporter.write_line(f"{seconds:8.1f} s  should be marked slow: {nodeid}")
