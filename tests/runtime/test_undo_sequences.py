"""Random sequences of Write, Edit and Bash, undone at random steps: the tree is byte for byte what it was."""

import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import override

import pytest
from anyio import run_process
from pydantic import JsonValue

from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer
from metier.runtime.history.undo import plan_undo, read_effects, undo
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import open_runtime
from metier.settings.sections import Settings
from metier.skills.workspace_trust import MADE_HERE
from metier.testing.scripted import ScriptedProvider, ToolCall, calls, says

pytestmark = pytest.mark.anyio

POINTS = (1, 2, 3, 4, 5, 6) if os.environ.get("METIER_UNDO_ALL") else (1,)
CALLS = (
    ("renameat", "unlinkat", "fsync", "fdatasync") if os.environ.get("METIER_UNDO_ALL") else ("renameat", "fdatasync")
)
SEQUENCES = 300 if os.environ.get("METIER_UNDO_ALL") else 6
NAMES = ("a.txt", "b.md", "docs/c.txt", "docs/deep/d.py", "new/e.txt", "with space.txt", "ü.txt")
type Tree = dict[str, tuple[str, bytes, int]]


def read_tree(folder: Path) -> Tree:
    found: Tree = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] in {"runs", ".git"}:
            continue
        if path.is_symlink():
            found[name] = ("link", os.fsencode(path.readlink()), 0)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    return found


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def build_call(chance: random.Random) -> ToolCall:
    """Build one call that creates, changes, deletes, renames, links or changes a mode; it may fail."""
    one, other = chance.choice(NAMES), chance.choice(NAMES)
    word = str(chance.randrange(1000))
    commands = (
        f"mkdir -p \"$(dirname '{one}')\" && printf '{word}' > '{one}'",
        f"printf '{word}\\r\\n' >> '{one}'",
        f"rm -rf '{one}'",
        f"mv '{one}' '{other}'",
        f"chmod {chance.choice(('600', '644', '755', '711', '444'))} '{one}'",
        f"ln -sfn '{other}' '{one}'",
        f"rm -rf docs && printf '{word}' > docs",
        f"rm -rf '{one}' && mkdir -p '{one}' && printf '{word}' > '{one}/x'",
    )
    match chance.randrange(4):
        case 0:
            return ToolCall("Write", {"path": one, "content": word})
        case 1:
            return ToolCall("Edit", {"path": one, "old": "1", "new": word, "replace_all": True})
        case _:
            arguments: dict[str, JsonValue] = {"command": chance.choice(commands)}
            return ToolCall("Bash", arguments)


def fill(folder: Path, *, is_repository: bool) -> None:
    for number, name in enumerate(NAMES[:4]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{number}1\n" * 3)
    (folder / "b.md").chmod(0o640)
    if is_repository:
        git(folder, "init", "-q")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "all")


@pytest.mark.parametrize("kind", ["git", "plain", "without git"])
@pytest.mark.parametrize("seed", range(SEQUENCES))
async def test_random_work_is_undone_at_a_random_step(
    tmp_path: Path,
    kind: str,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chance = random.Random(f"{kind}{seed}")
    fill(tmp_path, is_repository=kind == "git")
    environ = dict(os.environ)
    if kind == "without git":
        # Programs that the run starts have their PATH from the host; that of this process finds no git.
        monkeypatch.setenv("PATH", str(tmp_path.parent / "no programs"))
    trees: list[Tree] = []

    class Watching(ScriptedProvider):
        """A model that snapshots the files before each turn."""

        @override
        async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
            trees.append(read_tree(tmp_path))
            return await super().reply(request, observe=observe)

    work = [calls(build_call(chance)) for _ in range(chance.randrange(2, 7))]
    model = Watching(*work, says("Done"))
    settings = Settings.model_validate({"runtime": {"max_turns": 20}})
    host = Host(
        trust=MADE_HERE,
        settings=settings,
        workspace=tmp_path,
        home=tmp_path_factory.mktemp("home"),
        environ=environ,
        provider=model,
    )
    async with open_runtime(host) as runtime:
        state = await runtime.start(RunRequest(task="work"))
        assert state.status == "completed", state.failure
        effects = await read_effects(runtime, state.run_id)
        after = read_tree(tmp_path)
        if not effects:
            return
        to = chance.choice(effects).name
        plan = await plan_undo(runtime, state.run_id, to=to)
        assert plan.conflicts == ()
        assert plan.unknown == ()
        await undo(runtime, plan, by="me")

        assert read_tree(tmp_path) == trees[int(to.partition(".")[0]) - 1]

        again = await plan_undo(runtime, state.run_id, to="undo-1")
        await undo(runtime, again, by="me")
        assert read_tree(tmp_path) == after


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("kind", ["git", "plain"])
@pytest.mark.parametrize("call", CALLS)
async def test_killed_undo_completes_on_the_second_call(tmp_path: Path, call: str, kind: str) -> None:
    agent = Path(sys.executable).parent / "agent"
    environ = {**os.environ, "HOME": str(tmp_path)}
    killed = 0
    for point in POINTS:
        folder = tmp_path / f"{call}-{point}"
        folder.mkdir()
        fill(folder, is_repository=kind == "git")
        before = read_tree(folder)
        work = "rm a.txt; printf x > b.md; mv docs/c.txt c.txt; printf y > new.txt; ln -s b.md link; chmod 755 b.md"
        model = ScriptedProvider(calls(ToolCall("Bash", {"command": work})), says("Done"))
        host = Host(
            trust=MADE_HERE, settings=Settings(), workspace=folder, home=tmp_path, environ=environ, provider=model
        )
        async with open_runtime(host) as runtime:
            await runtime.start(RunRequest(task="work"))
        assert read_tree(folder) != before
        inject = f"inject={call}:signal=SIGKILL:when={point}"
        trace = ("strace", "-qq", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
        first = await run_process([*trace, str(agent), "undo"], cwd=folder, env=environ, check=False)
        killed += first.returncode == -signal.SIGKILL

        second = await run_process([str(agent), "undo"], cwd=folder, env=environ, check=False)

        assert second.returncode == 0, second.stderr
        assert read_tree(folder) == before
    assert killed >= 1
