"""Children with worktrees write concurrently; their changes are returned as diffs and not applied."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import JsonValue
from teams import Call, Cast, find_told, open_team, write, write_agents

from metier.engine.journal import read_entries
from metier.runtime.answers import Answer
from metier.runtime.approval_questions import ApprovalQuestion, Reply
from metier.runtime.driver import DriveOptions
from metier.runtime.history.replays import replay_run
from metier.runtime.history.undo import plan_undo
from metier.runtime.requests import RunRequest

pytestmark = pytest.mark.anyio

A = "one\ntwo\n" + "...\n" * 8 + "three\n"
DONE: Call = ("finish", {"result": "done"})


def git(folder: Path, *args: str) -> str:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "Kim",
        "GIT_AUTHOR_EMAIL": "kim@example.org",
        "GIT_COMMITTER_NAME": "Kim",
        "GIT_COMMITTER_EMAIL": "kim@example.org",
    }
    done = subprocess.run(["git", *args], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a commit, an uncommitted change, an untracked and an ignored file."""
    folder = tmp_path / "work"
    folder.mkdir()
    write(folder, {"a.txt": A, "b.txt": "b\n", ".gitignore": "secret.txt\nruns/\nhome/\n"})
    git(folder, "init", "-q")
    git(folder, "add", "a.txt", "b.txt", ".gitignore")
    git(folder, "commit", "-qm", "first")
    write(folder, {"b.txt": "b, changed\n", "new.txt": "new\n", "secret.txt": "s\n"})
    write_agents(folder, "left", "right")
    return folder


def ask(*agents: str) -> Call:
    tasks: list[JsonValue] = [{"agent": agent, "task": f"Change it, {agent}"} for agent in agents]
    return ("delegate", {"tasks": tasks, "isolation": "worktree"})


def edit(old: str, new: str) -> Call:
    return ("Edit", {"path": "a.txt", "old": old, "new": new})


def build_cast(**lines: Sequence[Call]) -> Cast:
    return Cast(lines)


async def test_two_children_change_the_same_file_and_the_parent_gets_a_diff_of_each(repository: Path) -> None:
    before = git(repository, "status", "--porcelain"), (repository / "a.txt").read_text()
    cast = build_cast(
        boss=[ask("left", "right"), DONE],
        left=[edit("one", "ONE"), ("finish", {"result": "I changed the first line"})],
        right=[
            edit("three", "THREE"),
            ("Write", {"path": "made/c.txt", "content": "c\n"}),
            ("Bash", {"command": "ls; cat b.txt; git status --short"}),
            ("finish", {"result": "I changed the last line"}),
        ],
    )

    async with open_team(repository, cast, max_turns=40) as runtime:
        state = await runtime.start(RunRequest(task="Change it"))
        reports = [await replay_run(runtime, run) for run in (state.run_id, *(c.run_id for c in state.children))]
        undo = await plan_undo(runtime, state.run_id)
        folder = runtime.folder(state.run_id)
        diffs = [(folder / "artifacts" / f"{child.run_id}.diff") for child in state.children]

    told = find_told(cast.requests[-1])
    assert state.status == "completed"
    assert [child.status for child in state.children] == ["completed", "completed"]
    assert told.index("I changed the first line") < told.index("+ONE") < told.index("I changed the last line")
    assert "-three" in told
    # What was there: the change that was not committed, the new file; not what git ignores.
    listed = next(find_told(each) for each in cast.requests if "b, changed" in find_told(each))
    assert "new.txt" in listed
    assert "secret.txt" not in listed.partition("I changed")[0].partition("b, changed")[0]
    assert (git(repository, "status", "--porcelain"), (repository / "a.txt").read_text()) == before
    assert [report.outcome.divergence for report in reports] == [None, None, None]
    assert undo.files == ()
    assert not list((repository / "home/.agent/worktrees").iterdir())
    assert len(git(repository, "worktree", "list").splitlines()) == 1

    for diff in diffs:
        git(repository, "apply", str(diff))

    assert (repository / "a.txt").read_text() == A.replace("one", "ONE").replace("three", "THREE")
    assert (repository / "made/c.txt").read_text() == "c\n"


async def test_worktree_is_kept_during_a_pause_and_the_run_continues_in_it(repository: Path) -> None:
    cast = build_cast(
        boss=[ask("left"), DONE],
        left=[edit("one", "1"), ("ask_user", {"question": "More?"}), edit("two", "2"), ("finish", {"result": "ok"})],
    )

    async with open_team(repository, cast, max_turns=40) as runtime:
        state = await runtime.start(RunRequest(task="Change it"))
        waiting = await runtime.get_waiting(state)
        assert waiting.started is not None
        kept = (Path(waiting.started.root) / "a.txt").read_text()
        ended = await runtime.resume(state.run_id, Answer(values={"answer": "yes"}))

    assert kept == A.replace("one", "1")
    assert ended.status == "completed"
    assert "+1\n+2\n" in find_told(cast.requests[-1])
    assert (repository / "a.txt").read_text() == A


async def test_file_outside_the_worktree_is_inaccessible(repository: Path) -> None:
    outside = str(repository / "a.txt")
    cast = build_cast(
        boss=[ask("left"), DONE],
        left=[("Write", {"path": outside, "content": "gone"}), ("finish", {"result": "tried"})],
    )

    async with open_team(repository, cast, max_turns=40) as runtime:
        await runtime.start(RunRequest(task="Change it"))

    assert (repository / "a.txt").read_text() == A
    assert "It changed no files" in find_told(cast.requests[-1])


async def test_deny_rule_of_the_parent_applies_to_the_same_path_in_the_worktree(repository: Path) -> None:
    rules = ("{tool: Edit, when: {path: {equals: a.txt}}, allow: false}", "{tool: '*', allow: true}")
    deny = "tool_approvals:\n  rules:\n" + "".join(f"    - {rule}\n" for rule in rules)
    write_agents(repository, "lead", more=deny)
    cast = build_cast(
        lead=[ask("left"), DONE],
        left=[edit("one", "1"), ("finish", {"result": "tried"})],
    )

    async with open_team(repository, cast, max_turns=40) as runtime:
        state = await runtime.start(RunRequest(task="Change it", agent="lead"))
        entries = await read_entries(runtime.store, state.children[0].run_id)

    assert "It changed no files" in find_told(cast.requests[-1])
    assert any(getattr(entry, "status", "") == "denied" for entry in entries)


async def test_missing_git_repository_is_reported_to_the_model(tmp_path: Path) -> None:
    write_agents(tmp_path, "left")
    cast = build_cast(boss=[ask("left"), DONE], left=[("finish", {"result": "x"})])

    async with open_team(tmp_path, cast, max_turns=40) as runtime:
        state = await runtime.start(RunRequest(task="Change it"))

    assert state.status == "completed"
    assert "A worktree for it cannot be made: the workspace is no git repository" in find_told(cast.requests[-1])


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="the sandbox needs bubblewrap")
async def test_program_in_the_sandbox_works_in_the_worktree_and_cannot_write_to_the_workspace(repository: Path) -> None:
    command = f"git log --oneline; git status --short; echo made > made.txt; echo gone > {repository / 'a.txt'}"
    cast = build_cast(
        boss=[ask("left"), DONE],
        left=[("Bash", {"command": command}), ("finish", {"result": "ran"})],
    )

    async def approve(question: ApprovalQuestion) -> Reply | None:
        del question
        return Reply(decision="approved", by="kim")

    async with open_team(repository, cast, max_turns=40, profile="guarded") as runtime:
        state = await runtime.start(RunRequest(task="Run it"), DriveOptions(ask=approve))
        below = await runtime.read(state.children[0].run_id)

    ran = next(find_told(each) for each in cast.requests if "first" in find_told(each))
    told = find_told(cast.requests[-1])
    assert below.started is not None
    assert below.started.sandbox == "full"
    assert " M b.txt" in ran
    assert "made.txt" in told
    assert (repository / "a.txt").read_text() == A
