"""`kill -9` at any point of add, update and remove, and concurrent processes. Real processes, real signals."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from metier.errors import SkillError
from metier.skills.install.installed import load_registry, lock_registry

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from tests.skills.conftest import Machine

KILL_EVERYWHERE = """
import json, os, shutil, signal, sys
from pathlib import Path

import anyio

from metier.errors import SkillError
from metier.skills.skill_trust import digest_tree
from metier.skills.install.operations import Installer
from metier.skills.install.placement import open_registry, read_registry
from metier.skills.install.installed import SkillHome, load_registry
from metier.skills.source import FolderSource

operation, base, old, new = sys.argv[1], *map(Path, sys.argv[2:])
yes = lambda proposal: "trust"


def installer(root):
    return Installer(home=SkillHome(root))


def perform(root):
    if operation == "add":
        anyio.run(lambda: installer(root).add(FolderSource(path=base / "source"), confirm=yes))
    elif operation == "update":
        anyio.run(lambda: installer(root).update("notes", confirm=yes))
    else:
        installer(root).remove("notes")


def kill_at(number, root):
    # Every look at and every change of something below the home is a moment to die; so is the exchange of folders.
    seen = 0

    def hook(event, args):
        nonlocal seen
        paths = [os.fsdecode(arg) for arg in args if isinstance(arg, (str, bytes, os.PathLike))]
        if event == "ctypes.dlsym" or any(path.startswith(str(root)) for path in paths):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def tree_of(folder):
    return digest_tree(folder).tree if folder.exists() else None


def state_of(home, registry):
    entry = registry.skills.get("notes")
    return [entry and entry.tree, entry and entry.trusted_digest, tree_of(home.visible("notes"))]


source = base / "source"
shutil.copytree(old, source)
# Once for all forks: what is imported and built at the first use.
anyio.run(lambda: installer(base / "rehearsal").add(FolderSource(path=source), confirm=yes))
start = base / "start"
if operation != "add":
    anyio.run(lambda: installer(start).add(FolderSource(path=source), confirm=yes))
else:
    start.mkdir()
if operation == "update":
    shutil.rmtree(source)
    shutil.copytree(new, source)

home = SkillHome(base / "home")
moments = []
number = 0
while True:
    number += 1
    shutil.rmtree(home.root, ignore_errors=True)
    shutil.copytree(start, home.root)
    child = os.fork()
    if child == 0:
        kill_at(number, home.root)
        perform(home.root)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    raw = tree_of(home.visible("notes"))
    settled = state_of(home, read_registry(home))
    with open_registry(home) as registry:
        clean = not registry.pending and not list(home.store.glob("*")) and not list(home.staging.glob("*"))
    moments.append({"raw": raw, "settled": settled, "clean": clean, "again": state_of(home, load_registry(home))})
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
print(json.dumps({"old": tree_of(old), "new": tree_of(new), "moments": moments}))
"""

ADD_MANY = """
import sys
from metier.cli.main import run

for folder in sys.argv[1:]:
    code = run(["skill", "add", folder, "--yes"])
    if code:
        sys.exit(code)
"""


def make_versions(make_folder: Callable[..., Path], tmp_path: Path) -> tuple[Path, Path]:
    old = make_folder("notes", **{"scripts/a.py": "print(1)\n", "references/x.md": "old"})
    old = old.rename(tmp_path / "old")
    new = make_folder("notes", **{"scripts/a.py": "print(2)\n", "assets/y.md": "new"})
    return old, new.rename(tmp_path / "new")


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["add", "update", "remove"])
def test_kill_at_any_time_leaves_the_old_or_the_new_state(
    operation: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    versions = make_versions(make_folder, tmp_path)
    base = tmp_path / "base"
    base.mkdir()

    command = [sys.executable, "-c", KILL_EVERYWHERE, operation, str(base), *map(str, versions)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    outcome = json.loads(finished.stdout)

    first, second = outcome["old"], outcome["new"]
    nothing, old, new = [None] * 3, [first] * 3, [second] * 3
    before, after = {"add": (nothing, old), "update": (old, new), "remove": (old, nothing)}[operation]
    moments = outcome["moments"]
    assert len(moments) > 20
    assert all(moment["settled"] in (before, after) for moment in moments)
    assert all(moment["again"] == moment["settled"] for moment in moments)
    assert all(moment["raw"] in (before[2], after[2]) for moment in moments), "a folder was seen half-way"
    assert all(moment["clean"] for moment in moments)
    # Both states occur, and once the new one is reached there is no way back.
    states = [moment["settled"] == after for moment in moments]
    assert states == sorted(states)
    assert {*states} == {False, True}


@pytest.mark.slow
def test_two_processes_that_add_twenty_skills_each_lose_none(
    machine: Machine, make_folder: Callable[..., Path]
) -> None:
    folders = [str(make_folder(f"skill-{number:02}")) for number in range(40)]

    processes = [
        subprocess.Popen([sys.executable, "-c", ADD_MANY, *folders[start::2]], stderr=subprocess.PIPE)
        for start in (0, 1)
    ]
    errors = [process.communicate()[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], errors
    registry = load_registry(machine.home)
    assert sorted(registry.skills) == [f"skill-{number:02}" for number in range(40)]
    assert registry.pending == {}
    assert machine.agent("verify").code == 0
    assert list(machine.home.store.iterdir()) == list(machine.home.staging.iterdir()) == []


def test_staging_folder_of_a_living_process_is_not_deleted(machine: Machine, make_folder: Callable[..., Path]) -> None:
    hold = (
        "import sys\nfrom pathlib import Path\nfrom metier.skills.install.installed import SkillHome\n"
        "from metier.skills.install.placement import open_staging\n"
        "with open_staging(SkillHome(Path(sys.argv[1]))) as folder:\n"
        "    print(folder, flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", hold, str(machine.home.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())

        assert machine.agent("add", str(make_folder("one")), "--yes").code == 0
        assert folder.is_dir()

        owner.kill()
        owner.wait()
    assert machine.agent("add", str(make_folder("two")), "--yes").code == 0
    assert list(machine.home.staging.iterdir()) == []


def test_registry_held_by_another_process_is_reported_after_the_wait(machine: Machine) -> None:
    with (
        lock_registry(machine.home),
        pytest.raises(SkillError, match="Another process is changing the skills"),
        lock_registry(machine.home, wait_seconds=0),
    ):
        pass
    with lock_registry(machine.home, wait_seconds=0):
        pass
