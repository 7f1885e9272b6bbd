"""Follow every page with commands, in an empty folder with an empty home."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from blocks import PAGES, ROOT, read_blocks
from walkthrough import Reader, read_through

from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.levels import choose_level

pytestmark = pytest.mark.slow

WITH_MORE = {
    "docs/operations/deployment.md": "test_deployment_page.py",
    "docs/how-to/a2a.md": "test_a2a_page.py",
    "docs/operations/opentelemetry.md": "test_opentelemetry_page.py",
    "docs/tutorials/python.md": "test_python_page.py",
    "docs/how-to/sub-agents.md": "test_sub_agents_page.py",
    "docs/operations/server.md": "test_server_pages.py",
    "docs/how-to/server.md": "test_server_pages.py",
    "docs/how-to/fleet.md": "test_server_pages.py",
}
"""Pages that need more than an empty folder, and the tests that follow them."""
FOLLOWED = [
    page
    for page in PAGES
    if page.relative_to(ROOT).as_posix() not in WITH_MORE
    and any(block.is_typed and not block.meaning.get("has") for block in read_blocks(page))
]


@pytest.mark.parametrize("page", FOLLOWED, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_of_a_page_works_and_prints_the_shown_output(page: Path, tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()

    assert read_through(page, Reader(folder, home, exported={"AGENT_WORKER_IDLE_SECONDS": "0.5"})) > 0


def test_doctor_reports_the_sandbox_as_its_page_shows(tmp_path: Path) -> None:
    if choose_level(get_bubblewrap(os.environ, tmp_path)).level != "full":
        pytest.skip("no bubblewrap here")
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()

    assert read_through(ROOT / "docs/operations/sandbox.md", Reader(folder, home, has="bubblewrap")) == 1


def test_pages_with_special_needs_have_their_own_test() -> None:
    for page, test in WITH_MORE.items():
        assert any(block.is_typed for block in read_blocks(ROOT / page)), page
        assert Path(page).name in (Path(__file__).parent / test).read_text("utf-8"), page


def list_tutorials() -> list[str]:
    """List the pages in the tutorials section of the site."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:")[2]
    sections: list[dict[str, Any]] = yaml.safe_load(navigation)
    (tutorials,) = (section["Tutorials"] for section in sections if "Tutorials" in section)
    return [page for titled in tutorials for page in titled.values()]


@pytest.mark.parametrize("tutorial", list_tutorials())
def test_tutorial_is_executed_and_ends_with_a_next_step(tutorial: str) -> None:
    page = ROOT / "docs" / tutorial

    assert any(block.is_typed for block in read_blocks(page))
    assert page.read_text("utf-8").rpartition("\n## ")[2].startswith("Next\n")


def test_overview_introduces_twelve_concepts_and_eight_operator_concepts() -> None:
    text = (ROOT / "docs/concepts/overview.md").read_text("utf-8")
    files, operators = text.split("\n## Concepts for operators\n")

    concepts = {word.lower().removesuffix("s") for word in re.findall(r"\*\*([A-Za-z]+)\*\*", files)}
    rows = re.findall(r"^\| (\w[\w ]*) \|", operators.partition("\n## ")[0], re.MULTILINE)

    productive = "workspace agent skill tool prompt task run step journal policy approval trust"
    assert concepts == set(productive.split())
    assert len(rows) == 1 + 8
