"""An installed skill on the console: the diff of an update is shown before it is applied."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from console_client import ConsoleClient
from model_server import ModelServer
from run_workspace import Workspace
from running_server import serving

SKILL = (
    "---\nname: reporter\ndescription: Write a short report of a week. Use it when a report is asked for.\n---\n\n{}\n"
)


@pytest.fixture
def source(tmp_path: Path, workspace: Workspace) -> Path:
    """The source folder of an installed skill."""
    folder = tmp_path / "reporter"
    folder.mkdir()
    (folder / "SKILL.md").write_text(SKILL.format("Write one page."))
    assert workspace.agent("skills", "add", str(folder), "--yes") == 0
    return folder


@pytest.fixture
def console(source: Path, workspace: Workspace) -> Iterator[ConsoleClient]:
    with serving(workspace.folder) as server, closing(ConsoleClient(server)) as client:
        yield client


def test_an_update_shows_capabilities_and_files_and_installs_exactly_those(
    console: ConsoleClient, source: Path, model: ModelServer
) -> None:
    del model
    address, form = "/skills/reporter", "/skill-updates/reporter"
    console.open(address)
    assert str(source) in console.words()
    console.submit(form, do="look")
    assert "It is up to date" in console.words()
    (source / "SKILL.md").write_text(SKILL.format("Write two pages."))
    (source / "scripts").mkdir()
    (source / "scripts/send.py").write_text("import urllib.request\n")
    console.open(address)
    console.submit(form, do="look")
    words, seen = console.words(), console.page

    assert "more Scripts" in words
    assert "send.py" in words
    assert "1 added, 1 changed, 0 removed" in words
    assert re.search(r'class="added".*Write two pages', seen)
    assert re.search(r'class="removed".*Write one page', seen)
    (source / "SKILL.md").write_text(SKILL.format("Write three pages."))
    console.submit(form, do="trust")
    assert "changed at its source since you looked" in console.words()
    assert "Write one page" in console.open(address)
    console.submit(form, do="look")
    console.submit(form, do="keep")
    assert "The skill is updated" in console.words()
    assert "Write three pages" in console.words()
    assert "not trusted" in console.words()


def test_a_skill_of_the_workspace_has_no_update(console: ConsoleClient) -> None:
    console.open("/skills/greeter")

    assert "Look for an update" not in console.words()
