"""Runs with a journal on PostgreSQL: the same commands, and no password in any output."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import psycopg
import pytest

from metier.cli.main import run
from metier.runtime.diagnosis import examine_difference
from metier.store.postgres.database import read_address
from metier.store.postgres.store import open_postgres_store
from metier.testing.store_case import build_entries, build_run

PASSWORD = "-".join(["hidden", "word"])


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_url: str) -> Path:
    (tmp_path / "notes.md").write_text("# Notes\n\nThe tide was high on Monday.\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENT_SKILLS", "all")
    monkeypatch.setenv("STATE_STORE_BACKEND", "postgres")
    monkeypatch.setenv("DATABASE_URL", postgres_url.replace("postgres@", f"postgres:{PASSWORD}@"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_run_on_postgres_can_be_shown_listed_and_replayed(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "--provider", "offline", "inventory the workspace"]) == 0
    capsys.readouterr()

    assert run(["runs", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert run(["runs", "show", "latest"]) == 0
    assert run(["replay", "latest"]) == 0
    assert run(["doctor"]) == 0
    told = capsys.readouterr()

    assert "completed" in json.dumps(listed)
    assert not (workspace / "runs" / "state.db").exists()
    assert "answers" in told.out
    assert PASSWORD not in told.out + told.err


def test_doctor_reports_the_server_clock_and_folders_of_unknown_runs(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "--provider", "offline", "inventory the workspace", "-q"]) == 0
    (known,) = (workspace / "runs").glob("2*")
    shutil.copytree(known, known.with_name("20260101-000000-00aa"))
    capsys.readouterr()

    assert run(["doctor", "--json"]) == 0

    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert found["clock"]["state"] == "ok"
    assert re.fullmatch(r"the server is 0\.\d\d s (ahead of|behind) this machine \(± .* s\)", found["clock"]["detail"])
    assert "1 (20260101-000000-00aa)" in found["orphans"]["detail"]


def test_a_clock_that_differs_from_the_server_clock_is_a_problem() -> None:
    apart = examine_difference(-7.25, doubt=0.01)

    assert (apart.state, apart.detail) == ("problem", "the server is 7.25 s behind this machine (± 0.01 s)")
    assert "time service" in apart.hint


def test_an_unreachable_server_is_named_without_its_password(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgresql://me:{PASSWORD}@127.0.0.1:1/db")

    assert run(["run", "--provider", "offline", "inventory the workspace"]) == 1

    told = capsys.readouterr()
    assert "The run store 'postgresql://me@127.0.0.1:1/db' doesn't answer" in told.err
    assert PASSWORD not in told.out + told.err


async def leave_runs(url: str, *run_ids: str, waiting: str) -> None:
    """Create runs that ended long ago, each with a journal, and one that still waits."""
    store = await open_postgres_store(read_address("DATABASE_URL", {"DATABASE_URL": url}))
    for run_id in (*run_ids, waiting):
        row = build_run(run_id)
        status = "paused" if run_id == waiting else "completed"
        await store.create_run(replace(row, status=status), build_entries(1, 3))
    await store.close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE agent_runs SET updated_at = '2020-02-01' WHERE run_id LIKE '2020%'")


def find_days(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE tablename ~ '^agent_journal_[0-9]+$'")
        return sorted(str(name).removeprefix("agent_journal_") for (name,) in rows)


def test_old_runs_are_deleted_by_dropping_the_tables_of_their_days(
    workspace: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old = ("20200101-000000-aa", "20200101-000001-bb", "20200103-000000-cc", "20200104-000000-dd")
    waiting = "20200104-000000-ee"
    anyio.run(partial(leave_runs, waiting=waiting), postgres_url, *old)
    assert run(["run", "--provider", "offline", "inventory the workspace", "-q"]) == 0
    (today,) = (workspace / "runs").glob("2*")
    assert find_days(postgres_url) == ["20200101", "20200103", "20200104", today.name[:8]]
    capsys.readouterr()

    assert run(["runs", "gc", "--older-than", "30", "--json"]) == 0

    assert sorted(json.loads(capsys.readouterr().out)["deleted"]) == sorted(old)
    # The day of a run that waits keeps its table, with the entries of that run alone.
    assert find_days(postgres_url) == ["20200104", today.name[:8]]
    with psycopg.connect(postgres_url) as connection:
        left = connection.execute("SELECT DISTINCT run_id FROM agent_journal ORDER BY run_id").fetchall()
    assert left == [(waiting,), (today.name,)]
    assert run(["replay", "latest"]) == 0
