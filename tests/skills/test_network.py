"""Servers that fail, require authentication, hang, or lack features; all on the loopback interface."""

from __future__ import annotations

import base64
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from metier.errors import SkillError, SkillRejected
from metier.skills.git_fetch import GitSession, get_git
from metier.skills.install.operations import Installer
from metier.skills.layout import InstallLimits
from metier.skills.source import GitSource

if TYPE_CHECKING:
    from tests.skills.conftest import GitServer, Machine, Repository


class Pauses:
    """A replacement for sleeping that records the delays."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/notes.git"


def add(machine: Machine, url: str, *, limits: InstallLimits | None = None, pauses: Pauses | None = None) -> str:
    """Install through the public command without real delays, and return the installed commit."""
    installer = Installer(home=machine.home, limits=limits or InstallLimits(), sleep=(pauses or Pauses()).sleep)
    outcome = anyio.run(lambda: installer.add(GitSource(url=url), confirm=lambda _: "trust"))
    assert outcome.entry is not None
    return outcome.entry.commit_sha or ""


def git_processes(root: Path) -> list[str]:
    """Return the command lines of programs that run below a folder."""
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(root) in command:
            found.append(command)
    return found


def test_skill_is_fetched_over_http(machine: Machine, notes: Repository, git_server: GitServer) -> None:
    old = notes.git("rev-parse", "HEAD")
    new = notes.commit({"later.md": "x"})

    tip = machine.agent("add", git_server.url(), "--yes", "--json")
    pinned = machine.agent("add", f"{git_server.url()}@{old}", "--yes", "--json", "--name", "pinned")

    assert (tip.json["commit"], pinned.json["commit"]) == (new, old)
    assert "not encrypted" in tip.json["warnings"][0]


def test_network_errors_are_retried_three_times_with_growing_delays(
    machine: Machine, notes: Repository, git_server: GitServer
) -> None:
    pauses = Pauses()
    git_server.failures = 2

    assert add(machine, git_server.url(), pauses=pauses) == notes.git("rev-parse", "HEAD")
    assert pauses.seconds == [1.0, 2.0]

    git_server.failures = 3
    with pytest.raises(SkillError, match="Cannot reach"):
        add(machine, git_server.url(), pauses=pauses)
    assert git_server.failures == 0
    assert list(machine.registry.skills) == ["notes"]


def test_refused_connection_is_a_network_error(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    pauses = Pauses()

    with pytest.raises(SkillError, match="Cannot reach"):
        add(machine, f"http://127.0.0.1:{port}/notes.git", pauses=pauses)
    assert pauses.seconds == [1.0, 2.0]


def test_repository_that_needs_authentication_is_an_error_without_a_prompt(
    machine: Machine, notes: Repository, git_server: GitServer
) -> None:
    git_server.authorization = "Basic something"

    result = machine.agent("add", git_server.url(), "--yes")

    assert result.code == 1
    assert "error: Repository requires authentication" in result.err
    assert len(git_server.requests) == 1, "it was not tried again"
    assert machine.registry.skills == {}


def test_missing_repository_is_reported(machine: Machine, notes: Repository, git_server: GitServer) -> None:
    result = machine.agent("add", git_server.url("nothing"), "--yes")

    assert result.code == 1
    assert "was not found" in result.err


def test_secret_reaches_the_server_but_no_file_argument_or_output(
    machine: Machine, notes: Repository, git_server: GitServer
) -> None:
    secret = "ada:" + "tok" + "en-456"
    encoded = base64.b64encode(secret.encode()).decode()
    git_server.authorization = f"Basic {encoded}"
    log = machine.workspace / "arguments"
    shim = machine.workspace / "bin" / "git"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {shutil.which("git")} "$@"\n')
    shim.chmod(0o755)
    installer = Installer(home=machine.home)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{shim.parent}:{path}"
    try:
        source = GitSource(url=git_server.url(), secret=secret)
        outcome = anyio.run(lambda: installer.add(source, confirm=lambda _: "trust"))
    finally:
        os.environ["PATH"] = path

    assert outcome.status == "installed"
    written = [file.read_bytes() for file in machine.home.root.rglob("*") if file.is_file()]
    everything = b"".join([*written, log.read_bytes(), repr(outcome).encode()])
    assert len(log.read_text().splitlines()) >= 4
    assert b"token-456" not in everything
    assert encoded.encode() not in everything


def test_server_without_shallow_fetches_gets_a_full_fetch(
    machine: Machine, notes: Repository, git_server: GitServer
) -> None:
    notes.git("update-server-info")
    git_server.is_dumb = True

    assert add(machine, git_server.url()) == notes.git("rev-parse", "HEAD")


def test_silent_server_ends_at_the_time_limit_and_leaves_no_process(machine: Machine, silent_server: str) -> None:
    with pytest.raises(SkillError, match=r"did not finish within 0\.5 s"):
        add(machine, silent_server, limits=InstallLimits(timeout_seconds=0.5))

    assert git_processes(machine.home.root) == []
    assert list(machine.home.staging.iterdir()) == []


def test_cancelled_installation_leaves_no_process_and_no_files(machine: Machine, silent_server: str) -> None:
    started: list[str] = []

    async def cancel_when_git_runs(scope: anyio.CancelScope) -> None:
        while not any("ls-remote" in command for command in git_processes(machine.home.root)):  # noqa: ASYNC110
            await anyio.sleep(0.01)
        started.extend(git_processes(machine.home.root))
        scope.cancel()

    async def install() -> None:
        installer = Installer(home=machine.home)
        with anyio.fail_after(100):
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_when_git_runs, group.cancel_scope)
                await installer.add(GitSource(url=silent_server), confirm=lambda _: "trust")

    anyio.run(install)

    assert started
    assert git_processes(machine.home.root) == []
    assert list(machine.home.staging.iterdir()) == []


def test_repository_larger_than_allowed_is_refused(machine: Machine, notes: Repository, git_server: GitServer) -> None:
    notes.commit({"noise.bin": os.urandom(300_000)})

    with pytest.raises(SkillRejected, match="more than 100000 bytes"):
        add(machine, git_server.url(), limits=InstallLimits(max_repository_bytes=100_000))
    assert machine.registry.skills == {}


def test_git_gets_only_allowlisted_environment_variables(tmp_path: Path) -> None:
    session = GitSession(repository=tmp_path / "a" / "b", url="https://example.org/x", limits=InstallLimits())
    inherited = {
        "PATH": "/bin",
        "GIT_DIR": "/x",
        "GIT_ASKPASS": "/x",
        "SSH_ASKPASS": "/x",
        "OPENAI_API_KEY": "k",
        "LANG": "de",
    }

    environment = get_git(session, inherited).environment

    assert environment["PATH"] == "/bin"
    assert not {"GIT_DIR", "GIT_ASKPASS", "SSH_ASKPASS", "OPENAI_API_KEY", "LANG"} & environment.keys()
    assert environment["GIT_TERMINAL_PROMPT"] == "0"
    assert "file" not in environment["GIT_ALLOW_PROTOCOL"]


def test_missing_git_is_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine.workspace))

    result = machine.agent("add", "https://example.org/notes.git", "--yes")

    assert result.code == 1
    assert "git is not installed" in result.err
