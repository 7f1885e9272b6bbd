"""A workspace to run tasks in: settings, skills with scripts, and the command line, in process or as a process."""

import json
import os
import select
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from model_server import ModelServer

from agent_command import AGENT
from metier.cli.main import run

QUICK = {"retry_base_delay_seconds": 0, "retry_max_delay_seconds": 0}

SKILL = """---
name: {name}
description: {description}
---

# {name}

{body}
"""


@dataclass(frozen=True, slots=True)
class Workspace:
    folder: Path

    def configure(self, **sections: Mapping[str, object]) -> None:
        (self.folder / "agent.yaml").write_text(json.dumps(sections), encoding="utf-8")

    def add_skill(self, name: str, description: str, *, body: str = "Do it.", **scripts: str) -> Path:
        folder = self.folder / "skills" / name
        (folder / "scripts").mkdir(parents=True)
        (folder / "SKILL.md").write_text(SKILL.format(name=name, description=description, body=body), encoding="utf-8")
        for script, code in scripts.items():
            (folder / "scripts" / f"{script}.py").write_text(code, encoding="utf-8")
        return folder

    def write(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file

    def run_ids(self) -> list[str]:
        """Return the IDs in start order, which IDs of the same second do not show."""
        return sorted((path.name for path in (self.folder / "runs").glob("2*")), key=self._find_begin)

    def _find_begin(self, run_id: str) -> tuple[str, str, str]:
        try:
            with (self.folder / "runs" / run_id / "events.jsonl").open(encoding="utf-8") as log:
                began = str(json.loads(log.readline())["timestamp"])
        except (OSError, ValueError, KeyError, TypeError):
            began = ""
        return run_id[:15], began, run_id

    def events(self, run_id: str = "") -> list[dict[str, Any]]:
        path = self.folder / "runs" / (run_id or self.run_ids()[-1]) / "events.jsonl"
        return [cast("dict[str, Any]", json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]

    def event_types(self, run_id: str = "") -> list[str]:
        return [event["event_type"] for event in self.events(run_id)]

    def agent(self, *args: str) -> int:
        return run(list(args))

    def start(self, *args: str, **environment: str) -> subprocess.Popen[str]:
        """Start the real program."""
        return subprocess.Popen(
            [AGENT, *args], cwd=self.folder, env={**os.environ, **environment}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip


GREET = 'import json\nprint(json.dumps({"summary": "hello from the script"}))\n'

WAIT = """import json, os, sys
fifo = [word for word in sys.argv[1:] if not word.startswith("--")][0]
open(fifo + ".effects", "a").write("x")
with open(fifo) as stream:
    words = stream.read()
print(json.dumps({"summary": words}))
"""
"""Says that it began, then waits until somebody writes into the pipe; says so by opening it."""


def close_after_reader(pipe: int) -> None:
    """Close our end of a pipe after the reader is gone: an end of file must not wake it earlier."""
    poller = select.poll()
    poller.register(pipe, 0)
    assert poller.poll(60_000), "the program that reads the pipe is still there"
    os.close(pipe)


BREAK = 'import sys\nsys.stderr.write("no luck\\n")\nsys.exit(3)\n'


def run_approved(workspace: Workspace) -> int:
    """Run a task with one command that needs approval, and approve it."""
    assert workspace.agent("run", "Do it", "-q", "--output-format", "json") == 3
    (approval,) = [event for event in workspace.events() if event["event_type"] == "approval_requested"]
    assert workspace.agent("approvals", "approve", approval["payload"]["approval_id"]) == 0
    return workspace.agent("resume", "latest", "-q")


def use_model(model: ModelServer) -> dict[str, object]:
    return {"provider": "openai", "name": "m", "providers": {"openai": {"base_url": model.url}}}
