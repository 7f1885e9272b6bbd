"""A durable turn here and elsewhere: the same loop (one reply that calls one tool, 100 times) with every step on disk.

And what a base install of each brings: packages, and bytes without compiled files. Both live in environments of their
own, made when they are missing: `bench/run peers` needs a package index. The model answers at once in both, so that
what is measured is the loop and its record. The README shows these rows; `bench/run --record peers` keeps them.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from bench.engine import measure_turns
from bench.table import Row
from metier.version import __version__

ROOT = Path(__file__).resolve().parent.parent
TURNS = 100
ROUNDS = 3
PACKAGES = ("langgraph==1.2.20", "langgraph-checkpoint-sqlite==3.1.2")
PEER = r'''
import json, sys, time
from importlib.metadata import version
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.prebuilt import create_react_agent

turns, path = int(sys.argv[1]), sys.argv[2]
marks = []

class Talker(BaseChatModel):
    @property
    def _llm_type(self):
        return "bench"
    def bind_tools(self, tools, **kwargs):
        return self
    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        marks.append(time.process_time())
        number = len(marks)
        if number > turns:
            reply = AIMessage(content="done")
        else:
            call = {"id": f"c{number}", "name": "echo", "args": {"text": f"turn {number}"}}
            reply = AIMessage(content="", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=reply)])

@tool
def echo(text: str) -> str:
    """Say it again."""
    return f"echo {text} " + "word " * 40

with SqliteSaver.from_conn_string(path) as saver:
    agent = create_react_agent(Talker(), [echo], checkpointer=saver)
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": 3 * turns}
    agent.invoke({"messages": [("user", "talk for a while")]}, config, durability="sync")
costs = [after - before for before, after in zip(marks, marks[1:])]
print(json.dumps({"costs": costs, "version": version("langgraph")}))
'''


def rows() -> list[Row]:
    python = _make_environment("peers", *PACKAGES)
    ours: list[float] = []
    theirs: list[float] = []
    version = ""
    for _ in range(ROUNDS):
        ours.append(statistics.median(anyio.run(measure_turns, TURNS)))
        costs, version = _measure_peer(python)
        theirs.append(statistics.median(costs))
    here, there = min(ours), 1000 * min(theirs)
    base = _make_environment("base", str(ROOT))
    return [
        Row(f"Metier {__version__}: CPU of a durable turn, SQLite", f"{here:.1f} ms", "reported", holds=True),
        Row(f"LangGraph {version}: the same, SqliteSaver, durability sync", f"{there:.1f} ms", "reported", holds=True),
        Row(f"Metier {__version__}: base install", _measure_install(base), "reported", holds=True),
        Row(f"LangGraph {version}: base install with SqliteSaver", _measure_install(python), "reported", holds=True),
        Row("A durable turn: LangGraph / Metier", f"{there / here:.1f} x", ">= 1.5 x", there / here >= 1.5),
    ]


def _measure_peer(python: Path) -> tuple[list[float], str]:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(python), "-W", "ignore", "-c", PEER, str(TURNS), str(Path(folder) / "state.db")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return told["costs"], told["version"]


def _measure_install(python: Path) -> str:
    """Packages, and the size of their files without the compiled ones."""
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    files = [path for path in packages.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    size = sum(path.stat().st_size for path in files)
    return f"{len(list(packages.glob('*.dist-info')))} packages, {size / 1e6:.0f} MB"


def _make_environment(name: str, *packages: str) -> Path:
    """In the folder of this environment, so that it is made once."""
    folder = Path(sys.prefix) / name
    python = folder / "bin" / "python"
    if not (folder / ".done").exists():
        uv = [str(Path(sys.executable).with_name("uv")), "--no-config", "--quiet"]
        env = {**os.environ, "UV_SYSTEM_CERTS": "1", "VIRTUAL_ENV": str(folder)}
        subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, str(folder)], env=env, check=True)
        subprocess.run([*uv, "pip", "install", *packages], env=env, check=True)
        (folder / ".done").write_text(time.strftime("%Y-%m-%d"))
    return python
