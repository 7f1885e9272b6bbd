"""Follow the deployment page with a database and a broker, and check the commands and queries that it names."""

import re
import shutil
import sys
from pathlib import Path

import psycopg
import pytest
from walkthrough import Reader, read_through

from metier.cli.main import run
from metier.errors import MetierError
from services.rabbitmq_server import find_rabbitmq, run_rabbitmq
from services.redis_server import run_redis

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "deployment.md"
MONITORING = PAGE.with_name("maintenance.md")
DATABASE = "postgresql://agent:password@db.example:5432/agent_runs"
INLINE = re.compile(r"`(agent [^`]+)`")
QUERY = re.compile(r"`(SELECT [^`]+)`")

pytestmark = [pytest.mark.slow]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    return folder, home


def test_every_command_of_the_page_prints_the_shown_output(folders: tuple[Path, Path], postgres_url: str) -> None:
    try:
        with run_redis() as redis:
            addresses = {DATABASE: postgres_url, "redis://:password@broker.example:6379/0": redis.url}
            assert read_through(PAGE, Reader(*folders, addresses=addresses)) >= 12
    except MetierError as failure:
        pytest.skip(f"no Redis: {failure.sentence}")
    with psycopg.connect(postgres_url) as connection:
        queries = QUERY.findall(MONITORING.read_text("utf-8"))
        for query in queries:
            connection.execute(query)
    assert len(queries) == 2


@pytest.mark.skipif(find_rabbitmq() is None, reason="rabbitmq-server is not installed here")
def test_every_command_for_rabbitmq_prints_the_shown_output(folders: tuple[Path, Path], postgres_url: str) -> None:
    with run_rabbitmq() as server:
        shutil.copy2(server.folder / ".erlang.cookie", folders[1])
        exported = {
            "AGENT_SKILLS": "workspace-inventory",
            "STATE_STORE_BACKEND": "postgres",
            "DATABASE_URL": postgres_url,
            "ERL_EPMD_PORT": str(server.mapper_port),
            "RABBITMQ_NODENAME": f"metier{server.port}@localhost",
            # Precedes a distribution's wrapper, which must run as root to switch the user.
            "PATH": f"{Path(sys.executable).parent}:{server.program.parent}:/usr/bin:/bin",
        }
        addresses = {"broker.example:5672": f"127.0.0.1:{server.port}"}
        reader = Reader(*folders, has="rabbitmq", addresses=addresses, exported=exported)

        assert read_through(PAGE, reader) == 5


@pytest.mark.parametrize("line", sorted(set(INLINE.findall(PAGE.read_text("utf-8")))))
def test_every_command_on_the_page_exists_with_its_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split()[1:]
    names = [word for word in words[:2] if word.isalpha()]

    assert run([*names, "--help"]) == 0

    shown = capsys.readouterr().out
    for option in [word for word in words if word.startswith("--")]:
        assert option in shown, f"{line}: {option}"
