"""Torn logs, damaged journals, full and read-only disks, odd clocks, changed files: clear errors, no loss."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
import small_scenarios as small
from msgspec.structs import replace
from reference_scenario import Call, Narrator

from metier.engine.journal import read_entries
from metier.engine.projection import project
from metier.engine.state.fold import apply
from metier.engine.state.run_state import RunState
from metier.events.run import LogRepaired, PinnedDefinitionUsed
from metier.messages import ModelReply
from metier.providers.base import ModelRequest, Observer
from metier.runtime.answers import Answer
from metier.runtime.host import Host
from metier.runtime.requests import RunRequest
from metier.runtime.runs import Runtime, open_runtime
from metier.store.backend import DATABASE
from metier.store.base import RunRow
from metier.store.failures import RunUnknown, StoreDamaged
from metier.telemetry.jsonl import read_events

pytestmark = [pytest.mark.anyio]
IS_WHOLE = bool(os.environ.get("METIER_CRASH_ALL"))
CHILD = Path(__file__).with_name("fault_child.py")


def build_host(folder: Path) -> Host:
    return small.build(folder, lambda _name: None).host


async def expect_whole_log(runtime: Runtime, run_id: str) -> None:
    """Check that the log reports every entry once, in order."""
    state, expected = RunState(run_id), list[tuple[int, str]]()
    for entry in await read_entries(runtime.store, run_id):
        apply(state, entry)
        expected += [(state.seq, payload.event_type) for payload in project(entry, state)]
    records = list(read_events(runtime.folder(run_id) / "events.jsonl"))
    assert [(record.entry, record.event_type) for record in records if record.entry] == expected
    assert [record.seq for record in records] == list(range(1, len(records) + 1))


async def test_log_truncated_at_any_byte_of_its_last_record_is_repaired_and_reported(tmp_path: Path) -> None:
    async with open_runtime(build_host(tmp_path)) as runtime:
        run_id = (await runtime.start(RunRequest(task="A short run"))).run_id
        log = runtime.folder(run_id) / "events.jsonl"
        whole = log.read_bytes()
        start = whole.rstrip(b"\n").rfind(b"\n") + 1

        ends = {start, start + 1, len(whole) - 2, len(whole) - 1}
        for cut in range(start, len(whole)) if IS_WHOLE else sorted({*ends, *range(start, len(whole), 12)}):
            log.write_bytes(whole[:cut])
            state = await runtime.resume(run_id)

            assert state.status == "input_required"
            await expect_whole_log(runtime, run_id)
            repairs = [record for record in read_events(log) if isinstance(record.payload, LogRepaired)]
            # Nothing after the last line feed, or all but the line feed: then nothing was lost.
            assert len(repairs) == (0 if cut in (start, len(whole) - 1) else 1)

        assert (await runtime.resume(run_id, Answer(values={}))).status == "paused"
        await expect_whole_log(runtime, run_id)


@pytest.mark.parametrize("how", ["flip", "remove"])
async def test_damaged_journal_is_rejected_and_not_changed(how: str, tmp_path: Path) -> None:
    async with open_runtime(build_host(tmp_path)) as runtime:
        run_id = (await runtime.start(RunRequest(task="A short run"))).run_id
        log = (runtime.folder(run_id) / "events.jsonl").read_bytes()
    database = sqlite3.connect(tmp_path / "runs" / DATABASE)
    if how == "flip":
        flipped = "CAST(replace(CAST(data AS TEXT), 'look', 'lock') AS BLOB)"
        database.execute(f"UPDATE journal SET data = {flipped} WHERE seq = 7")
    else:
        database.execute("DELETE FROM journal WHERE seq = 7")
    database.commit()
    rows = database.execute("SELECT * FROM journal ORDER BY seq").fetchall()

    async with open_runtime(build_host(tmp_path)) as runtime:
        with pytest.raises(StoreDamaged, match="Entry 7 of run"):
            await runtime.resume(run_id, Answer(values={}))

    assert database.execute("SELECT * FROM journal ORDER BY seq").fetchall() == rows
    assert (tmp_path / "runs" / run_id / "events.jsonl").read_bytes() == log
    database.close()


class BackwardsClock:
    """A clock that moves back an hour on every reading."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 11, 1, tzinfo=UTC)
        self.seconds = 0.0

    def now(self) -> datetime:
        self.wall -= timedelta(hours=1)
        return self.wall

    def monotonic(self) -> float:
        self.seconds += 0.001
        return self.seconds


async def test_clock_that_jumps_back_does_not_change_the_order(tmp_path: Path) -> None:
    host = replace(build_host(tmp_path), clock=BackwardsClock())
    async with open_runtime(host) as runtime:
        run_id = (await runtime.start(RunRequest(task="A short run"))).run_id
        state = await runtime.resume(run_id, Answer(values={}))
        (approval,) = await runtime.store.list_approvals(run_id=run_id)
        await runtime.store.decide_approval(approval.approval_id, status="approved", decided_by="me")
        state = await runtime.resume(run_id)

        assert (state.status, state.result) == ("completed", "done")
        await expect_whole_log(runtime, run_id)
        records = list(read_events(runtime.folder(run_id) / "events.jsonl"))
        assert records[-1].timestamp < records[0].timestamp
        assert all(getattr(record.payload, "duration_ms", 0) >= 0 for record in records)


async def test_a_row_without_a_journal_is_not_started_with_current_settings(tmp_path: Path) -> None:
    host = build_host(tmp_path)
    now = host.clock.now()
    async with open_runtime(host) as runtime:
        row = RunRow(run_id="r1", context_id="r1", status="pending", task="x", created_at=now, updated_at=now)
        await runtime.store.create_run(row)

        with pytest.raises(RunUnknown, match="what it was started with is not known"):
            await runtime.resume("r1")

        found = await runtime.find("r1")
        assert (found.status, found.reason, found.driver) == ("failed", "not_started", "")
        assert (await runtime.read("r1")).started is None


class Listener(Narrator):
    """A model that records its requests."""

    def __init__(self, lines: list[list[Call]]) -> None:
        super().__init__(lines)
        self.requests: list[ModelRequest] = []

    async def reply(self, request: ModelRequest, *, observe: Observer | None = None) -> ModelReply:
        self.requests.append(request)
        return await super().reply(request, observe=observe)


def write_skill(workspace: Path, body: str) -> Path:
    folder = workspace / ".agent" / "skills" / "notes"
    (folder / "references").mkdir(parents=True, exist_ok=True)
    (folder / "references" / "more.md").write_text("# More\n\nThe small print.\n")
    (folder / "SKILL.md").write_text(f"---\nname: notes\ndescription: Take a short note.\n---\n# Notes\n\n{body}\n")
    return folder


SKILLED: list[list[Call]] = [
    [("ask_user", {"question": "Go on?"})],
    [("use_skill", {"skill": "notes"})],
    [("read_skill_files", {"paths": ["references/more.md"]})],
    [("finish", {"result": "done"})],
]


def text_of(request: ModelRequest) -> str:
    return "".join(block.text for block in request.system) + "".join(
        getattr(part, "text", "") for message in request.messages for part in message.parts
    )


async def test_skill_changed_during_a_pause_is_used_unchanged(tmp_path: Path) -> None:
    write_skill(tmp_path, "Write with a pencil.")
    listener = Listener(SKILLED)
    host = replace(build_host(tmp_path), provider=listener)
    async with open_runtime(host) as runtime:
        run_id = (await runtime.start(RunRequest(task="Take a note with notes"))).run_id
        write_skill(tmp_path, "Write with a crayon.")
        state = await runtime.resume(run_id, Answer(values={}))

        assert state.status == "completed"
        assert "pencil" in text_of(listener.requests[-1])
        assert "crayon" not in text_of(listener.requests[-1])
        told = [r.payload for r in read_events(runtime.folder(run_id) / "events.jsonl")]
        used = [payload for payload in told if isinstance(payload, PinnedDefinitionUsed)]
        assert [payload.definition for payload in used] == ["skill:notes"]


async def test_file_deleted_during_a_pause_is_reported_as_missing(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "Write with a pencil.")
    listener = Listener(SKILLED)
    async with open_runtime(replace(build_host(tmp_path), provider=listener)) as runtime:
        run_id = (await runtime.start(RunRequest(task="Take a note with notes"))).run_id
        (folder / "references" / "more.md").unlink()
        state = await runtime.resume(run_id, Answer(values={}, accepts_changed_skills=True))

        assert state.status == "completed"
        assert "Not given: " in text_of(listener.requests[-1])
        await expect_whole_log(runtime, run_id)


async def test_skill_deleted_during_a_pause_is_reported_as_unknown(tmp_path: Path) -> None:
    folder = write_skill(tmp_path, "Write with a pencil.")
    listener = Listener(SKILLED)
    async with open_runtime(replace(build_host(tmp_path), provider=listener)) as runtime:
        run_id = (await runtime.start(RunRequest(task="Take a note with notes"))).run_id
        shutil.rmtree(folder)
        state = await runtime.resume(run_id, Answer(values={}))

        assert state.phase in ("DONE", "ERROR")
        assert "There is no skill 'notes'" in text_of(listener.requests[-1])
        await expect_whole_log(runtime, run_id)


def run_child(*arguments: str | Path, before: str) -> dict[str, Any]:
    """Run the child after shell commands in its own mount namespace."""
    command = [sys.executable, str(CHILD), *map(str, arguments)]
    command = ["unshare", "-m", "sh", "-ec", f'{before}\nexec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def can_mount() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted here")
@pytest.mark.parametrize("spare_kib", [0, 40, 90] if IS_WHOLE else [0, 90])
async def test_run_on_a_full_disk_pauses_and_continues_after_space_is_freed(spare_kib: int, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()

    def work() -> dict[str, Any]:
        return run_child("full", disk, str(spare_kib), before=f"mount -t tmpfs -o size=64m none '{disk}'")

    report = await anyio.to_thread.run_sync(work)

    assert report == {
        "first": "paused",
        "pause": "storage",
        "reason": "The disk of the run store is full; free some space, then resume",
        "then": "completed",
        "posts": report["posts"],
        "keys": 30,
        "launches": 30,
        "log_is_whole": True,
    }
    assert report["posts"] >= 30


@pytest.mark.skipif(not can_mount(), reason="mounting is not permitted here")
async def test_read_only_runs_folder_is_rejected_at_the_start_with_one_message(tmp_path: Path) -> None:
    before = f"mount --bind '{tmp_path}' '{tmp_path}'\nmount -o remount,ro,bind '{tmp_path}'"

    report = await anyio.to_thread.run_sync(lambda: run_child("start", tmp_path, before=before))

    assert report["failed"] in ("StoreUnavailable", "UsageError")
    assert str(tmp_path) in report["message"]
    assert "\n" not in report["message"]
    assert report["hint"]
