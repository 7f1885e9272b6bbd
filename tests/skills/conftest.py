"""Real git repositories, a private home and workspace, and servers on the loopback interface."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, override

import pytest

from metier.cli.main import run
from metier.skills.install.installed import Registry, SkillHome, load_registry

SKILL = """\
---
name: {name}
description: Takes notes and finds them again.
---

# Notes

Version {version}.
"""


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Machine:
    """A home folder, a workspace in it, and the command `agent`."""

    home: SkillHome
    workspace: Path
    agent: Callable[..., Result]

    @property
    def registry(self) -> Registry:
        return load_registry(self.home)


@dataclass(frozen=True)
class Repository:
    path: Path

    @property
    def url(self) -> str:
        return self.path.as_uri()

    def git(self, *args: str, stdin: bytes = b"") -> str:
        identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "core.hooksPath=/dev/null"]
        command = ["git", "-C", str(self.path), *identity, *args]
        return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout.decode().strip()

    def commit(self, files: Mapping[str, str | bytes], message: str = "change") -> str:
        """Write files, commit everything, and return the commit."""
        for name, content in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "--all", "--force")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")

    def commit_tree(self, entries: Mapping[bytes, tuple[str, str]]) -> str:
        """Commit a tree that no working folder could hold: raw name to (mode, object id)."""
        raw = b"".join(
            b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(oid)) for name, (mode, oid) in entries.items()
        )
        tree = self.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", stdin=raw)
        commit = self.git("commit-tree", tree, "-m", "odd")
        self.git("update-ref", "refs/heads/main", commit)
        return commit

    def blob(self, content: str | bytes) -> str:
        data = content.encode() if isinstance(content, str) else content
        return self.git("hash-object", "-w", "--stdin", stdin=data)


def skill_text(name: str = "notes", version: int = 1) -> str:
    return SKILL.format(name=name, version=version)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Machine:
    workspace = tmp_path / "home" / "work"
    workspace.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENT_SKILLS", raising=False)
    monkeypatch.chdir(workspace)

    def agent(*args: str) -> Result:
        capsys.readouterr()
        code = run(["skill", *args])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return Machine(SkillHome(tmp_path / "home" / ".agent" / "skills"), workspace, agent)


@pytest.fixture
def make_repository(tmp_path: Path) -> Callable[..., Repository]:
    def make(name: str = "notes") -> Repository:
        path = tmp_path / "repositories" / name
        path.mkdir(parents=True)
        repository = Repository(path)
        repository.git("init", "--quiet", "--initial-branch=main")
        return repository

    return make


@pytest.fixture
def notes(make_repository: Callable[..., Repository]) -> Repository:
    """A repository with the skill `notes` and one script, one commit."""
    repository = make_repository()
    repository.commit({"SKILL.md": skill_text(), "scripts/find.py": "import os\nprint(os.environ['NOTES_KEY'])\n"})
    return repository


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "notes", **files: str) -> Path:
        folder = tmp_path / "folders" / name
        contents = {"SKILL.md": skill_text(name), **files}
        for path, text in contents.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    return make


@dataclass
class GitServer:
    """A server of the real `git http-backend` over HTTP; it can fail or require authentication."""

    root: Path
    failures: int = 0
    """Number of requests to answer with 503 first."""
    authorization: str = ""
    """The header without which the answer is 401."""
    is_dumb: bool = False
    """Plain files only, no git."""
    requests: list[str] = field(default_factory=list[str])
    port: int = 0

    def url(self, name: str = "notes") -> str:
        return f"http://127.0.0.1:{self.port}/{name}/.git"

    def build_handler(self) -> type[BaseHTTPRequestHandler]:  # noqa: C901 - the class below counts as part of it
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests.append(self.path)
                if server.failures > 0:
                    server.failures -= 1
                    self._reply(503, {}, b"busy")
                elif server.authorization and self.headers.get("Authorization") != server.authorization:
                    self._reply(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"who?")
                elif server.is_dumb:
                    self._serve_file()
                else:
                    self._serve_git()

            do_POST = do_GET  # noqa: N815 - the name that http.server looks for

            def _serve_file(self) -> None:
                path = server.root / self.path.partition("?")[0].lstrip("/")
                if path.is_file():
                    self._reply(200, {"Content-Type": "application/octet-stream"}, path.read_bytes())
                else:
                    self._reply(404, {}, b"")

            def _serve_git(self) -> None:
                path, _, query = self.path.partition("?")
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                environment = {
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(server.root),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory",
                    "GIT_CONFIG_VALUE_0": "*",
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                }
                reply = subprocess.run(
                    ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
                ).stdout
                head, _, content = reply.partition(b"\r\n\r\n")
                headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
                status = int(headers.pop("Status", "200").split()[0])
                self._reply(status, headers, content)

            def _reply(self, status: int, headers: Mapping[str, str], content: bytes) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            @override
            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def git_server(tmp_path: Path) -> Iterator[GitServer]:
    server = GitServer(tmp_path / "repositories")
    http = ThreadingHTTPServer(("127.0.0.1", 0), server.build_handler())
    server.port = http.server_address[1]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    http.shutdown()
    thread.join()
    http.server_close()
