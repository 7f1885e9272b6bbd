"""Read-only commands run without approval, and the read-only sandbox enforces this."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import QUICK, Workspace, use_model

from metier.runtime import confinement
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.confinement import Level
from metier.tools.process.sandbox.levels import try_level
from metier.tools.shell import harmless

WAITS = 3
"""The exit code of a run that waits for an answer."""
WRONG_TABLES = """
touch = :paths
python3 = :any
find = :any
"""
"""Tables that take programs that write for programs that read."""


def find_no_bubblewrap(*_: object) -> str:
    return ""


def find_no_level(_: object) -> None:
    return None


@pytest.fixture(params=["full", "kernel"])
def level(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Level:
    """The level of the read-only sandbox; skips if it is unavailable."""
    wanted: Level = request.param
    trial = try_level(wanted, get_bubblewrap(os.environ, tmp_path))
    if not trial.works:
        pytest.skip(f"sandbox level {wanted!r} cannot be shown here: {trial.summary}")
    if wanted == "kernel":
        monkeypatch.setattr(confinement, "get_bubblewrap", find_no_bubblewrap)
    return wanted


@pytest.fixture
def project(workspace: Workspace, model: ModelServer) -> Workspace:
    """A guarded workspace with a repository and a secret."""
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    workspace.write("notes.txt", "a fact\n")
    workspace.write(".env", "TOKEN=planted-" + "value\n")
    who = {f"GIT_{role}_{part}": "a@b" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    for words in (["init", "-q"], ["add", "notes.txt"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *words], cwd=workspace.folder, env={**os.environ, **who}, check=True)
    return workspace


@pytest.fixture
def wrong_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    caches = (harmless.load_tables, harmless._programs)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(harmless, "TABLES", harmless.TABLES + WRONG_TABLES)
    for cache in caches:
        cache.cache_clear()
    yield
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


def run_commands(project: Workspace, model: ModelServer, *commands: str) -> int:
    """Start a run whose model asks for all commands in one reply."""
    model.follow(Reply(calls=tuple(("Bash", {"command": command}) for command in commands)), says("Done."))
    return project.agent("run", "Look around", "-q")


def find_payloads(project: Workspace, kind: str) -> list[dict[str, Any]]:
    return [event["payload"] for event in project.events() if event["event_type"] == kind]


def list_questions(project: Workspace, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert project.agent("approvals", "list", "--json") == 0
    return cast("list[dict[str, Any]]", json.loads(capsys.readouterr().out))


def list_results(model: ModelServer, count: int) -> list[str]:
    """Return the last results sent to the model in call order."""
    return [message["content"] for message in model.received[-1]["messages"][-count:]]


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return every file outside the runs with its mode, time and content."""
    files = (path for path in folder.rglob("*") if path.relative_to(folder).parts[0] != "runs")
    states = ((path, path.lstat()) for path in files)
    return {
        str(path): (state.st_mode, state.st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path, state in states
    }


def test_read_only_commands_run_without_approval(project: Workspace, model: ModelServer, level: Level) -> None:
    before = snapshot(project.folder)
    shown = {
        "ls -la": "notes.txt",
        "git status": "On branch",
        "git log --oneline | head -5": "first",
        "cat notes.txt": "a fact",
        "grep -rn fact notes.txt": "a fact",
        "find . -name notes.txt": "notes.txt",
        "pwd && wc -l < notes.txt": "work",
        "sort notes.txt | uniq -c": "a fact",
    }

    assert run_commands(project, model, *shown) == 0

    results = list_results(model, len(shown))
    assert [text for text, wanted in zip(results, shown.values(), strict=True) if wanted not in text] == []
    started = find_payloads(project, "step_started")
    assert {(each["verdict"], each["effect"], each["read_only"]) for each in started} == {("allow", "read", True)}
    assert find_payloads(project, "run_started")[0]["reading_sandbox"] == level
    assert not find_payloads(project, "approval_requested")
    assert snapshot(project.folder) == before
    assert project.agent("replay", project.run_ids()[-1]) == 0


def test_other_failures_are_ordinary_results(project: Workspace, model: ModelServer, level: Level) -> None:
    commands = ("cat missing.txt", "cat .env", "grep -r planted .", "grep -c absent notes.txt")

    assert run_commands(project, model, *commands) == 0

    results = "\n".join(list_results(model, len(commands)))
    assert "No such file" in results
    assert "planted-" not in results


@pytest.mark.usefixtures("wrong_tables")
def test_commands_that_write_are_blocked_and_asked_about(
    project: Workspace, model: ModelServer, level: Level, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(project.folder)
    commands = (
        "touch planted.txt",
        "touch notes.txt",
        "find . -maxdepth 1 -fprintf planted.txt x",
        "find . -name notes.txt -delete",
        "python3 -c 'import os; os.chmod(\"notes.txt\", 0o777)'",
        "python3 -c 'import os; os.utime(\"notes.txt\")'",
        'python3 -c \'import os; os.setxattr("notes.txt", "user.a", b"x")\'',
        'python3 -c \'import os; os.link("notes.txt", "planted.txt")\'',
        "python3 -c 'import os; os.truncate(\"notes.txt\", 0)'",
        'python3 -c \'open("/proc/self/cwd/planted.txt", "w")\'',
    )

    assert run_commands(project, model, *commands) == WAITS

    assert snapshot(project.folder) == before
    asked = list_questions(project, capsys)
    assert sorted(each["arguments"]["command"] for each in asked) == sorted(commands)
    assert {each["risk"] for each in asked} == {"high"}
    assert all("It needs write access" in each["reason"] for each in asked)
    assert project.agent("replay", project.run_ids()[-1]) == 0


@pytest.mark.usefixtures("wrong_tables")
def test_commands_that_hide_their_failure_change_nothing(project: Workspace, model: ModelServer, level: Level) -> None:
    before = snapshot(project.folder)
    detached = 'import os; os.fork() or (os.setsid(), os.fork() or open("planted.txt", "w"))'

    assert run_commands(project, model, "touch planted.txt || true", f"python3 -c '{detached}' 2>/dev/null") == 0

    assert snapshot(project.folder) == before


@pytest.mark.usefixtures("wrong_tables")
def test_commands_that_connect_are_blocked_and_asked_about(
    project: Workspace, model: ModelServer, level: Level, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(socket.AF_UNIX) as local, socket.socket(socket.AF_UNIX) as abstract, socket.socket() as inet:
        local.bind("socket")
        abstract.bind(f"\0{project.folder}")
        inet.bind(("127.0.0.1", 0))
        for listener in (local, abstract, inet):
            listener.listen()
            listener.setblocking(False)
        connect = "python3 -c 'import socket; socket.socket(socket.{}).connect({})'"

        code = run_commands(
            project,
            model,
            connect.format("AF_UNIX", '"socket"'),
            connect.format("AF_UNIX", f'"\\0{project.folder}"'),
            connect.format("AF_INET", f'("127.0.0.1", {inet.getsockname()[1]})'),
        )

        assert code == WAITS
        for listener in (local, abstract, inet):
            with pytest.raises(BlockingIOError):
                listener.accept()
    asked = list_questions(project, capsys)
    assert len(asked) == 3
    assert all("Network is down" in each["reason"] for each in asked)


@pytest.mark.usefixtures("wrong_tables")
def test_approved_command_runs_with_write_access(project: Workspace, model: ModelServer, level: Level) -> None:
    assert run_commands(project, model, "touch src.txt") == WAITS

    assert project.agent("approvals", "approve", "ap-", "--resume") == 0

    assert (project.folder / "src.txt").exists()
    first, second = find_payloads(project, "step_started")
    assert (first["read_only"], first["effect"]) == (True, "read")
    assert (second["read_only"], second["effect"]) == (False, "opaque")
    assert project.agent("replay", project.run_ids()[-1]) == 0


@pytest.mark.usefixtures("wrong_tables")
def test_denied_write_access_is_reported_to_the_model(project: Workspace, model: ModelServer, level: Level) -> None:
    assert run_commands(project, model, "touch src.txt") == WAITS

    assert project.agent("approvals", "deny", "ap-", "--reason", "Not now", "--resume") == 0

    assert not (project.folder / "src.txt").exists()
    (result,) = list_results(model, 1)
    assert "Not now" in result
    assert "in the read-only sandbox it failed" in result


def test_programs_named_in_repository_settings_change_nothing(
    project: Workspace, model: ModelServer, level: Level
) -> None:
    for name in ("core.fsmonitor", "core.pager", "diff.external", "alias.status", "core.sshCommand"):
        mark = "!" if name.startswith("alias") else ""
        value = f"{mark}touch {project.folder}/planted"
        subprocess.run(["git", "config", name, value], cwd=project.folder, check=True)
    project.write("notes.txt", "another fact\n")
    before = snapshot(project.folder)

    run_commands(project, model, "git status", "git log -p", "git diff")

    assert snapshot(project.folder) == before


@pytest.mark.parametrize(
    "rule",
    [
        {"tool": "Bash", "verdict": "ask"},
        {"tool": "Read", "allow": False, "when": {"path": {"startsWith": "private/"}}},
        {"tool": "*", "verdict": "ask"},
    ],
)
def test_rules_that_ask_or_restrict_reading_still_ask(
    project: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str], rule: dict[str, object]
) -> None:
    project.write(".agent/policy.yaml", json.dumps({"tool_approvals": {"rules": [rule]}}))

    assert run_commands(project, model, "cat notes.txt") == WAITS

    (asked,) = list_questions(project, capsys)
    assert asked["risk"] == "low"


def test_deny_rule_still_denies(project: Workspace, model: ModelServer) -> None:
    rules = [{"tool": "Bash", "allow": False, "when": {"command": {"startsWith": "cat"}}}]
    project.write(".agent/policy.yaml", json.dumps({"tool_approvals": {"rules": rules}}))

    assert run_commands(project, model, "cat notes.txt") == 0

    assert not find_payloads(project, "step_started")


def test_command_asks_if_there_is_no_sandbox(
    project: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    project.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"}, sandbox={"use": "off"})

    assert run_commands(project, model, "ls -la") == WAITS

    (asked,) = list_questions(project, capsys)
    assert asked["risk"] == "low"


def test_commands_not_known_to_be_read_only_ask(project: Workspace, model: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("elsewhere\n", encoding="utf-8")
    commands = ("ls -la && touch x", "cat ../outside.txt", "npm test", "ls > listing.txt", "ls $(pwd)")

    assert run_commands(project, model, *commands) == WAITS

    assert not find_payloads(project, "step_started")
    assert len(find_payloads(project, "approval_requested")) == len(commands)


def test_link_to_a_file_outside_the_workspace_asks(project: Workspace, model: ModelServer, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("elsewhere\n", encoding="utf-8")
    (project.folder / "link.txt").symlink_to(tmp_path / "outside.txt")

    assert run_commands(project, model, "cat link.txt") == WAITS


def test_workspace_program_with_a_known_name_asks(
    project: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("bin/ls", "#!/bin/sh\necho planted\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")

    assert run_commands(project, model, "ls") == WAITS


def test_explanation_names_the_read_only_sandbox(
    project: Workspace, level: Level, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = json.dumps({"command": "git status"})

    assert project.agent("policy", "explain", "Bash", "--args", arguments, "--json") == 0

    explained = json.loads(capsys.readouterr().out)
    assert (explained["verdict"], explained["read_only"], explained["risk"]) == ("allow", True, "low")
    assert "read-only sandbox" in explained["reason"]


def test_run_resumed_without_the_sandbox_asks(
    project: Workspace,
    model: ModelServer,
    level: Level,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model.follow(calls("Write", path="a.txt", content="x"), calls("Bash", command="ls"), says("Done."))
    assert project.agent("run", "Look around", "-q") == WAITS
    monkeypatch.setattr(confinement, "find_reading_level", find_no_level)

    assert project.agent("approvals", "approve", "ap-", "--resume") == WAITS

    (asked,) = list_questions(project, capsys)
    assert "There is no read-only sandbox here" in asked["reason"]
