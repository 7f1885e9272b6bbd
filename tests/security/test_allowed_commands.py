"""Rules that allow a command, and attempts to reach more: a nested repository, another folder, a path as a remote."""

import subprocess
from pathlib import Path

import pytest
from workspaces import Drill, call, put

from metier.testing.scripted import says

pytestmark = pytest.mark.anyio


def allow(*matchers: str) -> dict[str, str]:
    rules = "\n".join(f"  - {{tool: Bash, allow: true, when: {{command: {matcher}}}}}" for matcher in matchers)
    return {".agent/policy.yaml": f"tool_approvals:\n{rules}\n"}


def make_repository(folder: Path, **settings: str) -> None:
    """Create a repository with one file whose attributes start configured programs."""
    put(folder, {"a.bin": "1\n", ".gitattributes": "*.bin diff=evil filter=evil\n"})
    run_git(folder, "init", "-q")
    run_git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "add", ".")
    run_git(folder, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first")
    for name, value in settings.items():
        run_git(folder, "config", name.replace("__", "."), value)
    put(folder, {"a.bin": "2\n"})


def run_git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, timeout=100)


def make_evil(workspace: Path) -> Path:
    """Create a repository in the workspace whose settings start a program that leaves a mark."""
    mark = workspace / "PWNED"
    evil = f"touch {mark}; cat"
    make_repository(
        workspace / "vendor",
        core__fsmonitor=f"touch {mark}",
        diff__evil__textconv=evil,
        diff__external=evil,
        filter__evil__clean=evil,
    )
    return mark


@pytest.mark.parametrize("command", ["git status", "git diff", "git describe --always --dirty", "git ls-files -m"])
@pytest.mark.parametrize("way", ["cwd", "cd"])
async def test_git_in_a_nested_repository_is_asked_about_and_starts_nothing(
    command: str, way: str, tmp_path: Path
) -> None:
    mark = make_evil(tmp_path)
    put(tmp_path, {"src/a": ""} | allow("{startsWith: git}", "{startsWith: cd}"))
    line = f"cd vendor && {command}" if way == "cd" else command
    arguments = {"cwd": "vendor"} if way == "cwd" else {}
    drill = Drill(tmp_path, [call("Bash", command=line, **arguments), says("done")])

    state = await drill.run()

    assert state.status == "paused"
    (question,) = await drill.questions()
    assert question.asked is not None
    assert "git -C" in question.asked.reason
    assert not mark.exists()


async def test_git_in_a_folder_of_the_workspace_repository_is_allowed(tmp_path: Path) -> None:
    make_repository(tmp_path)
    put(tmp_path, {"src/a": ""} | allow("{startsWith: git status}"))
    drill = Drill(tmp_path, [call("Bash", command="git status --short", cwd="src"), says("done")])

    state = await drill.run()

    assert state.status == "completed"


async def test_read_only_git_does_not_start_the_fsmonitor_of_the_workspace_repository(tmp_path: Path) -> None:
    mark = tmp_path / "PWNED"
    make_repository(tmp_path, core__fsmonitor=f"touch {mark}")
    put(tmp_path, allow("{startsWith: git status}"))
    drill = Drill(tmp_path, [call("Bash", command="git status --short"), says("done")])

    state = await drill.run()

    assert state.status == "completed"
    assert not mark.exists()


def make_submodule(workspace: Path, ignore: str) -> Path:
    """Create a repository with a submodule whose settings start a program that leaves a mark."""
    mark = make_evil(workspace)
    named = '[submodule "v"]\n\tpath = vendor\n\turl = ./vendor\n'
    put(workspace, {".gitmodules": f"{named}\t{ignore}\n"})
    run_git(workspace, "init", "-q")
    run_git(workspace, "-c", "advice.addEmbeddedRepo=false", "add", "vendor", ".gitmodules")
    run_git(workspace, "-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "first")
    mark.unlink(missing_ok=True)
    return mark


@pytest.mark.parametrize("command", ["git status", "git diff", "git describe --always --dirty", "git --no-pager diff"])
@pytest.mark.parametrize("ignore", ["ignore = none", "Ignore = untracked", 'ignore = "no"ne'])
@pytest.mark.parametrize("is_removed", [False, True])
async def test_a_read_only_git_command_that_enters_submodules_is_asked_about(
    command: str, ignore: str, is_removed: bool, tmp_path: Path
) -> None:
    mark = make_submodule(tmp_path, ignore)
    if is_removed:
        (tmp_path / ".gitmodules").unlink()
    put(tmp_path, allow("{startsWith: git}", f"{{equals: {command}}}"))
    drill = Drill(tmp_path, [call("Bash", command=command), says("done")])

    state = await drill.run()

    assert state.status == "paused"
    assert not mark.exists()


@pytest.mark.parametrize(
    ("command", "ignore"), [("git status", "ignore = dirty"), ("git diff", ""), ("git log -p", "ignore = none")]
)
async def test_a_read_only_git_command_outside_submodules_is_allowed(command: str, ignore: str, tmp_path: Path) -> None:
    mark = make_submodule(tmp_path, ignore)
    put(tmp_path, allow("{startsWith: git}"))
    drill = Drill(tmp_path, [call("Bash", command=command), says("done")])

    state = await drill.run()

    assert state.status == "completed"
    assert not mark.exists()


@pytest.mark.parametrize("remote", ["./evil.git", "evil.git", "sub/evil", "../evil.git", "/srv/evil.git", "file:evil"])
async def test_a_push_to_a_path_is_asked_about(remote: str, tmp_path: Path) -> None:
    put(tmp_path, allow("{startsWith: git push}", "{startsWith: git fetch}"))
    drill = Drill(tmp_path, [call("Bash", command=f"git push {remote}"), says("done")])

    state = await drill.run()

    assert state.status == "paused"


@pytest.mark.parametrize("matcher", ["{in: [make test]}", "{equals: make test}", "{startsWith: make test}"])
@pytest.mark.parametrize("is_cd", [True, False])
async def test_a_rule_for_a_command_applies_to_the_root_of_the_workspace(
    matcher: str, is_cd: bool, tmp_path: Path
) -> None:
    put(tmp_path, {"sub/Makefile": "test:\n\ttouch PWNED\n"} | allow(matcher, "{startsWith: cd}"))
    called = call("Bash", command="cd sub && make test") if is_cd else call("Bash", command="make test", cwd="sub")
    drill = Drill(tmp_path, [called, says("done")])

    state = await drill.run()

    assert state.status == "paused"
    (question,) = await drill.questions()
    assert question.asked is not None
    assert "workspace's own folder" in question.asked.reason
    assert not (tmp_path / "sub" / "PWNED").exists()


async def test_a_rule_for_a_folder_allows_the_command_there_and_warns_that_code_runs(tmp_path: Path) -> None:
    rule = "{tool: Bash, allow: true, when: {command: {equals: make test}, cwd: {equals: sub}}}"
    put(tmp_path, {"sub/Makefile": "test:\n\ttouch DONE\n", ".agent/policy.yaml": f"tool_approvals: [{rule}]\n"})
    drill = Drill(tmp_path, [call("Bash", command="make test", cwd="sub"), says("done")])

    state = await drill.run()

    assert state.status == "completed"
    assert (tmp_path / "sub" / "DONE").exists()


async def test_cd_cannot_leave_the_folder_of_a_rule(tmp_path: Path) -> None:
    rule = "{tool: Bash, allow: true, when: {command: {startsWith: %s}, cwd: {equals: docs}}}"
    rules = ", ".join(rule % program for program in ("cat", "cd"))
    put(tmp_path, {"docs/a": "", "secret": "s", ".agent/policy.yaml": f"tool_approvals: [{rules}]\n"})
    drill = Drill(tmp_path, [call("Bash", command="cd .. && cat secret", cwd="docs"), says("done")])

    state = await drill.run()

    assert state.status == "paused"


@pytest.mark.parametrize(
    "command",
    [
        "git config --list --global",
        "git config -l",
        "git config --get-regexp '.*'",
        "git config --get github.token",
        "git config --system --list",
        "git ls-files --recurse-submodules",
        "git diff --submodule=diff",
        "git status --ignore-submodules=none",
        "ruff check",
        "ruff check src",
        "sed -l 5 p a.txt",
        "sed -nl 5 p a.txt",
        "awk --assign x=1 '{print}' a.txt",
        "awk --field-separator=: '{print $1}' a.txt",
    ],
)
async def test_commands_that_read_outside_or_obey_workspace_settings_are_asked_about(
    command: str, tmp_path: Path
) -> None:
    programs = ("git config", "ruff check", "git", "sed", "awk")
    put(tmp_path, allow(*(f"{{startsWith: {program}}}" for program in programs)))
    drill = Drill(tmp_path, [call("Bash", command=command), says("done")])

    state = await drill.run()

    assert state.status == "paused"


@pytest.mark.parametrize(
    "command",
    ["git config --get user.name", "git config --local --list", "ruff check --no-fix src", "git config --local -l"],
)
async def test_read_only_command_forms_are_allowed(command: str, tmp_path: Path) -> None:
    put(tmp_path, {"src/a.py": ""} | allow("{startsWith: git config}", "{startsWith: ruff check}"))
    drill = Drill(tmp_path, [call("Bash", command=command), says("done")])

    state = await drill.run()

    assert state.status == "completed"
