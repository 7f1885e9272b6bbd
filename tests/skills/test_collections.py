"""Repositories with many skills, dependencies between skills, and indexes: `agent skill` with real git."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.skills.conftest import Machine, Repository

AGENT = Path(sys.executable).with_name("agent")


def describe(name: str, description: str, more: str = "") -> str:
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n\n# {name}\n\nDo it.\n"


@pytest.fixture
def collection(make_repository: Callable[..., Repository]) -> Repository:
    """Three skills; `report` needs `tables`."""
    repository = make_repository("collection")
    repository.commit(
        {
            "README.md": "Skills.",
            "skills/report/SKILL.md": describe("report", "Writes a report of a quarter.", "depends_on: [tables]\n"),
            "skills/tables/SKILL.md": describe("tables", "Draws tables from numbers."),
            "skills/tables/assets/template/SKILL.md": describe("template", "Part of tables."),
            "skills/poems/SKILL.md": describe("poems", "Writes poems."),
        }
    )
    return repository


def add(machine: Machine, source: str, *flags: str) -> list[str]:
    result = machine.agent("add", source, "--allow-file", "--yes", *flags)
    assert result.code == 0, result.err
    return sorted(machine.registry.skills)


def test_a_collection_is_only_listed_without_a_terminal(machine: Machine, collection: Repository) -> None:
    result = machine.agent("add", collection.url, "--allow-file", "--yes")

    assert result.code == 2
    for line in (
        "poems   Writes poems.",
        "report  Writes a report of a quarter.",
        "tables  Draws tables from numbers.",
    ):
        assert line in result.err
    assert "--pick NAME,NAME or --all" in result.err
    assert machine.registry.skills == {}


def test_all_or_selected_skills_of_a_repository_are_installed_from_its_commit(
    machine: Machine, collection: Repository
) -> None:
    assert add(machine, collection.url, "--pick", "poems,Tables") == ["poems", "tables"]
    assert add(machine, collection.url, "--all") == ["poems", "report", "tables"]
    entry = machine.registry.skills["poems"]
    assert (entry.subdir, entry.commit_sha) == ("skills/poems", collection.git("rev-parse", "HEAD"))


def test_a_name_missing_from_the_collection_gets_a_suggestion(machine: Machine, collection: Repository) -> None:
    result = machine.agent("add", collection.url, "--allow-file", "--yes", "--pick", "poem")

    assert result.code == 2
    assert "no skill 'poem'" in result.err
    assert "Did you mean 'poems'?" in result.err


def test_the_only_skill_of_a_repository_needs_no_path(
    machine: Machine, make_repository: Callable[..., Repository]
) -> None:
    repository = make_repository("single")
    repository.commit({"README.md": "One.", "skill/SKILL.md": describe("alone", "Works alone for everyone.")})

    assert add(machine, repository.url) == ["alone"]
    assert machine.registry.skills["alone"].subdir == "skill"


def test_dependencies_of_a_skill_come_from_the_same_repository(machine: Machine, collection: Repository) -> None:
    result = machine.agent("add", f"{collection.url}#skills/report", "--allow-file", "--yes")

    assert result.code == 0
    assert "report names the skill 'tables', which is not there; the same collection has it" in result.err
    assert sorted(machine.registry.skills) == ["report", "tables"]


def test_missing_dependencies_of_a_skill_are_reported(machine: Machine, make_folder: Callable[..., Path]) -> None:
    folder = make_folder("lonely", **{"SKILL.md": describe("lonely", "Needs more.", "skills: [inherit, elsewhere]\n")})

    result = machine.agent("add", str(folder), "--yes")

    assert result.code == 0
    assert "lonely names the skill 'elsewhere', which is not there; add it" in result.err


def test_user_at_a_terminal_searches_and_picks(machine: Machine, collection: Repository) -> None:
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [AGENT, "skill", "add", collection.url, "--allow-file", "--no-trust"],
        stdin=end,
        stdout=subprocess.DEVNULL,
        stderr=end,
        cwd=machine.workspace,
        start_new_session=True,
    )
    os.close(end)
    read_until(terminal, b"`all`): ")
    os.write(terminal, b"draws numbers\n")
    assert b"   1  tables" in read_until(terminal, b"`all`): ")
    os.write(terminal, b"1\n")
    read_until(terminal, b"Installed tables")
    os.close(terminal)
    process.wait(timeout=60)

    assert sorted(machine.registry.skills) == ["tables"]


def read_until(terminal: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(terminal, 4096)
    return seen


def use_index(machine: Machine, address: str) -> None:
    (machine.workspace / "agent.yaml").write_text(json.dumps({"skills": {"indexes": [address]}}))


def test_search_in_an_index_returns_a_skill_at_its_commit(
    machine: Machine, collection: Repository, tmp_path: Path
) -> None:
    first = collection.git("rev-parse", "HEAD")
    collection.commit({"skills/poems/SKILL.md": describe("poems", "Writes long poems.")})
    row = {"name": "poems", "description": "Writes poems.", "source": collection.url, "subdir": "skills/poems"}
    index = tmp_path / "index.json"
    index.write_text(json.dumps({"skills": [row | {"commit": first}]}))
    use_index(machine, str(index))

    assert machine.agent("search", "a", "poem").out.startswith("poems  Writes poems.")
    assert machine.agent("add", "poems", "--yes").code == 0
    assert machine.registry.skills["poems"].commit_sha == first

    newer = collection.git("rev-parse", "HEAD")
    index.write_text(json.dumps({"skills": [row | {"commit": newer}]}))
    assert machine.agent("update", "poems", "--yes").code == 0
    assert machine.registry.skills["poems"].commit_sha == newer


def test_repository_is_an_index_of_its_skills(machine: Machine, collection: Repository) -> None:
    use_index(machine, collection.url)

    found = machine.agent("search", "tables", "from", "numbers", "--json").json

    commit = collection.git("rev-parse", "HEAD")
    assert found[0] == {
        "name": "tables",
        "description": "Draws tables from numbers.",
        "source": f"{collection.url}@{commit}#skills/tables",
    }
    assert "Did you mean 'tables'?" in machine.agent("add", "table", "--yes").err


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "is not JSON"),
        ('{"skills": [{"name": "a b"}]}', "Entry 0 is skipped: 'name'"),
        (
            json.dumps({"skills": [{"name": "a", "description": "b", "source": "./x", "commit": "0" * 40}]}),
            "is not a git address",
        ),
    ],
)
def test_broken_index_is_reported_and_skipped(machine: Machine, tmp_path: Path, text: str, wrong: str) -> None:
    index = tmp_path / "index.json"
    index.write_text(text)
    use_index(machine, str(index))

    result = machine.agent("search", "poems")

    assert result.code == 0
    assert wrong in result.err


def test_search_without_an_index_names_the_setting(machine: Machine) -> None:
    result = machine.agent("search", "poems")

    assert result.code == 2
    assert "skills.indexes" in result.err
