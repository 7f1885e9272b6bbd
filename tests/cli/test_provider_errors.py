"""Messages about provider failures: the address, the wait, the reply."""

import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from model_server import ModelServer, says
from run_workspace import QUICK, Workspace

MODEL = {"provider": "openai", "name": "m"}


@contextmanager
def answering(status: int, body: bytes, **headers: str) -> Generator[str]:
    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def use(workspace: Workspace, url: str, **more: object) -> None:
    workspace.configure(model={**MODEL, "providers": {"openai": {"base_url": url}}, **more}, runtime=QUICK)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, workspace: Workspace) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k" * 12)


def test_refused_connection_names_the_address(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        use(workspace, f"http://127.0.0.1:{port}/v1")

        assert workspace.agent("run", "x") == 8

    shown = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in shown
    assert "model.providers.openai.base_url" in shown


def test_retry_delay_beyond_the_limit_is_reported(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(429, b'{"error": {"message": "slow down"}}', retry_after="7200") as url:
        use(workspace, url)

        assert workspace.agent("run", "x") == 8

    shown = capsys.readouterr().err
    assert "asked to wait 7200 seconds" in shown
    assert "agent resume" in shown


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("text/html", b"<html><body>Welcome to the router</body></html>", "Welcome to the router"),
        ("text/event-stream", b"data: not json at all\n\n", "not json at all"),
    ],
)
def test_invalid_reply_is_quoted(
    workspace: Workspace, capsys: pytest.CaptureFixture[str], kind: str, body: bytes, words: str
) -> None:
    with answering(200, body, content_type=kind) as url:
        use(workspace, url)

        assert workspace.agent("run", "x") == 8

    assert words in capsys.readouterr().err


def test_error_for_an_oversized_prompt_names_the_setting(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    use(workspace, "http://127.0.0.1:9/v1", max_context_tokens=2100, response_headroom_tokens=2000)

    workspace.agent("run", "x" * 3_000)

    assert "model.max_context_tokens" in capsys.readouterr().err


def test_certificates_are_loaded_only_for_tls_connections(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "absent.pem")
    model.follow(says("Hello."))
    use(workspace, model.url)

    assert workspace.agent("run", "Say hello") == 0
    use(workspace, model.url.replace("http:", "https:"))
    assert workspace.agent("run", "Say hello") != 0
    assert "the trusted certificates absent.pem cannot be read: No such file" in capsys.readouterr().err
