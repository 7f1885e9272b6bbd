"""What tests cost in processor time, and what follows from it: slow ones run first, and quick runs leave them out.

Processor time, because a machine that does other things at the same time changes it little. A process that a test
leaves to others is not counted.
"""

import math
import os
import sys
import time
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

# fmt: off
SLOW_FILES = frozenset({
    "architecture/test_programs.py", "bundled/test_decision_record.py", "bundled/test_kalshi.py",
    "bundled/test_schema_infer.py", "bundled/test_schema_infer_awkward.py", "capabilities/test_adapter.py",
    "capabilities/test_advisor.py", "capabilities/test_child_runs.py", "capabilities/test_delegation.py",
    "capabilities/test_kept_answers.py", "cli/test_approvals.py", "cli/test_changed_code.py", "cli/test_chat.py",
    "cli/test_chat_servers.py", "cli/test_chat_terminal.py", "cli/test_check.py", "cli/test_foreign_runs.py",
    "cli/test_full_disk.py", "cli/test_injection.py", "cli/test_leftovers.py", "cli/test_limits.py",
    "cli/test_links_out.py", "cli/test_lost_entries.py", "cli/test_mcp.py", "cli/test_mcp_sandbox.py",
    "cli/test_mcp_transports.py", "cli/test_protected_paths.py", "cli/test_run.py", "cli/test_run_offline.py",
    "cli/test_run_signals.py", "cli/test_runs_diff.py", "cli/test_runs_export.py", "cli/test_sandbox.py",
    "cli/test_secrecy.py", "cli/test_takeover.py", "cli/test_task.py", "cli/test_terminal_signals.py",
    "cli/test_trust.py", "cli/test_trusted_side.py", "definitions/test_flat_yaml.py", "engine/test_many_runs.py",
    "engine/test_replay_property.py", "plugins/test_plugins.py", "routing/test_route_command.py",
    "runtime/test_chats.py", "runtime/test_long_runs.py", "security/test_always.py", "security/test_injection_drill.py",
    "skills/test_activation.py", "skills/test_confirmation.py", "skills/test_crash.py", "store/test_faults.py",
    "store/test_model.py", "store/test_postgres_faults.py", "store/test_processes.py", "store/test_state_processes.py",
    "tools/test_grep.py", "tools/test_sandbox_user.py", "tools/test_script_contract.py",
    "tools/test_script_environments.py", "tools/test_toolsets.py",
})
# fmt: on
"""Files whose tests cost more than a quarter of a second each; most of them start processes."""

QUICK_SECONDS = 65
"""After this time a quick run begins no more tests, and says how many were left out."""
LATER_ROOMS = ("bundled", "capabilities", "cli", "security", "tools")
"""Their tests cost more than those of the other rooms, so a quick run has most of the others before."""

LONGEST_ROOMS = ("dev", "engine", "store", "tasks", "worker")
"""Single tests there take up to half a minute, so a whole run has them before the others."""

_began = pytest.StashKey[float]()
_deadline = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("metier")
    group.addoption("--quick", action="store_true", help="leave out tests marked slow")
    group.addoption("--costs", action="store_true", help="show processor time by folder, and unmarked slow tests")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(CostTable())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the files that pytest rewrites, also where PYTHONDONTWRITEBYTECODE is set, as in many containers.

    Rewriting is half of the time that collecting all tests takes.
    """
    unwritten, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = unwritten


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slow tests first: if one of them came last, the other processes would wait for it with nothing to do."""
    for item in items:
        if is_slow_file(item.nodeid.partition("::")[0]):
            item.add_marker(pytest.mark.slow)
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    if config.getoption("--quick"):
        config.hook.pytest_deselected(items=slow)
        items[:] = sorted(quick, key=lambda item: _room(item.nodeid) in LATER_ROOMS)
        config.stash[_deadline] = time.monotonic() + QUICK_SECONDS
    else:
        items[:] = _deal(slow, quick, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _deal(slow: list[pytest.Item], quick: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Each process begins with an equal part of the list: files of slow tests, then quick tests that others take."""
    files: dict[str, list[pytest.Item]] = {}
    for item in sorted(slow, key=lambda item: _room(item.nodeid) not in LONGEST_ROOMS):
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    total = len(slow) + len(quick)
    dealt: list[pytest.Item] = []
    for each in range(processes):
        dealt += [item for file in list(files.values())[each::processes] for item in file]
        missing = max(0, (each + 1) * total // processes - len(dealt))
        dealt += quick[:missing]
        quick = quick[missing:]
    return dealt + quick


def is_slow_file(path: str) -> bool:
    """Whether a quick run leaves all of a file out; `path` begins with `tests/`."""
    return _room(path) in SLOW_ROOMS or path.partition("/")[2] in SLOW_FILES


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """When the time of a quick run is over, say of a test that it is left out, at next to no cost."""
    if time.monotonic() < item.config.stash.get(_deadline, math.inf):
        return None
    reason = f"Skipped: a quick run begins no test after {QUICK_SECONDS} seconds"
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    report = pytest.TestReport(
        item.nodeid, item.location, keywords={}, outcome="skipped", longrepr=(__file__, 1, reason), when="setup"
    )
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


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
