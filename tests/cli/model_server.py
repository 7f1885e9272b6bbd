"""A model behind a real socket that speaks the OpenAI chat format and follows a script."""

import json
import socket
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Reply:
    text: str = ""
    calls: tuple[tuple[str, dict[str, object]], ...] = ()
    status: int = 200
    finish: str = ""
    error: str = "scripted failure"


def says(text: str) -> Reply:
    return Reply(text=text)


def calls(name: str, **arguments: object) -> Reply:
    return Reply(calls=((name, arguments),))


def fails(status: int, error: str = "scripted failure") -> Reply:
    return Reply(status=status, error=error)


@dataclass
class ModelServer:
    """A server that gives each request the next scripted reply and repeats the last one."""

    url: str = ""
    script: list[Reply] = field(default_factory=list[Reply])
    received: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    silent: threading.Event = field(default_factory=threading.Event)
    """While it is set a request is taken and not answered."""
    hold_after: int = -1
    """After so many replies a request is taken and not answered."""
    held: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    halting: threading.Event = field(default_factory=threading.Event)
    """While it is set a streamed reply stops after its first piece, until `released` is set."""
    lacking: tuple[str, ...] = ()
    """Parameters that the server does not support: it answers 400 to a request that has one."""
    models: tuple[str, ...] = ("m",)
    """The models that it lists; a server without any has no such page."""
    refused: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """Those of each request, names in lower case."""
    cached: int = 0
    """So many of the tokens of each request were cached, it says."""

    def follow(self, *script: Reply) -> None:
        self.script = list(script)

    def list_models(self, path: str) -> tuple[bytes, int]:
        if path != "/v1/models" or not self.models:
            return b'{"error": {"message": "no such page"}}', 404
        listed = [{"id": name, "object": "model"} for name in self.models]
        return json.dumps({"object": "list", "data": listed}).encode(), 200

    def next(self, body: dict[str, Any]) -> Reply:
        self.received.append(body)
        self.asked.set()
        if len(self.received) - 1 == self.hold_after:
            self.held.set()
            self.released.wait(600)
        if self.silent.is_set():
            self.released.wait(600)
        return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@contextmanager
def running_model(given: ModelServer | None = None) -> Generator[ModelServer]:
    model = given or ModelServer()

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = cast("dict[str, Any]", json.loads(self.rfile.read(int(self.headers["content-length"]))))
            model.headers.append({name.lower(): value for name, value in self.headers.items()})
            if missing := [name for name in model.lacking if name in body]:
                model.refused.append(body)
                self._send(json.dumps({"error": {"message": f"{missing[0]} is not supported"}}).encode(), status=400)
                return
            reply = model.next(body)
            number = len(model.received)
            if reply.status != 200:
                self._send(json.dumps({"error": {"message": reply.error}}).encode(), status=reply.status)
            elif body.get("stream"):
                pieces = list(_stream(reply, number, model.cached))
                first = len(pieces[0]) if model.halting.is_set() else None
                self._send(b"".join(pieces), kind="text/event-stream", halt_after=first)
            else:
                self._send(json.dumps(_whole(reply, number, model.cached)).encode())

        def do_GET(self) -> None:
            data, status = model.list_models(self.path)
            self._send(data, status=status)

        def _send(
            self, data: bytes, *, status: int = 200, kind: str = "application/json", halt_after: int | None = None
        ) -> None:
            try:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[:halt_after])
                if halt_after is not None:
                    self.wfile.flush()
                    model.released.wait(600)
                    self.wfile.write(data[halt_after:])
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            return None

    with _serving(model, Door):
        yield model


@contextmanager
def _serving(model: ModelServer, door: type[BaseHTTPRequestHandler]) -> Generator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), door)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    ended = threading.Event()

    def serve() -> None:
        """Serve with a short poll interval: the default of `serve_forever` delays the end of each test."""
        while not ended.is_set():
            server.handle_request()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        model.released.set()
        ended.set()
        socket.create_connection(("127.0.0.1", server.server_port)).close()
        thread.join()
        server.server_close()


def _tool_calls(reply: Reply, number: int) -> list[dict[str, object]]:
    return [
        {
            "index": index,
            "id": f"call_{number}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(reply.calls)
    ]


_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def _usage(cached: int) -> dict[str, object]:
    return {**_USAGE, "prompt_tokens_details": {"cached_tokens": cached}} if cached else dict(_USAGE)


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _whole(reply: Reply, number: int, cached: int) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = _tool_calls(reply, number)
    choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
    return {"id": f"r{number}", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
            "usage": _usage(cached)}  # fmt: skip


def _stream(reply: Reply, number: int, cached: int) -> Iterator[bytes]:
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": reply.text}]
    if reply.calls:
        deltas.append({"tool_calls": _tool_calls(reply, number)})
    base = {"id": f"r{number}", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for delta in deltas:
        yield _event({**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    last: dict[str, object] = {"index": 0, "delta": dict[str, str](), "finish_reason": _finish(reply)}
    yield _event({**base, "choices": [last]})
    yield _event({**base, "choices": [], "usage": _usage(cached)})
    yield b"data: [DONE]\n\n"


def _event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()
