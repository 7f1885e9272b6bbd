"""Check the files and programs on the pages. `tests/architecture/test_docs_pages.py` requires a mark for each block."""

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from blocks import NEEDS, PAGES, ROOT, Block, read_blocks

from metier.cli.main import run

pytestmark = pytest.mark.slow

BLOCKS = [block for page in PAGES for block in read_blocks(page)]
CHECKED = [block for block in BLOCKS if block.meaning.get("kind")]
BEGINNINGS = {
    "SKILL.md": "name: notes\ndescription: Takes notes. Use it for notes.\n",
    "TASK.md": "name: Notes\n",
}
"""Front matter to complete a fragment."""


def test_every_block_is_found() -> None:
    for page in PAGES:
        fences = sum(line.lstrip().startswith("```") for line in page.read_text("utf-8").splitlines())
        assert fences == 2 * sum(not block.is_hidden for block in read_blocks(page)), page


@pytest.mark.parametrize("mark", ["", "<!-- tset -->\n", "<!-- needs time -->\n", "<!-- test -->\n\n"])
def test_a_block_with_an_unknown_mark_is_detected(mark: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{mark}```console\n$ agent version\n```\n", "utf-8")

    (block,) = read_blocks(page)

    assert block.meaning == {}


def test_commands_are_not_marked_as_output_or_files() -> None:
    """A block may stay unexecuted only if it needs something special or another test runs it."""
    reasons = ("needs", "test")

    unrun = [block for block in BLOCKS if "$ agent " in block.text and not block.is_typed]

    assert [block.where for block in unrun if not any(block.meaning[reason] for reason in reasons)] == []
    assert all(any(reason in block.mark for reason in NEEDS) or block.meaning["test"] for block in unrun)


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.meaning.get("test")], ids=lambda block: block.where
)
def test_a_block_executed_by_another_test_is_read_by_that_test(block: Block) -> None:
    assert block.page.name in (ROOT / str(block.meaning["test"])).read_text("utf-8")


def test_data_and_programs_on_the_pages_can_be_parsed() -> None:
    readers: dict[str, Callable[[str], Any]] = {
        "json": json.loads,
        "yaml": yaml.safe_load,
        "toml": tomllib.loads,
        "python": lambda text: compile(text, "page", "exec"),
    }
    for block in BLOCKS:
        if block.language in readers:
            readers[block.language](block.text)


def test_code_quoted_from_a_file_is_in_that_file() -> None:
    for block in BLOCKS:
        if source := block.meaning.get("source"):
            assert block.text in (ROOT / source).read_text("utf-8"), block.where


def test_imports_of_program_fragments_exist() -> None:
    for block in BLOCKS:
        if block.meaning.get("piece"):
            imports = [line for line in block.text.splitlines() if line.startswith(("import ", "from "))]
            exec("\n".join(imports), {})


@pytest.mark.parametrize("block", CHECKED, ids=lambda block: f"{block.where} {block.meaning['kind']}")
def test_a_file_on_a_page_is_valid(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file = tmp_path / "home", tmp_path / "work" / str(block.meaning["kind"])
    home.mkdir()
    file.parent.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path / "work")
    text = block.text
    if file.suffix == ".md" and not text.startswith("---\n"):
        text = f"---\n{BEGINNINGS.get(file.name, '')}{text}---\n\nTake a note.\n"
    file.write_text(text, "utf-8")
    for script in re.findall(r"script: (\w+)", text):
        (file.parent / "scripts").mkdir()
        (file.parent / "scripts" / f"{script}.py").write_text('"""Search."""\n', "utf-8")
    if file.name == "models.yaml":
        Path("agent.yaml").write_text("model: {facts_file: models.yaml}\n", "utf-8")

    assert run(["config", "validate"]) == 0
    assert run(["validate"]) == 0
    if file.name == "policy.yaml":
        assert run(["policy", "test"]) == 0
