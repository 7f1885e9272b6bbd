"""A run store with lost entries: nothing is repeated silently, and lost runs are found by their folders."""

import json
import os
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from model_server import ModelServer, Reply, calls, says
from run_workspace import WAIT, Workspace

from services.postgres_server import find_binaries, run_server

pytestmark = pytest.mark.slow

type Capture = pytest.CaptureFixture[str]

DATABASE = "runs/state.db"
COUNT = """import json, sys
from pathlib import Path
path = Path([word for word in sys.argv[1:] if not word.startswith("--")][0])
path.write_text(path.read_text() + "x" if path.exists() else "x")
print(json.dumps({"summary": "counted"}))
"""


@pytest.fixture
def effects(workspace: Workspace, tmp_path: Path) -> Path:
    """The file to which the scripts append one letter per execution."""
    workspace.add_skill("counter", "Count.", count=COUNT)
    workspace.add_skill("waiter", "Wait for somebody.", wait=WAIT)
    os.mkfifo(tmp_path / "first")
    os.mkfifo(tmp_path / "last")
    return tmp_path / "effects"


def count(effects: Path) -> Reply:
    return calls("script_run", skill_name="counter", script_name="count", args=[str(effects)])


def wait(pipe: Path) -> Reply:
    return calls("script_run", skill_name="waiter", script_name="wait", args=[str(pipe)])


def copy(folder: Path, target: Path) -> None:
    """Copy the store; the supervisor of a killed agent may still be recording the program's end."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.ended.*", "*.lock"))


def leave_killed(workspace: Workspace, model: ModelServer, effects: Path) -> str:
    """Leave a run with an early copy of its store, two effects, and a kill in the last step. Return its ID."""
    first, last = effects.with_name("first"), effects.with_name("last")
    model.follow(wait(first), count(effects), count(effects), wait(last), *(says("Done.") for _ in range(9)))
    process = workspace.start("run", "Count")
    held = os.open(first, os.O_WRONLY)
    copy(workspace.folder / "runs", effects.with_name("early"))
    os.write(held, b"go")
    os.close(held)
    held = os.open(last, os.O_WRONLY)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=100)
    (run_id,) = workspace.run_ids()
    ended = workspace.folder / "runs" / run_id / "spool" / "4.1-1.ended"
    deadline = time.monotonic() + 100
    while not ended.exists() and time.monotonic() < deadline:
        time.sleep(0.01)  # its supervisor, which outlives the agent, ends the script and notes it
    os.close(held)
    assert effects.read_text() == "xx"
    return run_id


def roll_back(workspace: Workspace, run_id: str, *, entries: int) -> None:
    """Remove the end of the journal, like a loss of commits."""
    with sqlite3.connect(workspace.folder / DATABASE) as database:
        database.execute("DELETE FROM journal WHERE run_id = ? AND seq > ?", (run_id, entries))
    database.close()


def test_a_journal_behind_its_event_log_stops_the_run_and_lists_the_missing_entries(
    *, workspace: Workspace, model: ModelServer, effects: Path, capsys: Capture
) -> None:
    run_id = leave_killed(workspace, model, effects)
    roll_back(workspace, run_id, entries=8)

    assert workspace.agent("resume", run_id, "-q") == 1

    told = capsys.readouterr().err
    assert "ends at entry 8" in told
    assert "script_run" in told
    assert f"agent resume {run_id} --accept-loss" in told
    assert workspace.agent("runs", "rebuild", run_id) == 1
    assert effects.read_text() == "xx"


def test_reads_lost_by_a_crashed_postgres_server_are_repeated_without_asking(
    workspace: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries of reads are not flushed at once, and a driver that is killed too cannot write them again."""
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed here")
    with run_server(binaries) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            # So that the server flushes nothing by itself before it crashes.
            connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        server.restart()
        monkeypatch.setenv("STATE_STORE_BACKEND", "postgres")
        monkeypatch.setenv("DATABASE_URL", server.url())
        model.follow(calls("Glob", pattern="*"), says("Done."))
        model.hold_after = 1
        process = workspace.start("run", "Look around")
        assert model.held.wait(100)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=100)
        model.released.set()
        server.restart(is_immediate=True)
        (folder,) = (workspace.folder / "runs").glob("2*")

        code = workspace.agent("resume", folder.name)

        assert code == 0
        assert workspace.agent("replay", folder.name) == 0
        assert len(list(folder.glob("events.lost-*.jsonl"))) == 1


def test_an_older_copy_of_a_postgres_database_without_the_users_answer_stops_the_run(
    *, workspace: Workspace, model: ModelServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("STATE_STORE_BACKEND", "postgres")
    monkeypatch.setenv("DATABASE_URL", postgres_url)
    model.follow(calls("ask_user", question="Which color?"), says("Blue it is."))
    assert workspace.agent("run", "-q", "Paint") == 4
    (folder,) = (workspace.folder / "runs").glob("2*")
    assert workspace.agent("resume", folder.name, "-q", "--input", "answer=blue") == 0
    with psycopg.connect(postgres_url) as connection:
        first = "(SELECT max(seq) FROM agent_journal WHERE kind = 'run_paused')"
        connection.execute(f"DELETE FROM agent_journal WHERE seq > {first}")

    code = workspace.agent("resume", folder.name, "-q")

    assert code == 1
    assert "The run store lost its end" in capsys.readouterr().err


def test_after_an_accepted_loss_each_lost_step_is_asked_about(
    *, workspace: Workspace, model: ModelServer, effects: Path, capsys: Capture
) -> None:
    run_id = leave_killed(workspace, model, effects)
    roll_back(workspace, run_id, entries=8)
    script = calls("script_run", skill_name="counter", script_name="count", args=[str(effects)])
    model.follow(script, *(says("Done.") for _ in range(9)))

    code = workspace.agent("resume", run_id, "-q", "--accept-loss")

    assert code == 4
    assert "begun in entries that the journal has lost" in capsys.readouterr().err
    assert effects.read_text() == "xx"
    assert workspace.agent("resume", run_id, "-q", "--answer", "done") in (0, 4)
    assert effects.read_text() == "xx"
    assert list((workspace.folder / "runs" / run_id).glob("events.lost-*.jsonl"))


def test_a_step_started_before_the_store_was_copied_has_an_unknown_outcome(
    *, workspace: Workspace, model: ModelServer, effects: Path, tmp_path: Path, capsys: Capture
) -> None:
    """The run folder was restored from a plain copy, which counts as another store."""
    run_id = leave_killed(workspace, model, effects)
    runs, begun = workspace.folder / "runs", effects.with_name("last.effects")
    for copies in ("once", "twice"):
        copy(runs, tmp_path / copies)
        shutil.rmtree(runs)
        copy(tmp_path / copies, runs)
        assert workspace.agent("resume", run_id, "-q") == 3
    capsys.readouterr()

    assert workspace.agent("approvals", "list", "--json") == 0

    asked = json.loads(capsys.readouterr().out)
    assert "It was begun before the run came to this store" in asked[-1]["reason"]
    assert "approving does it again" in asked[-1]["reason"]
    assert begun.read_text() == "x"
    model.follow(says("Then it is done."))
    assert workspace.agent("approvals", "deny", asked[-1]["approval_id"], "--reason", "it was done") == 0
    assert workspace.agent("resume", run_id, "-q") == 0
    assert workspace.agent("replay", run_id, "--execute") == 0
    assert begun.read_text() == "x"


def test_a_run_missing_from_the_database_is_found_by_its_folder(
    *, workspace: Workspace, model: ModelServer, effects: Path, capsys: Capture
) -> None:
    run_id = leave_killed(workspace, model, effects)
    for file in (workspace.folder / "runs").glob("state.db*"):
        file.unlink()

    for name in (run_id, run_id[:12], "latest"):
        assert workspace.agent("resume", name, "-q") == 1
        told = capsys.readouterr().err
        assert f"Run {run_id!r} is not in the run store, but its folder is there" in told
    assert effects.read_text() == "xx"


def test_the_latest_of_two_runs_in_the_same_second_is_not_reported_as_lost(
    workspace: Workspace, model: ModelServer, capsys: Capture
) -> None:
    model.follow(says("First."), says("Second."))
    assert workspace.agent("run", "-q", "Greet") == 0
    assert workspace.agent("run", "-q", "Greet") == 0
    earlier, later = sorted(workspace.run_ids())
    with sqlite3.connect(workspace.folder / DATABASE) as database:
        # The run with the greater id began first, as one of two runs of the same second may.
        database.execute("UPDATE runs SET number = -1 WHERE run_id = ?", (later,))
    database.close()

    assert workspace.agent("replay", "latest") == 0

    assert workspace.agent("runs", "show", "latest", "--json") == 0
    assert earlier in capsys.readouterr().out


def flip(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(3):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)


def cut(file: Path, chance: random.Random) -> None:
    os.truncate(file, int(file.stat().st_size * chance.choice((0.25, 0.5, 0.75, 0.95))))


def delete(file: Path, _chance: random.Random) -> None:
    file.unlink()


def swap(file: Path, _chance: random.Random) -> None:
    """Replace a file with an older copy; a database with its write-ahead log."""
    runs = next(folder for folder in file.parents if folder.name == "runs")
    early = runs.parent.with_name("early")
    names = ["state.db", "state.db-wal"] if file.name == "state.db" else [str(file.relative_to(runs))]
    for name in names:
        shutil.copy(early / name, runs / name)


HARMS: tuple[Callable[[Path, random.Random], None], ...] = (flip, cut, delete, swap)
MANY = 60 if os.environ.get("METIER_CRASH_ALL") else 12


def restore(runs: Path, whole: Path, database: Path) -> None:
    """Restore everything, the database in the same file: a copy would be another store."""
    shutil.rmtree(runs)
    copy(whole, runs)
    database.write_bytes((whole / "state.db").read_bytes())
    (runs / "state.db").unlink()
    os.link(database, runs / "state.db")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("form", ["in the log", "in the database"])
def test_no_corruption_of_database_log_or_events_repeats_an_effect_silently(
    *, form: str, workspace: Workspace, model: ModelServer, effects: Path, tmp_path: Path, capsys: Capture
) -> None:
    run_id = leave_killed(workspace, model, effects)
    runs, whole, database = workspace.folder / "runs", tmp_path / "whole", tmp_path / "database"
    files = [runs / "state.db", runs / "state.db-wal", runs / run_id / "events.jsonl"]
    if form == "in the database":
        with sqlite3.connect(runs / "state.db") as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        files = [runs / "state.db", runs / run_id / "events.jsonl"]
    copy(runs, whole)
    os.link(runs / "state.db", database)
    outcomes: list[str] = []
    for number in range(MANY):
        file, harm = files[number % len(files)], HARMS[number // len(files) % 4]
        restore(runs, whole, database)
        model.follow(count(effects), count(effects), *(says("Done.") for _ in range(9)))
        harm(file, random.Random(number))

        code = workspace.agent("resume", run_id, "-q")

        outcomes.append(f"{file.name} {harm.__name__}: {code}")
        # Refused (1, 2), or asked about (4): without any harm the last step is in doubt.
        assert code in (1, 2, 4), outcomes
        assert effects.read_text() == "xx", outcomes
        assert effects.with_name("last.effects").read_text() == "x", outcomes
    with capsys.disabled():
        print(Counter(outcomes))
    asked = sum(outcome.endswith("4") for outcome in outcomes)
    assert MANY // 5 <= asked <= MANY * 4 // 5
