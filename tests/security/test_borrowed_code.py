"""Read-only programs that could run code from a clone: a rule for reading allows no more."""

import shutil
from pathlib import Path

import anyio
import pytest
from workspaces import Drill, call, put

from metier.engine.entries.step import StepStarted
from metier.testing.scripted import says

pytestmark = pytest.mark.anyio

ALLOW_GIT = "rules: [{tool: Bash, allow: true, when: {command: {anyOf: [{startsWith: git}, {startsWith: cd}]}}}]"
ALLOW_CARGO = "rules: [{tool: Bash, allow: true, when: {command: {startsWith: cargo}}}]"


@pytest.mark.parametrize(("command", "cwd"), [("git status", "vendor/x"), ("cd vendor/x && git diff", ".")])
@pytest.mark.parametrize("profile", ["permissive", "guarded"])
async def test_a_folder_that_resembles_a_repository_cannot_set_programs_for_git(
    tmp_path: Path, command: str, cwd: str, profile: str
) -> None:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    folder, mark = tmp_path / "work", tmp_path / "work/mark"
    put(folder, {".agent/policy.yaml": ALLOW_GIT, "vendor/readme": "x"})
    await anyio.run_process([git, "init", "-q", "--bare", str(folder / "vendor/x")])
    lines = (
        "[core]",
        "repositoryformatversion = 0",
        "bare = false",
        f"worktree = {folder / 'vendor'}",
        f'fsmonitor = "touch {mark}; false"',
    )
    evil = "\n".join((*lines, f"pager = touch {mark}", ""))
    put(folder, {"vendor/x/config": evil})
    drill = Drill(folder, [call("Bash", command=command, cwd=cwd), says("Done.")])
    drill.profile = "guarded" if profile == "guarded" else "permissive"

    state = await drill.run()

    assert state.status == "completed"
    assert [entry for entry in await drill.journal(state.run_id) if isinstance(entry, StepStarted)]
    assert not mark.exists()


@pytest.mark.parametrize("command", ["cargo tree", "cargo metadata --no-deps", "cargo --version"])
async def test_cargo_is_asked_about_because_workspace_files_select_its_compiler(tmp_path: Path, command: str) -> None:
    put(tmp_path, {".agent/policy.yaml": ALLOW_CARGO, ".cargo/config.toml": '[build]\nrustc = "./evil"\n'})
    drill = Drill(tmp_path, [call("Bash", command=command), says("Done.")])

    state = await drill.run()

    assert state.pause is not None
