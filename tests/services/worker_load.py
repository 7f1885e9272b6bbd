"""Workers and their load: runs with many steps whose effects leave traces on disk.

`python worker_load.py` loads everything once, then forks a worker with its own session for each JSON
line on standard input, and answers with its process ID: a killed worker is replaced at once.
"""

import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import anyio
from pydantic import JsonValue

from metier.engine.options import RuntimeOptions
from metier.engine.state.run_state import RunState
from metier.messages import ModelReply, TextPart, ToolCallPart, Usage
from metier.providers.base import ModelRequest, Observer
from metier.runtime.host import Host
from metier.runtime.queue.broker import OWN_VARIABLE, Address, find_address
from metier.runtime.queue.pool import Job
from metier.settings.sections import Settings, WorkerOptions
from metier.skills.workspace_trust import MADE_HERE
from metier.store.backend import StoreOptions
from metier.tools.base import ToolContext, ToolInfo, ToolResult
from metier.tools.process.run import Command, ProcessLimits, ProcessTree
from metier.values import Value
from metier.worker.celery_worker import run_celery_worker
from metier.worker.command import run_store_worker

USED_BY_WORKERS = (
    "billiard.heap", "billiard.pool", "billiard.popen_fork", "celery.app.routes", "celery.backends.base",
    "celery.concurrency.asynpool", "celery.concurrency.prefork", "celery.events.dispatcher", "celery.events.receiver",
    "celery.loaders.app", "celery.worker.consumer", "celery.worker.control", "celery.worker.heartbeat",
    "celery.worker.loops", "celery.worker.pidbox", "kombu.transport.pyamqp", "kombu.transport.redis",
    "metier.store.postgres.store", "multiprocessing.popen_fork",
)  # fmt: skip
"""Modules that Celery and the store import when a worker starts."""


class Load(Value):
    """The load of a run, and its worker settings."""

    folder: str
    effects_folder: str = ""
    """Folder of the effect counters for workers with separate folders; otherwise below `folder`. `Send` is a process
    then, whose start and end are noted in the spool of the worker's own folder."""
    steps: int = 10
    reply_seconds: float = 0.05
    """Seconds that the model takes for each."""
    poisoned: bool = False
    """The first step, one that may be repeated, ends the process that does it, every time."""
    hang: Literal["", "model", "shielded", "blocking", "deaf"] = ""
    """The model does not answer, and nothing else goes on meanwhile. Or the first step starts processes (their ids are
    in the file `pids` of the effects) and cannot be cancelled; nothing else goes on; it does not mind exceptions."""
    delegates: bool = False
    """The run hands its steps to another agent, whose run it waits for."""
    database_url: str = ""
    """Of PostgreSQL; without it runs live in SQLite."""
    broker_url: str = ""
    """Without it workers claim runs from the store."""
    worker: WorkerOptions = WorkerOptions()

    @property
    def effects(self) -> Path:
        return Path(self.effects_folder or self.folder) / "effects"


_HELPER = "You help a person who counts."
_HELPER_FILE = f"---\nname: helper\ndescription: Does steps.\nprofile: permissive\n---\n\n{_HELPER}\n"


class Ticker:
    """A model that requests steps one by one. The request determines the next one: no state is kept here."""

    name = "ticker"

    def __init__(self, load: Load) -> None:
        self._load = load

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        if self._load.hang == "model":
            time.sleep(3600)  # noqa: ASYNC251 - as some people's code does
        await anyio.sleep(self._load.reply_seconds)
        done = sum(isinstance(part, ToolCallPart) for message in request.messages for part in message.parts)
        usage = Usage(input_tokens=100, output_tokens=10)
        is_boss = self._load.delegates and not any(_HELPER in block.text for block in request.system)
        if is_boss and not done:
            order = (ToolCallPart(id="order", name="delegate", arguments={"agent": "helper", "task": "go"}),)
            return ModelReply(parts=order, stop_reason="tool_calls", usage=usage, provider=self.name, model="ticker")
        if is_boss or done >= self._load.steps:
            text = (TextPart(text=f"{done} steps are done"),)
            return ModelReply(parts=text, stop_reason="end", usage=usage, provider=self.name, model="ticker")
        tool = "Keep" if done % 2 or self._load.poisoned else "Send"
        call = (ToolCallPart(id=f"step-{done + 1}", name=tool, arguments={"step": done + 1}),)
        return ModelReply(parts=call, stop_reason="tool_calls", usage=usage, provider=self.name, model="ticker")

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def close(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Deed:
    """A tool: `Send` adds a line per execution; `Keep` leaves one file per key."""

    name: Literal["Send", "Keep"]
    load: Load

    @property
    def info(self) -> ToolInfo:
        return ToolInfo(
            id=f"test:{self.name}",
            name=self.name,
            description=f"{self.name} something.",
            category="custom",
            input_schema={"type": "object"},
            risk="low",
            effect="opaque" if self.name == "Send" else "keyed",
            spools=self.name == "Send" and bool(self.load.effects_folder),
        )

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        if self.load.poisoned:
            os._exit(70)
        if self.load.hang:
            await self._hang()
        with self._alone(context.run_id):
            line = f"{context.run_id} {arguments['step']} {context.idempotency_key}\n"
            if self.name == "Send" and self.load.effects_folder:
                await self._send_by_process(line, context)
            elif self.name == "Send":
                _append(self.load.effects / "sent", line)
            else:
                kept = self.load.effects / "kept" / context.idempotency_key.replace("/", "_")
                with contextlib.suppress(FileExistsError), kept.open("x") as file:
                    file.write(line)
                _append(self.load.effects / "kept.log", line)
            await anyio.sleep(0.005)
        return ToolResult(ok=True, output=f"step {arguments['step']}")

    async def _send_by_process(self, line: str, context: ToolContext) -> None:
        command = Command(
            arguments=["sh", "-c", 'printf %s "$1" >> sent', "sh", line],
            folder=self.load.effects,
            environment={"PATH": os.environ["PATH"]},
            spool=context.spool,
        )
        async with await ProcessTree.start(command, ProcessLimits(timeout_seconds=60)) as process:
            await process.wait()

    async def _hang(self) -> None:
        command = Command(
            arguments=["sh", "-c", "sleep 3600 & echo $$ $! > new && mv new pids; wait"],
            folder=self.load.effects,
            environment={"PATH": os.environ["PATH"]},
        )
        async with await ProcessTree.start(command, ProcessLimits(timeout_seconds=3600)):
            while not (self.load.effects / "pids").exists():  # noqa: ASYNC110 - another process makes it
                await anyio.sleep(0.02)
            match self.load.hang:
                case "deaf":
                    while True:
                        with contextlib.suppress(Exception):
                            time.sleep(3600)  # noqa: ASYNC251 - as above
                case "blocking":
                    time.sleep(3600)  # noqa: ASYNC251 - as above
                case _:
                    with anyio.CancelScope(shield=True):
                        await anyio.sleep(3600)

    @contextlib.contextmanager
    def _alone(self, run_id: str) -> Generator[None]:
        """Lock a run and record a second process that works on it. The lock ends with its process."""
        with (self.load.effects / "locks" / run_id).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _append(self.load.effects / "together", f"{run_id} {os.getpid()}\n")
            yield


def _append(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def build_host(load: Load) -> Host:
    """Build the host and create the folders for effects."""
    folder = Path(load.folder)
    for name in ("locks", "kept"):
        (load.effects / name).mkdir(parents=True, exist_ok=True)
    if load.delegates:
        file = folder / ".agent" / "agents" / "helper" / "AGENT.md"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_HELPER_FILE, encoding="utf-8")
    settings = Settings(
        runtime=RuntimeOptions(max_turns=load.steps + 5, signal_grace_seconds=2),
        store=StoreOptions(backend="postgres" if load.database_url else "sqlite"),
        worker=load.worker,
    )
    return Host(
        settings=settings,
        workspace=folder,
        home=folder / "home",
        trust=MADE_HERE,
        environ={"DATABASE_URL": load.database_url, OWN_VARIABLE: load.broker_url},
        provider=Ticker(load),
        tools=(Deed("Send", load), Deed("Keep", load)),
    )


def count_sent(load: Load) -> dict[str, int]:
    """Number of times each opaque effect happened, by key."""
    path = load.effects / "sent"
    counts: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        key = line.split()[-1]
        counts[key] = counts.get(key, 0) + 1
    return counts


def settle(load: Load, state: RunState) -> Literal["done", "retry"] | None:
    """Answer for an interrupted step like an honest operator who checked its effect."""
    doubtful = next((step for step in state.steps if step.phase == "in_doubt"), None)
    if doubtful is None or doubtful.started is None:
        return None
    return "done" if doubtful.started.idempotency_key in count_sent(load) else "retry"


@functools.cache
def start_spawner() -> subprocess.Popen[str]:
    """Start the process that forks the workers, one per test process, because imports dominate a worker's start."""
    command = [sys.executable, str(Path(__file__).resolve())]
    spawner = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    atexit.register(spawner.communicate)  # closes its standard input, at which it ends
    return spawner


class Crew:
    """Worker processes that a test starts and kills. Leaving the block ends all of them."""

    def __init__(self) -> None:
        self._spawner = start_spawner()
        self.workers: list[int] = []
        """Process ids, each the leader of a group of its own."""

    def start(self, load: Load) -> int:
        assert self._spawner.stdin is not None
        assert self._spawner.stdout is not None
        self._spawner.stdin.write(load.model_dump_json() + "\n")
        self._spawner.stdin.flush()
        pid = int(self._spawner.stdout.readline())
        self.workers.append(pid)
        return pid

    def signal(self, pid: int, number: int, *, whole_group: bool = True) -> None:
        with contextlib.suppress(ProcessLookupError):
            if whole_group:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)

    def count_left(self) -> int:
        """Return the number of process groups that still exist."""
        return sum(_is_there(pid) for pid in self.workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.workers:
            self.signal(pid, 9)


def _is_there(group: int) -> bool:
    """Return whether the process exists; zombies do not count."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if len(fields) > 2 and int(fields[2]) == group and fields[0] not in "ZX":
            return True
    return False


def work(load: Load) -> None:
    """Be a worker until a signal comes."""

    def report(text: str) -> None:
        _append(Path(load.folder) / "worker.log", f"{os.getpid()} {text}\n")

    host = build_host(load)
    address: Address | None = find_address(host.settings.worker, host.environ)
    job = Job(host=host, report=report)
    if address is None:
        run_store_worker(job)
    else:
        run_celery_worker(job, address)


def main() -> None:
    for name in USED_BY_WORKERS:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        load = Load.model_validate_json(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            sys.stdout.write(f"{os.getpid()}\n")  # only now can its group be signalled
            sys.stdout.flush()
            sys.stdin.close()
            log = os.open(Path(load.folder) / "worker.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = 1
            try:
                work(load)
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
