"""The event log: one writer, complete records, repaired ends, clear errors. Real files and processes."""

import os
import resource
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from metier.errors import LogDamaged, LogError, LogLocked
from metier.events.record import EventRecord
from metier.events.run import LogRepaired, RunFailed
from metier.ids import SystemClock
from metier.telemetry.jsonl import FILE_NAME, JsonlSink, LogPool, read_events

CLOCK = SystemClock()

HOLDER = """
import sys
from pathlib import Path
from metier.ids import SystemClock
from metier.telemetry.jsonl import JsonlSink
sink = JsonlSink.open(Path(sys.argv[1]), clock=SystemClock())
print("held", flush=True)
sys.stdin.read()
"""


def test_records_are_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "r1" / FILE_NAME
    written = _write(path, 3)

    assert list(read_events(path)) == written
    assert [record.seq for record in written] == [1, 2, 3]


def test_log_is_private(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "r1" / FILE_NAME
    _write(path, 1)

    assert [stat.S_IMODE(file.stat().st_mode) for file in sorted(path.parent.iterdir())] == [0o600, 0o600]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_numbers_continue_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    _write(path, 2)
    _write(path, 2)

    assert [record.seq for record in read_events(path)] == [1, 2, 3, 4]


def test_record_with_a_used_number_is_refused(tmp_path: Path) -> None:
    sink = JsonlSink.open(tmp_path / "events.jsonl", clock=CLOCK)
    sink.write(_record(1))

    with pytest.raises(LogError, match="Event 1 comes after event 1"):
        sink.write(_record(1))
    sink.close()


def test_log_truncated_at_any_byte_of_its_last_record_can_be_reopened(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    _write(path, 2)
    whole = path.read_bytes()
    first_end = whole.index(b"\n") + 1

    for cut in range(first_end, len(whole) + 1):
        path.write_bytes(whole[:cut])
        readable = [record.seq for record in read_events(path)]
        _write(path, 1)
        records = list(read_events(path))

        dropped = 0 if cut in {first_end, len(whole) - 1, len(whole)} else cut - first_end
        repairs = [record.payload for record in records if isinstance(record.payload, LogRepaired)]
        assert readable == ([1, 2] if cut >= len(whole) - 1 else [1])
        assert [record.seq for record in records] == list(range(1, len(records) + 1))
        assert repairs == ([LogRepaired(dropped_bytes=dropped, last_good_seq=1)] if dropped else [])


def test_end_of_a_log_is_the_same_read_backward_and_forward(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    _write(path, 3)
    whole = path.read_bytes()

    for cut in range(len(whole) + 1):
        found: list[tuple[int, int]] = []
        for is_checked in (False, True):
            path.write_bytes(whole[:cut])
            sink = JsonlSink.open(path, clock=CLOCK, is_checked=is_checked)
            found.append((sink.next_seq, sum(1 for _ in read_events(path))))
            sink.close()
        assert found[0] == found[1], cut


def test_torn_first_record_is_repaired_too(tmp_path: Path) -> None:
    path = tmp_path / "r7" / FILE_NAME
    path.parent.mkdir()
    path.write_bytes(b'{"run_id": "r7", "tr')

    _write(path, 1)

    first = next(iter(read_events(path)))
    assert (first.run_id, first.seq, first.payload) == ("r7", 1, LogRepaired(dropped_bytes=20, last_good_seq=0))


@pytest.mark.parametrize("damage", [b"garbage\n", b"\n", b"[1]\n", b'{"seq": "x"}\n'])
def test_damage_in_the_middle_is_reported_and_not_repaired(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "events.jsonl"
    _write(path, 2)
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + damage + second)

    where = rf"Line 2 of '.*events.jsonl' \(at byte {len(first)}\) is damaged"
    with pytest.raises(LogDamaged, match=where):
        JsonlSink.open(path, clock=CLOCK)
    with pytest.raises(LogDamaged, match=where):
        list(read_events(path))
    assert path.read_bytes() == first + damage + second


def test_second_writer_is_refused_until_the_first_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(LogLocked) as caught:
            JsonlSink.open(path, clock=CLOCK)
        holder.send_signal(signal.SIGKILL)
        holder.wait()

    assert caught.value.exit_code == 10
    assert _write(path, 1)[0].seq == 1


def test_second_writer_in_the_same_process_is_refused(tmp_path: Path) -> None:
    sink = JsonlSink.open(tmp_path / "events.jsonl", clock=CLOCK)

    with pytest.raises(LogLocked):
        JsonlSink.open(tmp_path / "events.jsonl", clock=CLOCK)
    sink.close()
    sink.close()


def test_writer_killed_at_any_time_leaves_a_valid_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    child = subprocess.Popen([sys.executable, "-c", _ENDLESS, str(path)], stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "writing\n"
        child.send_signal(signal.SIGKILL)
        child.wait()

    _write(path, 1)

    seqs = [record.seq for record in read_events(path)]
    assert len(seqs) > 50
    assert seqs == list(range(1, len(seqs) + 1))


def test_full_disk_raises_a_clear_error_without_a_partial_record(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonlSink.open(path, clock=CLOCK)
    sink.write(_record(1))
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    # A size limit in the middle of the next record: the kernel takes part of it, like a disk that fills up.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, hard))
    try:
        with pytest.raises(LogError, match="cannot be written: ") as caught:
            sink.write(_record(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert path.read_bytes() == before
    assert caught.value.hint
    sink.write(_record(2))
    sink.close()
    assert [record.seq for record in read_events(path)] == [1, 2]


def test_real_full_disk_raises_a_clear_error_without_a_partial_record(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted here")
    try:
        sink = JsonlSink.open(disk / "events.jsonl", clock=CLOCK)
        with pytest.raises(LogError, match="no space left on device") as caught:
            _fill(sink)
        sink.close()
        content = (disk / "events.jsonl").read_bytes()
    finally:
        subprocess.run(["umount", str(disk)], check=True)

    assert content.endswith(b"}\n")
    assert "Free some space" in caught.value.hint


def test_folder_that_cannot_be_created_raises_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")

    with pytest.raises(LogError, match="cannot be written: ") as caught:
        JsonlSink.open(tmp_path / "runs" / "r1" / "events.jsonl", clock=CLOCK)

    assert "logging.jsonl_dir" in caught.value.hint


def test_read_only_folder_raises_a_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir(mode=0o500)
    if os.geteuid() == 0:
        bind = ["mount", "-t", "tmpfs", "-o", "ro,size=4k", "tmpfs", str(folder)]
        if subprocess.run(bind, capture_output=True, check=False).returncode:
            pytest.skip("root may write anywhere, and mounting is not permitted here")
    try:
        with pytest.raises(LogError, match="cannot be written: ") as caught:
            JsonlSink.open(folder / "r1" / "events.jsonl", clock=CLOCK)
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", str(folder)], check=True)

    assert "logging.jsonl_dir" in caught.value.hint


def test_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / "events.jsonl").symlink_to(tmp_path / "target")

    with pytest.raises(LogError, match="cannot be written"):
        JsonlSink.open(tmp_path / "events.jsonl", clock=CLOCK)

    assert (tmp_path / "target").read_text() == "precious"


def test_symbolic_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "events.lock").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(LogError, match="cannot be written"):
        JsonlSink.open(tmp_path / "events.jsonl", clock=CLOCK)

    assert not (tmp_path / "elsewhere").exists()


def test_log_closed_by_another_thread_can_be_opened_again(tmp_path: Path) -> None:
    sink = JsonlSink.open(tmp_path / "events.jsonl", clock=CLOCK)
    with ThreadPoolExecutor() as pool:
        pool.submit(sink.close).result()

    assert _write(tmp_path / "events.jsonl", 1)[0].seq == 1


def test_missing_log_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be read: no such file or directory"):
        list(read_events(tmp_path / "none.jsonl"))


_ENDLESS = """
import sys
from pathlib import Path
from datetime import UTC, datetime
from metier.events.record import EventRecord
from metier.events.run import RunFailed
from metier.ids import SystemClock
from metier.telemetry.jsonl import JsonlSink
sink = JsonlSink.open(Path(sys.argv[1]), clock=SystemClock())
seq = 0
while True:
    seq += 1
    payload = RunFailed(reason="x", message="y" * 5000)
    sink.write(EventRecord(run_id="r", trace_id="t", span_id="s", timestamp=datetime.now(UTC), seq=seq,
                           event_type="run_failed", payload=payload))
    if seq == 50:
        print("writing", flush=True)
"""


def _record(seq: int, message: str = "a message of some length " * 8) -> EventRecord:
    return EventRecord(
        run_id="r1",
        trace_id="0" * 32,
        span_id="0" * 16,
        timestamp=CLOCK.now(),
        seq=seq,
        event_type="run_failed",
        payload=RunFailed(reason="test", message=message),
    )


def _fill(sink: JsonlSink) -> None:
    for seq in range(1, 10_000):
        sink.write(_record(seq, "x" * 1000))


def _write(path: Path, count: int) -> list[EventRecord]:
    sink = JsonlSink.open(path, clock=CLOCK)
    records = [_record(sink.next_seq + number) for number in range(count)]
    for record in records:
        sink.write(record)
    sink.close()
    return records


def test_writer_that_lost_its_log_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    frozen = JsonlSink.open(path, clock=SystemClock())
    frozen.write(_record(1))

    with pytest.raises(LogLocked):
        JsonlSink.open(path, clock=SystemClock())
    successor = JsonlSink.open(path, clock=CLOCK, take_over=True)
    frozen.write(_record(2))
    successor.write(_record(2))
    successor.write(_record(3))
    frozen.close()

    assert [record.seq for record in read_events(path)] == [1, 2, 3]
    with pytest.raises(LogLocked):
        JsonlSink.open(path, clock=SystemClock())
    successor.close()


def test_logs_of_a_pool_share_its_descriptors(tmp_path: Path) -> None:
    pool = LogPool(max_open=2)
    paths = [tmp_path / name / "events.jsonl" for name in "abc"]
    before = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
    sinks = [JsonlSink.open(path, clock=CLOCK, pool=pool) for path in paths]

    for seq in range(1, 4):
        for sink in sinks:
            sink.write(_record(seq))
    if sys.platform == "linux":
        assert len(list(Path("/proc/self/fd").iterdir())) == before + 2 * 2
    for sink in sinks:
        sink.close()

    assert [[record.seq for record in read_events(path)] for path in paths] == [[1, 2, 3]] * 3
    with pytest.raises(LogError, match="is closed"):
        sinks[0].write(_record(4))


def test_a_pooled_log_taken_over_by_another_writer_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "run" / "events.jsonl"
    pool = LogPool(max_open=1)
    resting = JsonlSink.open(path, clock=CLOCK, pool=pool)
    resting.write(_record(1))
    other = JsonlSink.open(tmp_path / "other" / "events.jsonl", clock=CLOCK, pool=pool)

    successor = JsonlSink.open(path, clock=CLOCK)
    successor.write(_record(2))
    with pytest.raises(LogLocked):
        resting.write(_record(2))
    successor.close()
    with pytest.raises(LogError, match="was changed by another process"):
        resting.write(_record(2))
    resting.close()
    other.close()

    assert [record.seq for record in read_events(path)] == [1, 2]
