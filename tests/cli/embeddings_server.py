"""A server with the embeddings format of OpenAI behind a real socket, which can also behave badly."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, cast

CONCEPTS = (
    ("invoice", "bill", "receipt", "charge"),
    ("car", "vehicle", "automobile", "engine"),
    ("song", "melody", "choir", "music"),
)
"""Words that mean the same: one number of a vector each."""

type Behaviour = Literal["well", "silent", "error", "nonsense", "few", "ragged", "zero", "text", "longer"]


@dataclass
class EmbeddingsServer:
    url: str = ""
    behaviour: Behaviour = "well"
    received: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: list[str] = field(default_factory=list[str])
    silent_from: int = 0
    """The number of the request from which on none is answered."""
    released: threading.Event = field(default_factory=threading.Event)
    """Ends the silence."""

    @property
    def texts(self) -> list[str]:
        """Return every embedded text in order."""
        return [text for body in self.received for text in body["input"]]

    def answer(self, body: dict[str, Any]) -> tuple[bytes, int]:
        self.received.append(body)
        if self.behaviour == "silent" or 0 < self.silent_from <= len(self.received):
            self.released.wait(60)
        if self.behaviour == "error":
            return b'{"error": {"message": "out of order"}}', 500
        if self.behaviour == "nonsense":
            return b"<html>It works!</html>", 200
        vectors: list[Any] = [embed(text) for text in body["input"]]
        match self.behaviour:
            case "few":
                vectors = vectors[1:]
            case "ragged":
                vectors = [vector[: 2 + len(self.received) % 2] for vector in vectors]
            case "zero":
                vectors = [[0.0] * len(vector) for vector in vectors]
            case "text":
                vectors = [[str(number) for number in vector] for vector in vectors]
            case "longer":
                vectors = [[*vector, 0.5] for vector in vectors]
            case _:
                pass
        data = [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)]
        return json.dumps({"object": "list", "model": body["model"], "data": data[::-1]}).encode(), 200


def embed(text: str) -> list[float]:
    words = {word.strip(".,:;").removesuffix("s") for word in text.lower().split()}
    return [0.1 + sum(word in concept for word in words) for concept in CONCEPTS]


@contextmanager
def running_embeddings() -> Generator[EmbeddingsServer]:
    server = EmbeddingsServer()

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = cast("dict[str, Any]", json.loads(self.rfile.read(int(self.headers["content-length"]))))
            server.keys.append(self.headers.get("authorization", ""))
            data, status = server.answer(body) if self.path == "/v1/embeddings" else (b"{}", 404)
            try:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            return None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_address[1]}/v1"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        http.shutdown()
        http.server_close()
        thread.join(10)
