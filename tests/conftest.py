"""Fixtures of all tests: a PostgreSQL server, and saving coverage of a worker before its process ends."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from coverage import Coverage
from hypothesis import settings as hypothesis_settings

sys.path.insert(0, str(Path(__file__).parent))

from metier.errors import MetierError
from metier.programs import search
from services.postgres_keeper import shared_server
from services.postgres_server import PostgresServer

NUMBERS = itertools.count()
OF_PACKAGE_MANAGERS = {
    "UV_CACHE_DIR": ".cache/uv",
    "PIP_CONFIG_FILE": ".config/pip/pip.conf",
    "PYENV_ROOT": ".pyenv",
    "npm_config_cache": ".npm",
    "npm_config_userconfig": ".npmrc",
}

# The same examples on every run and no deadline, so that a verdict depends on the code and not on chance or load.
# METIER_RANDOM_EXAMPLES=1 searches new ones.
hypothesis_settings.register_profile(
    "metier", derandomize=not os.environ.get("METIER_RANDOM_EXAMPLES"), deadline=None, database=None
)
hypothesis_settings.load_profile("metier")


def pytest_configure(config: pytest.Config) -> None:
    """Update the copies of the demo skills in the package once, before the workers start."""
    # nohup and shells ignore these for background jobs, and every program that a test starts would inherit that.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    if hasattr(config, "workerinput"):
        # Measuring costs a short command more than it costs itself: coverage is that of the test processes.
        os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
    else:
        subprocess.run([sys.executable, Path(__file__).parents[1] / "scripts/demo_skills.py"], check=True)
        config.add_cleanup(_leave_home())


def _leave_home() -> Callable[[], None]:
    """Give the tests an empty home, so that the user's settings, rules and keys have no effect.

    Package managers keep their download caches. Return a function that removes the home.
    """
    real, empty = Path.home(), tempfile.mkdtemp(prefix="home-")
    for name, place in OF_PACKAGE_MANAGERS.items():
        if (real / place).exists():
            os.environ.setdefault(name, str(real / place))
    os.environ["HOME"] = empty

    def remove() -> None:
        os.environ["HOME"] = str(real)
        shutil.rmtree(empty, ignore_errors=True)

    return remove


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Save coverage before the runner stops its workers, which have little time to end."""
    measured = Coverage.current()
    if measured is not None and hasattr(session.config, "workerinput"):
        measured.stop()
        measured.save()


@pytest.fixture(autouse=True)
def search_all_folders() -> None:
    """Forget the folders that `sandbox.writable` excluded from the program search in an earlier test."""
    search.excluded_folders.clear()


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[PostgresServer]:
    """One server for the whole test run, started on first use."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    try:
        with shared_server(folder) as server:
            yield server
    except MetierError as failure:
        pytest.skip(f"no PostgreSQL: {failure.sentence}")


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Generator[str]:
    """The URL of an empty database of this test."""
    name = f"test_{os.getpid()}_{next(NUMBERS)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)
