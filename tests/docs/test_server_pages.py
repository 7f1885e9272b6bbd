"""Follow the server and fleet pages: docs/operations/server.md, docs/how-to/server.md, docs/how-to/fleet.md."""

import shutil
from pathlib import Path

import pytest
from walkthrough import Reader, read_through

from services.ports import find_free_ports

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = [pytest.mark.slow]


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    return folder, home


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("page", "port"), [("how-to/server.md", "8080"), ("operations/server.md", "8321")])
def test_every_command_of_the_page_succeeds_with_the_shown_output(
    page: str, port: str, folders: tuple[Path, Path]
) -> None:
    free = str(find_free_ports(1)[0])
    exported = {"AGENT_SERVER_PORT": free} if page == "operations/server.md" else {}

    assert read_through(DOCS / page, Reader(*folders, addresses={port: free}, exported=exported)) >= 5


def test_two_workers_of_the_guide_can_share_a_database(folders: tuple[Path, Path], postgres_url: str) -> None:
    addresses = {"postgresql://agent@db.example.org/agent": postgres_url}

    assert read_through(DOCS / "how-to/fleet.md", Reader(*folders, addresses=addresses)) == 16
