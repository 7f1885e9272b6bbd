"""Named points before and after all persistent effects of a run, at which the crash kit kills a process.

`Points` counts the points that its process reaches and sends SIGKILL (or SIGSTOP) at the chosen one. The wrappers add
points to the store, the events, the tools, the model, files and processes.
"""

import os
import re
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from pydantic import JsonValue

from metier.events.record import EventRecord
from metier.ids import Ids
from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer, Provider
from metier.runtime.host import Host
from metier.store.base import ApprovalRow, Lease, RunRow, Store, StoredEntry
from metier.store.wrapper import StoreWrapper
from metier.tools.base import Probing, Tool, ToolContext, ToolInfo, ToolResult

REACHED, ARMED = "reached", "armed"
"""Files in the points folder: the names of reached points, one per line, and the point at which a script kills."""

_NUMBER = re.compile(r"\d{3,}")
_RUN_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{12}")
_CHANGE = re.compile(r"^(?:WITH .*?\) )?(INSERT|UPDATE|DELETE)(?: OR \w+)?(?: INTO| FROM)? (\w+)")
"""A statement that changes a table. An append of entries starts with a WITH clause for its lease."""
_HASH = re.compile(r"[0-9a-f]{16,}")
_DRAFT = re.compile(r"(/\.[^/]+\.)\w{8}$")
"""A file that is written under a random name and then renamed."""


class CrashPoint(Struct, frozen=True):
    """The n-th time that a process reaches the point `name`, with n = `occurrence`."""

    name: str
    occurrence: int = 1

    def __str__(self) -> str:
        return f"{self.name}#{self.occurrence}"


class Points:
    """Kills this process at the point `at`, or at the point with the number `at_index`."""

    def __init__(
        self,
        folder: Path,
        *,
        at: CrashPoint | None = None,
        at_index: int = 0,
        action: Literal["kill", "stop"] = "kill",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._at = at
        self._at_index = at_index
        self._signal = signal.SIGKILL if action == "kill" else signal.SIGSTOP
        self._counts: Counter[str] = Counter()
        # Points are reached in threads too, where SQLite's statements run.
        self._lock = threading.RLock()
        self._trace = os.open(folder / REACHED, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        armed = folder / ARMED
        # A script must not kill at a point that was meant for an earlier process.
        armed.unlink(missing_ok=True)
        if at is not None:
            # Scripts count the lines of the file, which also contains the points of earlier processes.
            earlier = (folder / REACHED).read_text(encoding="utf-8").splitlines().count(at.name)
            armed.write_text(f"{at.name} {earlier + at.occurrence} {os.getpid()}", encoding="utf-8")

    def reach(self, name: str) -> None:
        """Count a point, and kill the process if it is the chosen one."""
        if self.is_chosen(name):
            os.kill(os.getpid(), self._signal)

    def is_chosen(self, name: str) -> bool:
        """Count a point, and return True if the process must end here."""
        with self._lock:
            # Unbuffered: SIGKILL may follow at once, and the file must contain the point at which the process died.
            os.write(self._trace, f"{name}\n".encode())
            self._counts[name] += 1
            return CrashPoint(name, self._counts[name]) == self._at or self._counts.total() == self._at_index

    def end(self) -> None:
        """Kill this process."""
        os.kill(os.getpid(), self._signal)


def read_points(folder: Path) -> list[CrashPoint]:
    """Return the points reached in this folder, in order, including those of scripts."""
    counts: Counter[str] = Counter()
    points: list[CrashPoint] = []
    for name in (folder / REACHED).read_text(encoding="utf-8").splitlines():
        counts[name] += 1
        points.append(CrashPoint(name, counts[name]))
    return points


class PointedStore(StoreWrapper):
    """Adds a point before and after each change of the store."""

    def __init__(self, inner: Store, points: Points) -> None:
        super().__init__(inner)
        self._points = points

    async def create_run(self, row: RunRow, entries: Sequence[StoredEntry] = ()) -> None:
        self._points.reach("store:create_run:before")
        await self.inner.create_run(row, entries)
        self._points.reach("store:create_run:after")

    async def begin_run(self, row: RunRow, entries: Sequence[StoredEntry], *, owner: str, seconds: float) -> Lease:
        kinds = tuple(dict.fromkeys(entry.kind for entry in entries))
        self._points.reach("store:begin_run:before")
        for kind in kinds:
            self._points.reach(f"journal:{kind}:before")
        lease = await self.inner.begin_run(row, entries, owner=owner, seconds=seconds)
        for kind in kinds:
            self._points.reach(f"journal:{kind}:after")
        self._points.reach("store:begin_run:after")
        return lease

    async def append(
        self, lease: Lease, first_seq: int, entries: Sequence[StoredEntry], *, durable: bool = True
    ) -> None:
        # Entries that are written together have separate points, because the name of a point contains the kind.
        kinds = tuple(dict.fromkeys(entry.kind for entry in entries))
        for kind in kinds:
            self._points.reach(f"journal:{kind}:before")
        await self.inner.append(lease, first_seq, entries, durable=durable)
        for kind in kinds:
            self._points.reach(f"journal:{kind}:after")

    async def take_lease(self, run_id: str, *, owner: str, seconds: float) -> Lease:
        self._points.reach("store:take_lease:before")
        lease = await self.inner.take_lease(run_id, owner=owner, seconds=seconds)
        self._points.reach("store:take_lease:after")
        return lease

    async def release_lease(self, lease: Lease) -> None:
        self._points.reach("store:release_lease:before")
        await self.inner.release_lease(lease)
        self._points.reach("store:release_lease:after")

    async def update_run(self, lease: Lease, changes: Mapping[str, str | int | float]) -> None:
        self._points.reach("store:update_run:before")
        await self.inner.update_run(lease, changes)
        self._points.reach("store:update_run:after")

    async def put_blob(self, data: bytes) -> str:
        self._points.reach("store:put_blob:before")
        digest = await self.inner.put_blob(data)
        self._points.reach("store:put_blob:after")
        return digest

    async def put_approval(self, lease: Lease, row: ApprovalRow) -> None:
        self._points.reach("store:put_approval:before")
        await self.inner.put_approval(lease, row)
        self._points.reach("store:put_approval:after")


def build_connection_class(points: Points) -> type[sqlite3.Connection]:
    """Return an SQLite connection class with points inside each transaction, when changes are not committed yet."""

    class PointedConnection(sqlite3.Connection):
        # Every commit passes here, because the store uses autocommit mode and sends BEGIN and COMMIT itself.
        def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
            if sql == "COMMIT":
                points.reach("sqlite:commit:before")
            elif change := _CHANGE.search(sql):
                points.reach(f"sqlite:{change[1].lower()}:{change[2]}:before")
            return super().execute(sql, parameters)  # pyright: ignore[reportArgumentType]  passed on unchanged

    return PointedConnection


class PointedTool:
    """Adds a point before and after each call."""

    def __init__(self, inner: Tool, points: Points) -> None:
        self._inner = inner
        self._points = points

    @property
    def info(self) -> ToolInfo:
        return self._inner.info

    async def execute(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult:
        self._points.reach(f"tool:{self.info.name}:before")
        result = await self._inner.execute(arguments, context)
        self._points.reach(f"tool:{self.info.name}:after")
        return result


class PointedProbingTool(PointedTool):
    def __init__(self, inner: Tool, points: Points, *, prober: Probing) -> None:
        super().__init__(inner, points)
        self._prober = prober

    async def probe(self, arguments: dict[str, JsonValue], context: ToolContext) -> ToolResult | None:
        self._points.reach(f"tool:{self.info.name}:probe")
        return await self._prober.probe(arguments, context)


class PointedProvider:
    """Adds a point before a request is sent and after its reply arrived."""

    def __init__(self, inner: Provider, points: Points) -> None:
        self._inner = inner
        self._points = points

    @property
    def name(self) -> str:
        return self._inner.name

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        self._points.reach("model:before")
        reply = await self._inner.reply(request, observe=observe)
        self._points.reach("model:after")
        return reply

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return await self._inner.count_tokens(request)

    async def close(self) -> None:
        await self._inner.close()


class PointedIds:
    """Adds a point before each event, because its span ID is generated right before it is written."""

    def __init__(self, inner: Ids, points: Points) -> None:
        self._inner = inner
        self._points = points

    def run_id(self, started: datetime) -> str:
        return self._inner.run_id(started)

    def trace_id(self) -> str:
        return self._inner.trace_id()

    def span_id(self) -> str:
        self._points.reach("event:before")
        return self._inner.span_id()


class PointedSink:
    """Adds points after an event is written completely or by half. Runs after the sink of the log on disk."""

    def __init__(self, runs: Path, points: Points) -> None:
        self._runs = runs
        self._points = points
        self.first_at: float | None = None
        """Monotonic time of the first event."""

    def write(self, record: EventRecord) -> None:
        if self.first_at is None:
            self.first_at = time.monotonic()
        if self._points.is_chosen(f"event:{record.event_type}:torn"):
            _tear(self._runs / record.run_id / "events.jsonl")
            self._points.end()
        self._points.reach(f"event:{record.event_type}:after")

    def close(self) -> None:
        return None


def _tear(log: Path) -> None:
    """Truncate the last line, as if the process had been killed in the middle of a write."""
    data = log.read_bytes()
    start = data.rstrip(b"\n").rfind(b"\n") + 1
    os.truncate(log, start + (len(data) - start) // 2)


def instrument(host: Host, points: Points) -> Host:
    """Return the host with points around its tools, its model and its events."""
    tools = tuple(
        # Two classes, because the engine looks for a method `probe`: with one class, every tool would have it.
        PointedProbingTool(tool, points, prober=tool) if isinstance(tool, Probing) else PointedTool(tool, points)
        for tool in host.tools
    )
    provider = PointedProvider(host.provider, points) if host.provider is not None else None
    return replace(host, tools=tools, provider=provider, ids=PointedIds(host.ids, points))


def watch_files(runs: Path, points: Points) -> None:
    """Add a point before each change of a file in the runs folder, and before each process start.

    An audit hook cannot be removed: call this only in processes that do nothing else.
    """
    root = str(runs)

    def notice(event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            points.reach("process:start")
        # `os.replace` is audited as a rename, and `os.unlink` as a removal.
        elif event in ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.link"):
            _reach_file(event.removeprefix("os."), arguments[0])
        # Reading leaves no trace on disk, so it is no point.
        elif event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            _reach_file("open", arguments[0])

    def _reach_file(what: str, path: object) -> None:
        name = str(path)
        if name.startswith(root):
            points.reach(f"file:{what}:{_shorten(name.removeprefix(root))}")

    sys.addaudithook(notice)


def _shorten(path: str) -> str:
    """Replace IDs and process numbers, which differ between runs."""
    path = _DRAFT.sub(r"\1N", path)
    # Run IDs first: the other patterns would replace parts of them.
    for pattern in (_RUN_ID, _HASH, _NUMBER):
        path = pattern.sub("N", path)
    return path.lstrip("/") or "."
