"""Servers for the formats of Anthropic, Gemini and OpenAI, which answer `Done.` by default."""

import json
import threading
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

VENDORS = ("anthropic", "gemini", "openai")
KEYS = {"anthropic": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY", "openai": "OPENAI_API_KEY"}


@dataclass(slots=True)
class VendorServer:
    vendor: str
    url: str = ""
    models: list[str] = field(default_factory=list[str])
    """The model that each request named."""
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    script: list[object] = field(default_factory=list[object])
    """Whole answers in the vendor's format, given before "Done."."""
    counts: int = 0
    """Requests to count tokens. The server has no such page, like most gateways."""

    def take(self, path: str, body: dict[str, Any]) -> object:
        model = path.rpartition("/models/")[2].partition(":")[0] if self.vendor == "gemini" else body["model"]
        self.models.append(str(model).replace("%2F", "/"))
        self.bodies.append(body)
        return self.script.pop(0) if self.script else _ANSWERS[self.vendor]


@dataclass(slots=True)
class VendorServers:
    by_vendor: dict[str, VendorServer]

    def __getitem__(self, vendor: str) -> VendorServer:
        return self.by_vendor[vendor]

    @property
    def asked(self) -> list[tuple[str, str]]:
        """Return every request so far as vendor and model."""
        return [(vendor, model) for vendor, server in self.by_vendor.items() for model in server.models]

    def settings(self) -> dict[str, object]:
        """Return the `model.providers` section for these servers."""
        return {
            vendor: {"base_url": server.url + ("/v1" if vendor == "openai" else "")}
            for vendor, server in self.by_vendor.items()
        }


@contextmanager
def running_vendors() -> Generator[VendorServers]:
    with ExitStack() as stack:
        yield VendorServers({vendor: stack.enter_context(_running(VendorServer(vendor))) for vendor in VENDORS})


@contextmanager
def _running(vendor: VendorServer) -> Generator[VendorServer]:
    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = cast("dict[str, Any]", json.loads(self.rfile.read(int(self.headers["content-length"]))))
            is_count = "count" in self.path
            vendor.counts += is_count
            answer = {"error": {"message": "no such page"}} if is_count else vendor.take(self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(404 if is_count else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    vendor.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield vendor
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_ANSWERS: dict[str, object] = {
    "anthropic": {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Done."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
    "gemini": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": "Done."}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    },
    "openai": {
        "id": "r1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Done."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    },
}
