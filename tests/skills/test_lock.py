from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.skills.conftest import Machine, Repository

FILE = "--allow-file"


@pytest.fixture
def locked(machine: Machine, notes: Repository) -> Path:
    """A workspace with a lock of the skill `notes`, and a home without skills."""
    machine.agent("add", notes.url, FILE, "--yes")
    machine.agent("lock")
    machine.agent("remove", "notes", "--yes")
    return machine.workspace / "skills.lock"


def change(path: Path, **values: object) -> None:
    content = json.loads(path.read_text())
    content["skills"][0] |= values
    path.write_text(json.dumps(content))


def test_lock_has_the_same_bytes_on_every_machine(machine: Machine, notes: Repository, locked: Path) -> None:
    before = locked.read_bytes()
    shutil.rmtree(machine.home.root)

    assert machine.agent("add", "--frozen", FILE, "--yes").code == 0
    assert machine.agent("lock", "--check").code == 0
    machine.agent("lock")

    assert locked.read_bytes() == before
    assert str(machine.home.root) not in before.decode()
    entry = json.loads(before)["skills"][0]
    assert entry["commit"] == notes.git("rev-parse", "HEAD")
    assert entry["files"] == machine.registry.skills["notes"].files


def test_frozen_installs_the_locked_commit_after_the_branch_moved(
    machine: Machine, notes: Repository, locked: Path
) -> None:
    old = notes.git("rev-parse", "HEAD")
    notes.commit({"later.md": "x"})

    assert machine.agent("add", "notes", "--frozen", FILE, "--yes").code == 0
    assert machine.registry.skills["notes"].commit_sha == old
    assert not (machine.home.visible("notes") / "later.md").exists()


def test_frozen_restores_a_different_installation(machine: Machine, notes: Repository, locked: Path) -> None:
    notes.commit({"later.md": "x"})
    machine.agent("add", notes.url, FILE, "--yes")
    assert machine.agent("lock", "--check").code == 1

    assert machine.agent("add", "--frozen", FILE, "--yes", "--json").json[0]["status"] == "updated"
    assert machine.agent("lock", "--check").code == 0


def test_one_different_byte_is_refused(machine: Machine, notes: Repository, locked: Path) -> None:
    written = locked.read_text()
    files = json.loads(written)["skills"][0]["files"]
    other = notes.commit({"SKILL.md": (notes.path / "SKILL.md").read_text() + " "})
    for values in ({"tree": "0" * 64}, {"files": {**files, "SKILL.md": "0" * 64}}, {"commit": other}):
        locked.write_text(written)
        change(locked, **values)

        result = machine.agent("add", "--frozen", FILE, "--yes")

        assert result.code == 1
        assert "differs from skills.lock" in result.err
        assert machine.registry.skills == {}


@pytest.mark.parametrize(
    "values",
    [
        {"url": "ext::sh -c id"},
        {"url": "-x"},
        {"url": "/etc"},
        {"url": "https://example.org/x@evil"},
        {"commit": "main"},
        {"commit": "--upload-pack=x"},
        {"commit": "0123456789ab"},
        {"subdir": "../x"},
        {"name": "../x"},
        {"surprise": 1},
    ],
)
def test_hostile_lock_is_refused(machine: Machine, locked: Path, values: dict[str, object]) -> None:
    change(locked, **values)

    assert machine.agent("add", "--frozen", FILE, "--yes").code in (1, 2)
    assert machine.registry.skills == {}


def test_lock_does_not_allow_file_urls(machine: Machine, locked: Path) -> None:
    result = machine.agent("add", "--frozen", "--yes")

    assert result.code == 2
    assert "--allow-file" in result.err


def test_local_folder_is_compared_with_its_lock(machine: Machine, make_folder: Callable[..., Path]) -> None:
    folder = make_folder("notes")
    machine.agent("add", str(folder), "--yes")
    machine.agent("lock")
    machine.agent("remove", "notes", "--yes")

    assert "local folder" in machine.agent("add", "--frozen", "--yes").err
    assert machine.agent("add", str(folder), "--frozen", "--yes").code == 0
    machine.agent("remove", "notes", "--yes")
    (folder / "SKILL.md").write_text((folder / "SKILL.md").read_text() + " ")
    assert machine.agent("add", str(folder), "--frozen", "--yes").code == 1


def test_missing_or_damaged_lock_is_reported(machine: Machine) -> None:
    assert "agent skills lock" in machine.agent("add", "--frozen", "--yes").err
    (machine.workspace / "skills.lock").write_text("{")
    assert "damaged" in machine.agent("add", "--frozen", "--yes").err
    (machine.workspace / "skills.lock").write_text('{"version": 9, "skills": []}')
    assert "version 9" in machine.agent("add", "--frozen", "--yes").err
