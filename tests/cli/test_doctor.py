"""`agent doctor` reports what works on this machine and no secrets."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from metier.cli.main import run


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    for folder in (work, home):
        folder.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(home))
    for name in ("ANTHROPIC_API_KEY", "DATABASE_URL", "XDG_CONFIG_HOME", "AGENT_MODEL_PROVIDER"):
        monkeypatch.delenv(name, raising=False)


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    assert run(["doctor", "--json"]) == 0
    return {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_doctor_reports_missing_provider_settings_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor"]) == 0

    out = capsys.readouterr().out
    assert "[!!] anthropic" in out
    assert "ANTHROPIC_API_KEY not set" in out
    assert 'Set the key: export ANTHROPIC_API_KEY="…"' in out
    assert "--provider offline" in out


def test_doctor_reports_that_a_key_is_set_without_showing_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "very-" + "secret-value-123")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:" + "hidden-word@127.0.0.1:1/db")

    assert run(["doctor"]) == 0

    out = capsys.readouterr().out
    assert "ANTHROPIC_API_KEY set (chosen" in out
    assert "secret-value" not in out
    assert "hidden-word" not in out


def test_resume_secret_is_mentioned_if_machines_share_a_database(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "doctor-" * 6
    monkeypatch.delenv("AGENT_RESUME_SECRET", raising=False)
    assert "resume key" not in findings(capsys)

    monkeypatch.setenv("STATE_STORE_BACKEND", "postgres")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me@127.0.0.1:1/db")
    unset = findings(capsys)["resume key"]
    monkeypatch.setenv("AGENT_RESUME_SECRET", "short")
    short = findings(capsys)["resume key"]
    monkeypatch.setenv("AGENT_RESUME_SECRET", secret)
    given = findings(capsys)["resume key"]

    assert (unset["state"], unset["detail"].startswith("AGENT_RESUME_SECRET not set")) == ("off", True)
    assert (short["state"], "shorter than 32 characters" in short["detail"]) == ("problem", True)
    assert given == {
        "area": "store",
        "name": "resume key",
        "state": "ok",
        "detail": "AGENT_RESUME_SECRET set",
        "hint": "",
    }


def test_offline_provider_needs_no_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "offline")

    found = findings(capsys)

    assert found["offline"]["state"] == "ok"
    assert found["anthropic"]["state"] == "off"


def test_doctor_names_the_shell_with_its_mode(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_RUNTIME_SHELL_LINUX", "/no/such/shell")
    monkeypatch.setenv("SHELL_TOOL_MODE", "allowlist")
    assert findings(capsys)["shell"]["detail"] == "/no/such/shell not found, mode allowlist"

    monkeypatch.setenv("SHELL_TOOL_MODE", "off")
    assert findings(capsys)["shell"]["state"] == "off"


def test_doctor_detects_a_local_model_server_with_a_request(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "openai")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AGENT_MODEL_PROVIDERS_OPENAI_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        reachable = findings(capsys)["openai"]
    unreachable = findings(capsys)["openai"]

    assert reachable["state"] == "ok"
    assert unreachable["state"] == "problem"
    assert "Nothing answers at http://127.0.0.1/v1" in unreachable["hint"]


def test_doctor_tests_the_sandbox_by_using_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys)

    for name, level in (("bubblewrap", "full"), ("landlock", "kernel")):
        detail = found[name]["detail"]
        assert detail.startswith(f"level '{level}', ")
        assert ("tried: 9 ways out refused" in detail) is (found[name]["state"] == "ok")
        assert bool(found[name]["hint"]) is (found[name]["state"] != "ok")
    assert found["use"]["detail"] == "none (profile 'permissive', sandbox.use 'auto')"
    assert found["limits"]["detail"].startswith("in every profile: 256 processes a program; each: cpu 600 s")


def test_unreadable_folder_in_path_is_skipped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # The name is too long for a file system: root could read any folder that exists.
    monkeypatch.setenv("PATH", f"/{'x' * 300}/bin{os.pathsep}{os.environ['PATH']}")

    assert findings(capsys)["limits"]["state"] == "ok"


def test_doctor_names_a_read_only_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("AGENT_LOGGING_JSONL_DIR", str(tmp_path / "file" / "runs"))

    assert findings(capsys)["runs"]["state"] == "problem"


def test_invalid_settings_are_one_finding_with_every_problem(capsys: pytest.CaptureFixture[str]) -> None:
    Path("agent.yaml").write_text("modle: {}\nruntime: {max_turns: many}\n", encoding="utf-8")

    assert run(["doctor"]) == 2

    shown = capsys.readouterr()
    assert "[!!] file" in shown.out
    assert "agent.yaml:1" in shown.out
    assert "agent.yaml:2" in shown.out
    assert "file: Correct the settings" in shown.out
    assert shown.err == ""


def test_a_model_server_from_the_environment_needs_no_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "openai")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}/v1")
        reachable = findings(capsys)["openai"]
    unreachable = findings(capsys)["openai"]

    assert (reachable["state"], reachable["hint"]) == ("ok", "")
    assert (unreachable["state"], unreachable["hint"]) == ("problem", "Nothing answers at http://127.0.0.1/v1")


@pytest.mark.parametrize("text", ["model: [1\n", "model: {provider: nope}\n", "\x00"])
def test_invalid_settings_do_not_stop_the_other_checks(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("agent.yaml").write_text(text, encoding="utf-8")

    assert run(["doctor", "--json"]) == 2

    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert (found["file"]["area"], found["file"]["state"]) == ("settings", "problem")
    assert "agent.yaml" in found["file"]["detail"]
    assert {"python", "git", "skills"} < found.keys()


def test_a_damaged_database_is_a_problem_with_a_hint(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "offline")
    assert run(["run", "inventory the workspace", "-q"]) in (0, 1)
    capsys.readouterr()
    assert findings(capsys)["integrity"]["state"] == "ok"
    database = Path("runs/state.db")
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE journal SET data = CAST('{}' AS BLOB) WHERE seq = 2")
    connection.close()

    changed = findings(capsys)["integrity"]
    data = bytearray(database.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    database.write_bytes(data)
    broken = findings(capsys)["integrity"]

    assert (changed["state"], broken["state"]) == ("problem", "problem")
    assert "Entry 2 of run" in changed["detail"]
    assert "is damaged" in broken["detail"]
    assert "backup" in changed["hint"]
    assert "backup" in broken["hint"]


def test_doctor_reports_store_space_and_lease_clock(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").mkdir()

    found = findings(capsys)

    assert "MB free, without a reserve" in found["space"]["detail"]
    assert "timed by" in found["leases"]["detail"]


def test_a_run_missing_from_the_store_and_one_without_a_folder_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MODEL_PROVIDER", "offline")
    for _ in range(3):
        assert run(["run", "inventory the workspace", "-q"]) in (0, 1)
    capsys.readouterr()
    whole = findings(capsys)
    lost, bare, deleted = sorted(path.name for path in Path("runs").glob("2*"))
    with sqlite3.connect("runs/state.db") as connection:
        connection.execute("DELETE FROM runs WHERE run_id IN (?, ?)", (lost, deleted))
    connection.close()
    shutil.rmtree(Path("runs") / bare)
    # A deletion that was cut short names its runs: their folders go with the next one.
    Path("runs/.deleting-1.json").write_text(json.dumps([deleted]), encoding="utf-8")
    (Path("runs") / "20260101-000000-00aa").mkdir()

    found = findings(capsys)

    assert whole["orphans"]["state"] == "ok"
    assert "bare runs" not in whole
    assert found["orphans"]["state"] == found["bare runs"]["state"] == "problem"
    assert f"1 ({lost})" in found["orphans"]["detail"]
    assert "backup" in found["orphans"]["hint"]
    assert f"1 ({bare})" in found["bare runs"]["detail"]
    assert run(["runs", "rebuild", bare]) == 0
    capsys.readouterr()
    assert "bare runs" not in findings(capsys)


def test_uv_in_the_environment_of_the_agent_is_found_without_its_python_package(tmp_path: Path) -> None:
    """A package manager other than pip may install the program alone."""
    environment = tmp_path / "environment"
    venv.create(environment, symlinks=True)
    packages = Path(sysconfig.get_path("purelib"))
    copied = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    for path in packages.iterdir():
        if path.name.partition("-")[0] != "uv":
            (copied / path.name).symlink_to(path)
    uv = environment / "bin/uv"
    uv.write_text("#!/bin/sh\necho uv 9.8.7\n")
    uv.chmod(0o755)

    command = [environment / "bin/python", "-c", "from metier.cli.main import main; main()", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=120)

    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert (found["uv"]["state"], found["uv"]["detail"]) == ("ok", "uv 9.8.7")
