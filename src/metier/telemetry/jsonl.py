"""The event log on disk: one JSON record per line, one writer at a time.

A record is complete when its line feed is written. Opening a log repairs an incomplete last line; other damage is
reported and never repaired.
"""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NotRequired, Self, TypedDict, TypeGuard, cast

from filelock import BaseFileLock, FileLock, Timeout
from msgspec import Struct
from pydantic import JsonValue
from pydantic_core import from_json

from metier.errors import LogDamaged, LogError, LogLocked
from metier.events.record import EventRecord, parse_record, render_record
from metier.events.run import LogRepaired
from metier.ids import Clock

FILE_NAME = "events.jsonl"
_LOCK_NAME = "events.lock"
_BLOCK = 65_536
_FEEDS = 2
"""Number of line feeds around the last complete record."""
_REBUILD = "`agent runs rebuild <run>` rebuilds the log from the journal"
# O_NOFOLLOW: a link under this name would let another program choose which file is written.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class _Tail(Struct, frozen=True, kw_only=True):
    """The end of a log."""

    good_bytes: int = 0
    last_seq: int = 0
    last_line: bytes = b""
    torn: bytes = b""
    """The bytes after the last line feed."""


class LogPool:
    """Limits the open event logs of a process to the most recently written ones.

    Each log has two descriptors, and a process may drive more runs than its limit of open files allows.
    """

    def __init__(self, max_open: int = 128) -> None:
        self._max_open = max_open
        self._open: dict[JsonlSink, None] = {}
        """Least recently written first."""
        self._newest: JsonlSink | None = None

    def use(self, sink: "JsonlSink") -> None:
        """Record that a log is being written to, and suspend the least recently written one if too many are open."""
        if sink is self._newest:
            return
        self._newest = sink
        self._open.pop(sink, None)
        self._open[sink] = None
        if len(self._open) > self._max_open:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.suspend()

    def forget(self, sink: "JsonlSink") -> None:
        self._open.pop(sink, None)
        if self._newest is sink:
            self._newest = None


class JsonlSink:
    """Appends records to `events.jsonl`. It holds a file lock, which the kernel releases if the process dies."""

    def __init__(self, path: Path, *, descriptor: int, lock: BaseFileLock, pool: LogPool) -> None:
        self._path = path
        self._descriptor = descriptor
        self._lock = lock
        self._pool = pool
        self._is_closed = False
        self._good_bytes = 0
        self._last_seq = 0

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        clock: Clock,
        take_over: bool = False,
        is_checked: bool = False,
        pool: LogPool | None = None,
    ) -> Self:
        """Open for writing, create missing folders and files, and repair an incomplete last line.

        `take_over` takes the log from another writer, whose later records are lost; use it only if that writer must not
        write anymore. `is_checked` means that the log was checked before, so only its end is read. Logs of one `pool`
        share its limit. Raises `LogLocked` if another writer has the log, `LogDamaged` for damage before the last line,
        and `LogError` if the file cannot be written.
        """
        lock = _take_lock(path) if not take_over else _take_over_lock(path)
        try:
            descriptor = os.open(path, _FLAGS, 0o600)
        except OSError as error:
            lock.release()
            raise _translate(error, path) from error
        sink = cls(path, descriptor=descriptor, lock=lock, pool=pool or LogPool())
        try:
            sink._recover(clock, _read_tail if is_checked else _scan)
            sink._pool.use(sink)
        except BaseException:
            sink.close()
            raise
        return sink

    @property
    def next_seq(self) -> int:
        """The sequence number of the next record."""
        return self._last_seq + 1

    def write(self, record: EventRecord) -> None:
        """Append one record. If that fails, the log is unchanged."""
        if self._is_closed:
            raise LogError(f"The event log '{self._path}' is closed")
        if self._descriptor < 0:
            self._open_again()
        self._pool.use(self)
        # A number that comes twice would make readers report the log as damaged.
        if record.seq <= self._last_seq:
            raise LogError(f"Event {record.seq} comes after event {self._last_seq} in '{self._path}'")
        self._append(render_record(record) + b"\n")
        self._last_seq = record.seq

    def close(self) -> None:
        """Release the log. Closing twice is allowed."""
        self._is_closed = True
        self._pool.forget(self)
        self.suspend()

    def suspend(self) -> None:
        """Release the descriptors and the lock until the next record."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._lock.release()

    def _open_again(self) -> None:
        """Reopen a suspended log. Raises `LogLocked` or `LogError` if another writer took it over."""
        lock = _take_lock(self._path)
        try:
            # Not created: a log that was deleted meanwhile must not begin again in the middle.
            descriptor = os.open(self._path, _FLAGS & ~os.O_CREAT)
        except OSError as error:
            lock.release()
            raise _translate(error, self._path) from error
        self._lock, self._descriptor = lock, descriptor
        # Another writer had the log meanwhile, so our next numbers would repeat its numbers.
        if os.fstat(descriptor).st_size != self._good_bytes:
            self.suspend()
            raise LogError(
                f"The event log '{self._path}' was changed by another process",
                hint="The run continues without it; " + _REBUILD,
            )

    def _append(self, line: bytes) -> None:
        try:
            # One `write` per record in append mode: a crash can only tear the last line. No fsync: the log is a
            # projection of the journal, which the store makes durable, and can be rebuilt from it.
            written = os.write(self._descriptor, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self._truncate()
            raise _translate(error, self._path) from error
        self._good_bytes += len(line)

    def _truncate(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._good_bytes)
        except OSError:  # opening the log again removes the incomplete line
            return

    def _recover(self, clock: Clock, find_tail: Callable[[BinaryIO, Path], _Tail]) -> None:
        try:
            with self._path.open("rb") as file:
                tail = find_tail(file, self._path)
            self._good_bytes, self._last_seq = tail.good_bytes, tail.last_seq
            if not tail.torn:
                return
            # A whole record whose line feed is missing is complete: it only gets its line feed.
            if (seq := _find_seq(tail.torn)) is not None and seq > tail.last_seq:
                self._good_bytes += len(tail.torn)
                self._append(b"\n")
                self._last_seq = seq
                return
            os.ftruncate(self._descriptor, tail.good_bytes)
        except OSError as error:
            raise _translate(error, self._path) from error
        self.write(_build_repair(self._path, tail, clock))


def read_events(path: Path) -> Iterator[EventRecord]:
    """Yield every complete record, oldest first, ignoring an incomplete last line.

    Raises `LogDamaged` for other damage.
    """
    seq = 0
    for number, offset, line in _read_lines(path):
        if not line.endswith(b"\n") and _find_seq(line) is None:
            return
        try:
            record = parse_record(line)
        except ValueError as error:
            raise _damage(path, number, offset, reason=str(error)) from error
        if record.seq != seq + 1:
            raise _damage(path, number, offset, reason=f"event {record.seq} comes after event {seq}")
        yield record
        seq = record.seq


def scan_events(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the journal entry number and the line of each complete record, without validating payloads.

    It takes a fifth of the time of `read_events`. Raises `LogDamaged` in the same cases, except for invalid payloads.
    """
    seq = 0
    for number, offset, line in _read_lines(path):
        record = _read_frame(line)
        if record is None and not line.endswith(b"\n"):
            return
        if record is None or record["seq"] != seq + 1:
            reason = "it is not a record" if record is None else f"event {record['seq']} comes after event {seq}"
            raise _damage(path, number, offset, reason=reason)
        yield record.get("entry", 0), line
        seq = record["seq"]


def _read_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield each line with its number and its offset."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise _translate(error, path, reading=True) from error
    with file:
        offset = 0
        for number, line in enumerate(file, start=1):
            yield number, offset, line
            offset += len(line)


class _Frame(TypedDict):
    """The fields of a record whose payload isn't validated."""

    run_id: str
    event_type: str
    seq: int
    entry: NotRequired[int]
    payload: dict[str, JsonValue]


def _read_frame(line: bytes) -> _Frame | None:
    try:
        record: object = from_json(line)
    except ValueError:
        return None
    return record if _is_frame(record) else None


def _is_frame(record: object) -> TypeGuard[_Frame]:
    if not isinstance(record, dict):
        return False
    found = cast("dict[str, object]", record)
    get = found.get
    texts = isinstance(get("run_id"), str) and isinstance(get("event_type"), str)
    numbers = isinstance(get("seq"), int) and isinstance(get("entry", 0), int)
    return texts and numbers and isinstance(get("payload"), dict)


def _take_lock(path: Path) -> BaseFileLock:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Not thread-local, because the thread that closes a run may not be the one that opened it.
        # Without waiting, because the other writer may hold the lock for its whole run.
        lock = FileLock(path.with_name(_LOCK_NAME), timeout=0, mode=0o600, thread_local=False, fallback_to_soft=False)
        lock.acquire()
    except Timeout as error:
        raise LogLocked(
            f"The event log '{path}' is being written by another process",
            hint="Wait for it to end, or watch the run with `agent runs watch`",
        ) from error
    except OSError as error:
        raise _translate(error, path) from error
    return lock


def _take_over_lock(path: Path) -> BaseFileLock:
    try:
        return _take_lock(path)
    except LogLocked:
        # The other writer may be frozen in the middle of a write and continue later. It keeps writing to its own file,
        # which no longer has a name; ours is a copy under the same name.
        try:
            copy = path.with_name(f".{path.name}.part")
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o600)
            copy.replace(path)
            # The other writer still holds the lock of the old file, so the lock file is replaced, too.
            path.with_name(_LOCK_NAME).unlink(missing_ok=True)
        except OSError as error:
            raise _translate(error, path) from error
        return _take_lock(path)


def _scan(file: BinaryIO, path: Path) -> _Tail:
    offset, seq, last = 0, 0, b""
    for number, line in enumerate(file, start=1):
        if not line.endswith(b"\n"):
            return _Tail(good_bytes=offset, last_seq=seq, last_line=last, torn=line)
        found = _find_seq(line)
        if found is None:
            raise _damage(path, number, offset, reason="it is not a record")
        if found <= seq:
            raise _damage(path, number, offset, reason=f"event {found} comes after event {seq}")
        offset, seq, last = offset + len(line), found, line
    return _Tail(good_bytes=offset, last_seq=seq, last_line=last)


def _read_tail(file: BinaryIO, path: Path) -> _Tail:
    """Read the tail backwards from the end of the file."""
    position, data = file.seek(0, os.SEEK_END), b""
    while position > 0 and data.count(b"\n") < _FEEDS:
        step = min(_BLOCK, position)
        position = file.seek(position - step)
        data = file.read(step) + data
    whole, _, torn = data.rpartition(b"\n")
    last = whole.rpartition(b"\n")[2] + b"\n"
    seq = _find_seq(last)
    # The log is empty or damaged at its end; a scan tells the two apart.
    if seq is None:
        file.seek(0)
        return _scan(file, path)
    return _Tail(good_bytes=position + len(data) - len(torn), last_seq=seq, last_line=last, torn=torn)


def _find_seq(line: bytes) -> int | None:
    """Return the sequence number of a complete record, or None."""
    try:
        record: object = from_json(line)
    except ValueError:
        return None
    seq = cast("dict[str, object]", record).get("seq") if isinstance(record, dict) else None  # keys of JSON are strings
    return seq if isinstance(seq, int) else None


def _build_repair(path: Path, tail: _Tail, clock: Clock) -> EventRecord:
    last = parse_record(tail.last_line) if tail.last_line else None
    return EventRecord(
        run_id=last.run_id if last else path.parent.name,
        trace_id=last.trace_id if last else "0" * 32,
        span_id=last.span_id if last else "0" * 16,
        timestamp=clock.now(),
        seq=tail.last_seq + 1,
        event_type=LogRepaired.event_type,
        payload=LogRepaired(dropped_bytes=len(tail.torn), last_good_seq=tail.last_seq),
    )


def _damage(path: Path, number: int, offset: int, *, reason: str) -> LogDamaged:
    return LogDamaged(
        f"Line {number} of '{path}' (at byte {offset}) is damaged: {reason}",
        hint=f"Earlier records can still be read; {_REBUILD}",
    )


_HINTS = {
    errno.ENOSPC: "Free some space on that disk, then resume the run",
    errno.EDQUOT: "Free some of your quota on that disk, then resume the run",
    errno.EFBIG: "The file reached the size limit of the process; raise it, then resume the run",
    errno.EACCES: "Choose a writable folder with `logging.jsonl_dir`",
    errno.EPERM: "Choose a writable folder with `logging.jsonl_dir`",
    errno.EROFS: "Choose a writable folder with `logging.jsonl_dir`",
    errno.ENOTDIR: "Part of the path is a file; choose another folder with `logging.jsonl_dir`",
    errno.EEXIST: "Part of the path is a file; choose another folder with `logging.jsonl_dir`",
    errno.ELOOP: "The log is a symbolic link, which is not followed; delete the link",
}


def _translate(error: OSError, path: Path, *, reading: bool = False) -> LogError:
    verb = "read" if reading else "written"
    reason = error.strerror or type(error).__name__
    return LogError(
        f"The event log '{path}' cannot be {verb}: {reason[:1].lower()}{reason[1:]}",
        hint=_HINTS.get(error.errno or 0, "" if not reading else f"If there is such a run, {_REBUILD}"),
    )
