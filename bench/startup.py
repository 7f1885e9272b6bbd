"""Cold start of commands against a bare Typer program, and the CPU of a process with one turn of each provider.

Interleaved, the best of many: what else runs on the machine only ever adds.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.model_server import running_model
from bench.table import Row

HELLO = "import typer\n\napp = typer.Typer()\n\n\n@app.command()\ndef hello() -> None:\n    print('hello')\n\n\napp()\n"
ROUNDS = 25
MAX_TIMES = {
    "--version": 1.15,
    "--help": 1.6,
    "run --help": 2.0,
    "runs list": 2.0,
    "approvals list": 2.0,
    "task list": 2.0,
    "run --provider offline hello": 4.0,
}
"""Limit for each command, in starts of a bare Typer program."""
MAX_CPU_SECONDS = 0.8
PROVIDERS = {
    "anthropic": {"AGENT_MODEL_PROVIDERS_ANTHROPIC_BASE_URL": "{url}/0", "ANTHROPIC_API_KEY": "k"},
    "gemini": {"AGENT_MODEL_PROVIDERS_GEMINI_BASE_URL": "{url}/0", "GEMINI_API_KEY": "k"},
    "openai chat": {
        "AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL": "{url}/0",
        "AGENT_MODEL_PROVIDERS_OPENAI_API": "chat",
    },
    "openai responses": {
        "AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL": "{url}/0",
        "AGENT_MODEL_PROVIDERS_OPENAI_API": "responses",
    },
}
"""The environment with which each way to ask a model reaches the local one."""


class Spent(NamedTuple):
    wall: float
    cpu: float


def rows() -> list[Row]:
    agent = str(Path(sys.executable).parent / "agent")
    with tempfile.TemporaryDirectory() as folder, running_model() as url:
        hello = Path(folder) / "hello.py"
        hello.write_text(HELLO, encoding="utf-8")
        (Path(folder) / "work").mkdir()
        calls: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
            "pass": ([sys.executable, "-c", "pass"], {}),
            "hello": ([sys.executable, str(hello)], {}),
        }
        calls |= {name: ([agent, *name.split()], {}) for name in MAX_TIMES}
        for name, variables in PROVIDERS.items():
            command = [agent, "run", "--quiet", "--provider", name.split()[0], "--model", "m", "hello"]
            calls[name] = (command, {key: value.format(url=url) for key, value in variables.items()})
        best: dict[str, Spent] = {}
        for _ in range(ROUNDS):
            for name, (command, variables) in calls.items():
                spent = _call(command, variables, folder=Path(folder))
                known = best.get(name, spent)
                best[name] = Spent(min(known.wall, spent.wall), min(known.cpu, spent.cpu))
    bare = best["hello"].wall
    return [
        *(_row(f"agent {name} / bare typer hello", best[name].wall / bare, most) for name, most in MAX_TIMES.items()),
        Row("bare typer hello / python -c pass", f"{bare / best['pass'].wall:.2f} x", "(for scale)", holds=True),
        *(_cpu_row(name, best[name].cpu) for name in PROVIDERS),
    ]


def _call(command: Sequence[str], variables: Mapping[str, str], *, folder: Path) -> Spent:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), **variables}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        command, cwd=folder / "work", env=environ, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(time.perf_counter() - started, cpu)


def _row(name: str, ratio: float, most: float) -> Row:
    return Row(name, f"{ratio:.2f} x", f"<= {most} x", ratio <= most)


def _cpu_row(name: str, seconds: float) -> Row:
    most = MAX_CPU_SECONDS
    return Row(f"CPU of agent run, one turn, {name}", f"{seconds:.2f} s", f"<= {most} s", seconds <= most)
