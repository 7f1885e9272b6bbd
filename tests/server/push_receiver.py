"""A local receiver of push notifications that can be stopped and restarted."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAIT_SECONDS = 100.0


@dataclass(slots=True)
class PushReceiver:
    port: int
    taken: list[tuple[dict[str, str], dict[str, Any]]] = field(
        default_factory=list[tuple[dict[str, str], dict[str, Any]]]
    )
    """Headers, with names in lower case, and what was posted."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def states(self) -> list[str]:
        return [str(body["task"]["status"]["state"]).removeprefix("TASK_STATE_") for _, body in self.taken]

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.taken) >= count, WAIT_SECONDS), self.states

    @contextmanager
    def listening(self) -> Generator[None]:
        receiver = self

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                with receiver.changed:
                    receiver.taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
                    receiver.changed.notify_all()
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
                """Print nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", self.port), Taking)
        self.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
