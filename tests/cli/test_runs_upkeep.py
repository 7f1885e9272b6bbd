"""`agent runs gc` and `agent runs rebuild`."""

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from model_server import ModelServer, calls, says
from run_workspace import Workspace

type Capture = pytest.CaptureFixture[str]


@pytest.fixture
def runs(workspace: Workspace, model: ModelServer, capsys: Capture) -> list[str]:
    """Two ended runs and one paused run."""
    model.follow(says("One."), says("Two."), calls("ask_user", question="Which?"))
    for task in ("first", "second", "third"):
        workspace.agent("run", task, "-q")
    capsys.readouterr()
    workspace.agent("runs", "list", "--json")
    return [row["run_id"] for row in reversed(json.loads(capsys.readouterr().out))]


def listed(workspace: Workspace, capsys: Capture) -> set[str]:
    capsys.readouterr()
    workspace.agent("runs", "list", "--json")
    return {row["task"] for row in json.loads(capsys.readouterr().out)}


def test_only_ended_runs_are_deleted_with_their_folders(runs: list[str], workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc", "--keep", "0", "--dry-run", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["deleted"]) == 2
    assert len(workspace.run_ids()) == 3

    assert workspace.agent("runs", "gc", "--keep", "0") == 0

    assert listed(workspace, capsys) == {"third"}
    assert len(workspace.run_ids()) == 1


def test_the_newest_runs_are_kept(runs: list[str], workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc", "--keep", "1") == 0

    assert listed(workspace, capsys) == {"second", "third"}


def test_recent_runs_are_kept(runs: list[str], workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc", "--older-than", "1") == 0

    assert listed(workspace, capsys) == {"first", "second", "third"}


def add_runs(database: Path, count: int, *, day: str) -> None:
    """Add any number of ended runs without a journal."""
    with sqlite3.connect(database) as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?)"
            " INSERT INTO runs (run_id, context_id, status, task, agent, model, parent_run_id, created_at, updated_at,"
            " turns, cost_usd, reason)"
            " SELECT printf('%s-%06d-00', ?, i), 'c', 'completed', printf('task %d', i), '', '', '', ?, ?, 1, 0, ''"
            " FROM n",
            (count, day, *[f"{day[:4]}-{day[4:6]}-{day[6:]}T0{hour}:00:00.000000+00:00" for hour in (0, 1)]),
        )
    connection.close()


def test_any_number_of_old_runs_is_deleted_and_progress_is_reported(
    runs: list[str], workspace: Workspace, capsys: Capture
) -> None:
    add_runs(workspace.folder / "runs" / "state.db", 5200, day="20200101")

    assert workspace.agent("runs", "gc", "--older-than", "30", "--json") == 0

    out, err = capsys.readouterr()
    assert len(json.loads(out)["deleted"]) == 5200
    assert err == "5,000 runs were deleted so far\n"
    assert listed(workspace, capsys) == {"first", "second", "third"}


@pytest.mark.parametrize("name", ["../../other", "..", "", "/other"])
def test_a_run_id_that_resolves_to_another_folder_deletes_nothing(
    name: str, runs: list[str], workspace: Workspace, tmp_path: Path, capsys: Capture
) -> None:
    """A run store included in a clone may contain such an ID."""
    name = f"{tmp_path}/other" if name == "/other" else name
    (tmp_path / "other").mkdir()
    with sqlite3.connect(workspace.folder / "runs" / "state.db") as connection:
        connection.execute("UPDATE runs SET run_id = ? WHERE run_id = ?", (name, runs[0]))
    connection.close()

    assert workspace.agent("resume", name or "latest", "-q") in (1, 2, 4)
    assert workspace.agent("runs", "show", name or "latest") in (0, 1, 2)
    assert workspace.agent("runs", "gc", "--keep", "0") == 0

    assert (tmp_path / "other").is_dir()
    assert list((tmp_path / "other").iterdir()) == []
    assert workspace.folder.joinpath("runs", runs[2]).is_dir()
    assert listed(workspace, capsys) == {"third"}


def test_an_interrupted_deletion_is_finished_by_the_next_one(
    runs: list[str], workspace: Workspace, capsys: Capture
) -> None:
    folder = workspace.folder / "runs"
    shutil.copytree(folder / runs[0], folder / "copy")
    shutil.copytree(folder / runs[1], folder / "20200101-000000-abcdef")
    assert workspace.agent("runs", "gc", "--keep", "0") == 0
    (folder / "copy").rename(folder / runs[0])  # as if it was killed before the folders were removed
    (folder / ".deleting-1.json").write_text(json.dumps([runs[0], runs[2]]))

    assert workspace.agent("runs", "gc", "--keep", "0") == 0

    # A run that is still there keeps its folder, and so does one of which nothing is known.
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["20200101-000000-abcdef", runs[2]]
    assert not list(folder.glob(".deleting*"))


@pytest.mark.slow
def test_a_long_list_takes_no_more_memory_than_a_short_one(runs: list[str], workspace: Workspace) -> None:
    add_runs(workspace.folder / "runs" / "state.db", 10_000, day="20200101")
    program = (
        "import resource, sys; from metier.cli.main import run\n"
        "assert run(['runs', 'list', '--json', '--limit', sys.argv[1]]) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
    )

    def peak(limit: int) -> tuple[int, int]:
        done = subprocess.run(
            [sys.executable, "-c", program, str(limit)],
            cwd=workspace.folder, capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        return len(json.loads(done.stdout)), int(done.stderr.split()[-1])

    few, little = peak(10)
    many, much = peak(1_000_000)

    assert (few, many) == (10, 10_003)
    assert much < little + 10_000  # kilobytes


def test_gc_requires_an_age_or_a_number_to_keep(workspace: Workspace, capsys: Capture) -> None:
    assert workspace.agent("runs", "gc") == 2

    assert "--keep" in capsys.readouterr().err


def test_a_log_is_rebuilt_from_the_journal(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(calls("script_run", skill_name="greeter", script_name="greet"), says("Greeted."))
    workspace.agent("run", "Greet", "-q")
    log = workspace.folder / "runs" / workspace.run_ids()[0] / "events.jsonl"
    before = [json.loads(line) for line in log.read_text().splitlines()]
    told = [event for event in before if event["entry"]]
    capsys.readouterr()

    assert workspace.agent("runs", "rebuild", "latest", "--json") == 0

    report = json.loads(capsys.readouterr().out)
    after = [json.loads(line) for line in log.read_text().splitlines()]
    assert (report["events"], report["lost"]) == (len(told), len(before) - len(told))
    assert [{**event, "seq": 0} for event in after] == [{**event, "seq": 0} for event in told]


def test_a_lost_or_damaged_log_is_rebuilt(workspace: Workspace, model: ModelServer, capsys: Capture) -> None:
    model.follow(says("Done."))
    workspace.agent("run", "Go", "-q")
    log = workspace.folder / "runs" / workspace.run_ids()[0] / "events.jsonl"
    for damage in (log.unlink, lambda: log.write_text("garbage\n" + "{}\n")):
        damage()

        assert workspace.agent("runs", "rebuild", "latest") == 0

        kinds = [json.loads(line)["event_type"] for line in log.read_text().splitlines()]
        assert (kinds[0], kinds[-1]) == ("run_started", "run_finished")
    assert "rebuilt from the journal" in capsys.readouterr().out
