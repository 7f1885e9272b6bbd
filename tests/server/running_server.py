"""A server with a real socket in a thread of the test process, which starts fast, or as a process."""

import json
import os
import secrets
import socket
import ssl
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx2
from documented_responses import check_response

from agent_command import AGENT
from metier.server.processes import build_uvicorn_config, uvicorn
from metier.server.server_config import ServerConfig
from metier.server.state import ServerState
from metier.server.users import LoginCodes, User

WAIT_SECONDS = 100.0
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Of clients that speak plain HTTP: making a real one for each costs more than most requests."""


@dataclass(slots=True, kw_only=True)
class RunningServer:
    url: str
    token: str = field(repr=False)
    config: ServerConfig | None = None
    state: ServerState | None = None
    succeeded: set[str] = field(default_factory=set[str])
    """The IDs of operations with a successful response."""

    def client(self, token: str | None = None) -> httpx2.Client:
        """Create a client that sends the token; an empty token is not sent."""
        sent = self.token if token is None else token
        headers = {"authorization": f"Bearer {sent}"} if sent else {}
        return self._connect(headers=headers)

    def get(self, path: str, **params: str | int) -> dict[str, Any]:
        with self.client() as client:
            answer = client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        return cast("dict[str, Any]", answer.json())

    def post(self, path: str, body: Mapping[str, object] | None = None, *, status: int = 200) -> dict[str, Any]:
        with self.client() as client:
            answer = client.post(path, json={} if body is None else body)
        assert answer.status_code == status, answer.text
        return cast("dict[str, Any]", answer.json())

    def sign_in(self) -> httpx2.Client:
        """Create a client with a browser's cookie, using a one-time code."""
        assert self.config is not None
        code = LoginCodes(self.config.private).issue(User(name=self.config.owner, role="operator"))
        with httpx2.Client(base_url=self.url, timeout=WAIT_SECONDS, trust_env=False, verify=TLS) as browser:
            answer = browser.get("/login", params={"code": code})
            assert answer.status_code == 303, answer.text
            cookies = browser.cookies
        return self._connect(cookies=cookies)

    def _connect(self, **options: Any) -> httpx2.Client:
        """A client whose responses are checked against the OpenAPI document."""
        hooks = {"response": [partial(check_response, succeeded=self.succeeded)]}
        return httpx2.Client(
            base_url=self.url, timeout=WAIT_SECONDS, trust_env=False, verify=TLS, event_hooks=hooks, **options
        )


@contextmanager
def serving(folder: Path, **environ: str) -> Generator[RunningServer]:
    """Serve in a thread with the environment's home folder."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    port = int(listening.getsockname()[1])
    home = Path(os.environ["HOME"])
    private = home / ".agent/servers" / f"127.0.0.1-{port}"
    private.mkdir(parents=True, mode=0o700, exist_ok=True)
    config = ServerConfig(
        folder=folder, home=home, environ={**os.environ, **environ}, token=secrets.token_urlsafe(32),
        key=secrets.token_bytes(32), private=private, port=port, owner="tester",
    )  # fmt: skip
    uvicorn_config = build_uvicorn_config(config)
    server = uvicorn.Server(uvicorn_config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    state = cast("ServerState", cast("Any", uvicorn_config.app).state.server)
    running = RunningServer(url=f"http://127.0.0.1:{port}", token=config.token, config=config, state=state)
    try:
        with running.client() as client:
            assert client.get("/api/v1/health").status_code == 200
        yield running
    finally:
        server.should_exit = True
        thread.join(WAIT_SECONDS)
        listening.close()
        assert not thread.is_alive(), "the server did not stop"


@dataclass(slots=True)
class ServerProcess:
    process: subprocess.Popen[str]
    running: RunningServer
    token_file: Path


@contextmanager
def serving_process(folder: Path, *args: str, **environ: str) -> Generator[ServerProcess]:
    """Start `agent serve --port 0 --json`."""
    process = subprocess.Popen(
        [AGENT, "serve", "--port", "0", "--json", *args], cwd=folder, env={**os.environ, **environ}, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=WAIT_SECONDS)[1]
        said = cast("dict[str, Any]", json.loads(line))
        token_file = Path(str(said["token_file"]))
        running = RunningServer(url=str(said["url"]), token=token_file.read_text().strip())
        yield ServerProcess(process, running, token_file)
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=WAIT_SECONDS)
