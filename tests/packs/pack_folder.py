"""A folder with a pack, and the command in it."""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from model_server import ModelServer

from agent_command import run_agent

DEMOS = Path(__file__).parents[2] / "demos"
GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.com", "-c", "commit.gpgsign=false")


@dataclass(frozen=True, slots=True)
class PackFolder:
    path: Path

    def copy(self, pack: str) -> None:
        shutil.copytree(DEMOS / pack, self.path, dirs_exist_ok=True)

    def agent(self, *args: str) -> subprocess.CompletedProcess[str]:
        return run_agent(*args, cwd=self.path)

    def run_task(self, task: str, *args: str) -> dict[str, Any]:
        done = self.agent("task", "run", task, "--json", "--quiet", *args)
        assert done.stdout, done.stderr
        return cast("dict[str, Any]", json.loads(done.stdout))

    def use(self, model: ModelServer) -> None:
        settings = {"provider": "openai", "name": "m", "providers": {"openai": {"base_url": model.url}}}
        (self.path / "agent.yaml").write_text(json.dumps({"model": settings}), encoding="utf-8")

    def git(self, *args: str) -> str:
        done = subprocess.run([*GIT, *args], cwd=self.path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        """Commit and return the short hash."""
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "--short", "HEAD")

    def read(self, name: str) -> str:
        return (self.path / name).read_text(encoding="utf-8")

    def write(self, name: str, text: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(text, encoding="utf-8")


def states(outcome: dict[str, Any]) -> list[tuple[str, str]]:
    return [(step["file"], step["state"]) for step in outcome["task_steps"]]
