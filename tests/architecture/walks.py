"""The calls between an entry point and its first effect. Run as a program, it writes them into the architecture page.

Each walk runs in a process of its own. At the effect (bytes to a model, a call of the store) it prints the functions of
Metier that are on the stack then, across the tasks that led there, and exits.
"""

import argparse
import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from asyncio import selector_events
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn, cast

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs/contributing/architecture.md"
SOURCE = str(ROOT / "src/metier") + os.sep
OUT = 9
"""The descriptor that a walk is written to."""
MAX_TO_SOCKET = 35
"""Functions of `agent run` from `main` to the socket."""
WALKS = {
    "agent run": "the first bytes to the model",
    "agent approvals approve": "the decision in the store",
    "GET /runs": "the query behind a page of the console",
    "MCP tools/call run": "the run in the store",
}
BLOCK = re.compile(r"(?<=<!-- walks -->\n).*?(?=<!-- end of walks -->)", re.DOTALL)
_SKIPPED = ("__aenter__",)
_creators: dict[int, list[str]] = {}
"""The walk to where a task was created, by the task's coroutine."""


def collect(command: str) -> list[str]:
    """Run a walk in a process of its own and return its functions, outermost first."""
    with tempfile.TemporaryDirectory() as folder:
        home, work = Path(folder, "home"), Path(folder, "work")
        home.mkdir()
        work.mkdir()
        done = subprocess.run(
            [sys.executable, __file__, "--walk", command], cwd=work, check=True, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"], "HOME": str(home)}, timeout=300,
        )  # fmt: skip
    return cast("list[str]", json.loads(done.stdout.splitlines()[-1]))


def render(walks: dict[str, list[str]]) -> str:
    """Return the part of the page that lists the walks, a line per module."""
    parts: list[str] = []
    for command, walk in walks.items():
        lines: list[str] = []
        for module, name in (step.split(":") for step in walk):
            if lines and lines[-1].startswith(f"{module}: "):
                lines[-1] += f" → {name}"
            else:
                lines.append(f"{module}: {name}")
        parts.append(
            f"`{command}`, to {WALKS[command]}: {len(walk)} functions\n\n<!-- output -->\n```text\n"
            + "\n".join(lines)
            + "\n```"
        )
    return "\n" + "\n\n".join(parts) + "\n\n"


def _walk_here(frame: FrameType | None) -> list[str]:
    """Return the functions of Metier on the stack, outermost first; a task continues where it was created."""
    found: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(SOURCE) and frame.f_code.co_name not in _SKIPPED:
            found.append(_name(frame.f_code))
        if (creator := _creators.get(id(frame.f_code))) is not None and _is_root(frame):
            return [*creator, *reversed(found)]
        frame = frame.f_back
    return list(reversed(found))


def _is_root(frame: FrameType) -> bool:
    caller = frame.f_back
    return caller is None or not caller.f_code.co_flags & 0x80  # the caller is no coroutine but the event loop


def _name(code: CodeType) -> str:
    module = code.co_filename.removeprefix(SOURCE).removesuffix(".py").replace(os.sep, ".")
    return f"{module}:{code.co_qualname.replace('.<locals>', '')}"


def _record_tasks() -> None:
    """Remember for each task where it was created."""
    create = asyncio.BaseEventLoop.create_task

    def create_task(self: asyncio.BaseEventLoop, coroutine: Any, **rest: Any) -> Any:
        if (code := getattr(coroutine, "cr_code", None)) is not None:
            _creators[id(code)] = _walk_here(inspect.currentframe())
        return create(self, coroutine, **rest)

    asyncio.BaseEventLoop.create_task = cast("Any", create_task)


def _stop_at(owner: Any, name: str, *, if_: Callable[..., bool] = lambda *_rest: True) -> None:
    """Print the walk at the first call of this function, and end the process."""
    original = getattr(owner, name)

    def stop(*args: Any, **rest: Any) -> Any:
        return _finish() if if_(*args) else original(*args, **rest)

    setattr(owner, name, stop)


def _finish() -> NoReturn:
    walk = _walk_here(inspect.currentframe())
    os.write(OUT, json.dumps(list(dict.fromkeys(walk))).encode() + b"\n")
    os._exit(0)


def _walk(command: str) -> None:
    """Set up a workspace in the current folder, then walk."""
    # The commands print to stderr: stdout is for the walk.
    os.dup2(1, OUT)
    os.dup2(2, 1)
    for name in ("", "cli", "server"):
        sys.path.insert(0, str(ROOT / "tests" / name))
    from model_server import calls, running_model, says
    from run_workspace import QUICK, Workspace, use_model

    with running_model() as model:
        model.follow(calls("Write", path="note.txt", content="hi"), says("Done."))
        workspace = Workspace(Path.cwd())
        workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
        _record_tasks()
        STARTS[command]()


def _is_request(_transport: object, data: bytes) -> bool:
    return bytes(data[:4]) == b"POST"


def _walk_run() -> None:
    transport: Any = vars(selector_events)["_SelectorSocketTransport"]
    _stop_at(transport, "write", if_=_is_request)
    _run_command("run", "Write a note")


def _walk_approve() -> None:
    from metier.cli.main import run
    from metier.store.sql_store import SqlStore

    run(["run", "Write a note"])
    approval = next(Path("runs").glob("2*/events.jsonl")).read_text("utf-8").partition('"approval_id":"')[2]
    _stop_at(SqlStore, "decide_approval")
    _run_command("approvals", "approve", approval.partition('"')[0])


def _walk_page() -> None:
    from running_server import serving

    from metier.store.sql_store import SqlStore

    with serving(Path.cwd()) as server, server.sign_in() as browser:
        _stop_at(SqlStore, "search_runs")
        browser.get("/runs")


def _walk_call() -> None:
    from metier.store.sql_store import SqlStore

    _stop_at(SqlStore, "begin_run")
    read, write = os.pipe()
    os.dup2(read, 0)
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "walks", "version": "1"}}
    messages = (
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "run", "arguments": {"task": "Write a note"}}},
    )
    for message in messages:
        os.write(write, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    _run_command("mcp", "serve")


def _run_command(*args: str) -> None:
    from metier.cli import main

    sys.argv = ["agent", *args]
    main.main()


STARTS = dict(zip(WALKS, (_walk_run, _walk_approve, _walk_page, _walk_call), strict=True))


def main() -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walk", choices=WALKS)
    given = parser.parse_args()
    if given.walk:
        _walk(given.walk)
        raise SystemExit("the walk did not reach its effect")
    page = PAGE.read_text("utf-8")
    PAGE.write_text(BLOCK.sub(lambda _old: render({name: collect(name) for name in WALKS}), page), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
