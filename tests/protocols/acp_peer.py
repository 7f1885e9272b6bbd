"""An editor made of messages, against an `agent acp` process; messages are checked against the SDK's schema."""

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, cast

from acp import schema
from pydantic import BaseModel

from agent_command import AGENT

SECONDS = 100.0
type Message = dict[str, Any]

RESULTS: dict[str, type[BaseModel]] = {
    "initialize": schema.InitializeResponse,
    "session/new": schema.NewSessionResponse,
    "session/load": schema.LoadSessionResponse,
    "session/resume": schema.ResumeSessionResponse,
    "session/list": schema.ListSessionsResponse,
    "session/prompt": schema.PromptResponse,
    "session/set_config_option": schema.SetSessionConfigOptionResponse,
}


class Editor:
    """An editor that answers requests with `answer` and records every update."""

    def __init__(self, folder: Path, *, answer: Callable[[Message], Message | None] | None = None) -> None:
        self.process = subprocess.Popen(
            [AGENT, "acp"], cwd=folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.folder = folder
        self.updates: list[Message] = []
        self.asked: list[Message] = []
        self._answer = answer
        self._number = 0
        self._answers: queue.Queue[Message] = queue.Queue()
        self._news = threading.Condition()
        self._reads = threading.Event()
        self._reads.set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def send(self, method: str, **params: Any) -> int:
        self._number += 1
        self.write({"id": self._number, "method": method, "params": params})
        return self._number

    def request(self, method: str, **params: Any) -> Message:
        number = self.send(method, **params)
        return self.wait_for(number, method)

    def wait_for(self, number: int, method: str) -> Message:
        """Return the result of a request, or its error under `error`."""
        while True:
            message = self._answers.get(timeout=SECONDS)
            if message.get("id") == number:
                if "result" in message and method in RESULTS:
                    RESULTS[method].model_validate(message["result"])
                return cast("Message", message.get("result", message))

    def begin(self, **capabilities: Any) -> str:
        """Shake hands and open a session in the folder."""
        self.request("initialize", protocolVersion=1, clientCapabilities=capabilities)
        return str(self.request("session/new", cwd=str(self.folder), mcpServers=[])["sessionId"])

    def prompt(self, session: str, text: str) -> Message:
        return self.request("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def write(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(holds, SECONDS)

    @contextmanager
    def reading_stopped(self) -> Generator[None]:
        """Stop reading, so that messages of the agent stay in the pipe."""
        self._reads.clear()
        try:
            yield
        finally:
            self._reads.set()

    def list_updates(self, kind: str) -> list[Message]:
        return [update for update in self.updates if update["sessionUpdate"] == kind]

    def get_said(self) -> str:
        return "".join(update["content"]["text"] for update in self.list_updates("agent_message_chunk"))

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(SECONDS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._reads.wait(SECONDS)
            message = cast("Message", json.loads(line))
            with self._news:
                if message.get("method") == "session/update":
                    schema.SessionNotification.model_validate(message["params"])
                    self.updates.append(message["params"]["update"])
                elif "method" in message:
                    self._take_request(message)
                else:
                    self._answers.put(message)
                self._news.notify_all()

    def _take_request(self, message: Message) -> None:
        if message["method"] == "session/request_permission":
            schema.RequestPermissionRequest.model_validate(message["params"])
        self.asked.append(message)
        answer = self._answer(message) if self._answer is not None else None
        if answer is not None:
            self.write({"id": message["id"], "result": answer})


def choose(option: str) -> Callable[[Message], Message]:
    """Answer every permission dialog with this option."""

    def answer(message: Message) -> Message:
        del message
        return {"outcome": {"outcome": "selected", "optionId": option}}

    return answer
