"""The container and compose files: valid syntax, existing commands and settings."""

import json
import re
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote
from threading import Barrier
from typing import Any, cast

import httpx2
import psycopg
import pytest
import yaml
from model_server import ModelServer, says
from packaging.requirements import Requirement
from run_workspace import Workspace
from running_server import RunningServer, serving, serving_process
from test_api_runs import WRITE, start, streaming, wait_until
from test_security import configure_server

from metier.cli.root import load_command
from metier.settings.keys import all_leaves, variables_of

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OWN = {
    "AGENT_RESUME_SECRET", "AGENT_SERVER_SECRET", "AGENT_SERVER_TOKEN", "CELERY_BROKER_URL", "DATABASE_URL",
    "HOME", "PGPASSWORD",
}  # fmt: skip
"""Variables that are no settings."""


def read_instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def read_services() -> dict[str, dict[str, Any]]:
    return cast("dict[str, dict[str, Any]]", yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"])


def check_command(words: list[str]) -> None:
    """Check that the command and its options exist, without running it."""
    command = load_command(words[0])
    known = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in words[1:] if word.startswith("--")} <= known, words


def test_the_container_file_uses_known_instructions_and_existing_commands() -> None:
    found = read_instructions()
    names = [name for name, _ in found]
    known = {"FROM", "RUN", "COPY", "USER", "WORKDIR", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}

    assert (names[0], set(names) - known) == ("FROM", set())
    by_name = dict(found)
    assert re.fullmatch(r"docker\.io/library/python:3\.12-slim@sha256:[0-9a-f]{64}", by_name["FROM"])
    assert (json.loads(by_name["ENTRYPOINT"]), by_name["USER"]) == (["agent"], "agent")
    check_command(json.loads(by_name["CMD"]))
    for copied in re.findall(r"^COPY (.*)$", "\n".join(f"{name} {rest}" for name, rest in found), re.MULTILINE):
        assert all((DEPLOY.parent / source).exists() for source in copied.split()[:-1])
    wanted = re.search(r"/src\[([a-z,]+)\]", by_name["RUN"])
    assert wanted is not None
    assert set(wanted[1].split(",")) <= set(
        re.findall(r"^(\w+) = \[", (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE)
    )


def test_services_of_the_compose_file_have_an_exact_version() -> None:
    images = {name: read_services()[name]["image"] for name in ("postgres", "redis")}

    assert re.fullmatch(r"docker\.io/library/postgres:17\.\d+(@sha256:[0-9a-f]{64})?", images["postgres"])
    assert re.fullmatch(r"docker\.io/library/redis:7\.\d+\.\d+(@sha256:[0-9a-f]{64})?", images["redis"])


def test_the_compose_file_uses_existing_commands_settings_and_services() -> None:
    services = read_services()
    settings = {name for key in all_leaves() for name in variables_of(key)} | OWN

    assert {"server", "worker", "postgres", "redis"} == services.keys()
    for name in ("server", "worker"):
        service = services[name]
        check_command([str(word) for word in service["command"]])
        assert set(service["environment"]) <= settings
        assert set(service["depends_on"]) <= services.keys()
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_the_compose_server_starts_with_its_environment_and_drives_no_runs(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {name: str(value) for name, value in read_services()["server"]["environment"].items()}
    token = "a-token-for-the-test"
    wanted = {**environ, "AGENT_SERVER_SECRET": "s" * 32, "AGENT_SERVER_TOKEN": token}
    for name in (
        "AGENT_STORE_BACKEND",
        "DATABASE_URL",
        "PGPASSWORD",
        "HOME",
        "CELERY_BROKER_URL",
        "AGENT_RESUME_SECRET",
    ):
        del wanted[name]
    wanted["AGENT_SERVER_ALLOWED_HOSTS"] = "localhost:8321"

    with serving_process(workspace.folder, "--host", "0.0.0.0", **wanted) as served:
        near = RunningServer(url=served.running.url.replace("0.0.0.0", "127.0.0.1"), token=token)
        with near.client() as client:
            metrics = client.get("/api/v1/metrics")
            elsewhere = client.get("/api/v1/health", headers={"host": "evil.example"})

    assert "metier_pool_slots 0" in metrics.text
    assert elsewhere.status_code == 421


def test_two_servers_on_postgresql_stream_each_others_runs(
    workspace: Workspace, model: ModelServer, postgres_url: str, tmp_path: Path
) -> None:
    """The second server is on another machine, with another folder and no event log of the run."""
    other = Workspace(tmp_path / "other")
    other.folder.mkdir()
    text = (workspace.folder / "agent.yaml").read_text()
    (other.folder / "agent.yaml").write_text(text)
    model.follow(says("From the first."))
    shared = {"DATABASE_URL": postgres_url, "AGENT_STORE_BACKEND": "postgres", "AGENT_RESUME_SECRET": "r" * 40}
    idle = {**shared, "AGENT_SERVER_CONCURRENCY": "0"}
    with serving(workspace.folder, **shared) as first, serving(other.folder, **idle) as second:
        run_id = start(second)
        with streaming(second, run_id) as events:
            seen = [event["event"] for event in events]
        found = wait_until(first, run_id, "completed")

    assert (seen[0], seen[-1]) == ("run_started", "end")
    assert "run_finished" in seen
    assert found["result"] == "From the first."


def test_approval_decided_by_two_servers_concurrently_has_one_decision_and_one_effect(
    workspace: Workspace, model: ModelServer, postgres_url: str
) -> None:
    model.follow(WRITE, says("Written."))
    shared = {"DATABASE_URL": postgres_url, "AGENT_STORE_BACKEND": "postgres", "AGENT_RESUME_SECRET": "r" * 40}
    with serving(workspace.folder, **shared) as first, serving(workspace.folder, **shared) as second:
        run_id = start(first, "write a note", profile="guarded")
        wait_until(second, run_id, "paused")
        (waiting,) = second.get("/api/v1/approvals")["items"]
        ready = Barrier(4)

        def decide(server: RunningServer, decision: str) -> tuple[str, int]:
            with server.client() as client:
                ready.wait()
                path = f"/api/v1/approvals/{waiting['approval_id']}/{decision}"
                return decision, client.post(path, json={"hash": waiting["hash"]}).status_code

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(decide, (first, first, second, second), ("approve", "deny", "approve", "deny")))
        wait_until(first, run_id, "completed")
        events = [json.loads(line) for line in find_log(workspace, run_id).read_text().splitlines()]

    accepted = {decision for decision, status in answers if status < 400}
    decided = [event for event in events if event["event_type"] == "approval_decided"]
    assert (len(accepted), len(decided)) == (1, 1), answers
    assert len([event for event in events if event["event_type"] == "step_started"]) == (accepted == {"approve"})


def find_log(workspace: Workspace, run_id: str) -> Path:
    return workspace.folder / "runs" / run_id / "events.jsonl"


def end_listening(postgres_url: str) -> None:
    """End the connection that listens for journal entries. A page may show events before its server listens."""
    deadline = time.monotonic() + 100
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        while not connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
            " AND datname = current_database()"
        ).fetchall():
            assert time.monotonic() < deadline, "the page was told by the server that keeps the runs"
            time.sleep(0.02)


def test_a_page_of_another_server_continues_when_its_listening_connection_is_lost(
    workspace: Workspace, model: ModelServer, postgres_url: str, tmp_path: Path
) -> None:
    other = Workspace(tmp_path / "other")
    other.folder.mkdir()
    (other.folder / "agent.yaml").write_text((workspace.folder / "agent.yaml").read_text())
    model.follow(WRITE, says("Written."))
    shared = {"DATABASE_URL": postgres_url, "AGENT_STORE_BACKEND": "postgres", "AGENT_RESUME_SECRET": "r" * 40}
    idle = {**shared, "AGENT_SERVER_CONCURRENCY": "0"}
    seen: list[str] = []
    with serving(workspace.folder, **shared) as first, serving(other.folder, **idle) as second:
        run_id = start(first, "write a note", profile="guarded")
        with streaming(second, run_id) as events:
            for event in events:
                seen.append(event["event"])
                if event["event"] == "run_paused":
                    wait_until(first, run_id, "paused")
                    end_listening(postgres_url)
                    (waiting,) = first.get("/api/v1/approvals")["items"]
                    first.post(f"/api/v1/approvals/{waiting['approval_id']}/approve", {"hash": waiting["hash"]})

    assert (seen[0], seen[-1]) == ("run_started", "end")
    assert seen.count("run_finished") == seen.count("run_paused") == seen.count("run_started") == 1


def test_the_server_works_below_a_proxy_path_and_trusts_only_named_proxies(
    workspace: Workspace,
) -> None:
    configure_server(workspace, root_path="/agent", allowed_hosts=["agents.example.org"], trusted_proxies=["127.0.0.1"])
    headers = {"host": "agents.example.org", "x-forwarded-proto": "https", "x-forwarded-for": "203.0.113.9"}
    with (
        serving(workspace.folder) as server,
        httpx2.Client(base_url=server.url, headers=headers, trust_env=False) as proxy,
    ):
        page = proxy.get("/agent/login")
        signed = proxy.post("/agent/login", data={"token": server.token, "next": "/runs"})
        bearer = {"authorization": f"Bearer {server.token}"}
        found = [proxy.get(f"{root}/api/v1/runs", headers=bearer).status_code for root in ("/agent", "")]
        outside = proxy.get("/agent/runs", headers={"accept": "text/html"})

    assert 'action="/agent/login"' in page.text
    assert (signed.status_code, signed.headers["location"]) == (303, "/agent/runs")
    assert all(word in signed.headers["set-cookie"] for word in ("Secure", "Path=/agent", "HttpOnly"))
    assert found == [200, 200]
    assert outside.headers["location"] == "/agent/login?next=/runs"


def test_forwarded_headers_of_other_hosts_are_ignored(workspace: Workspace) -> None:
    configure_server(workspace, trusted_proxies=["192.0.2.1"])
    with serving(workspace.folder) as server, server.client("") as client:
        signed = client.post("/login", data={"token": server.token}, headers={"x-forwarded-proto": "https"})

    assert "Secure" not in signed.headers["set-cookie"]


@pytest.mark.parametrize("name", ["serve", "worker"])
def test_systemd_units_start_existing_commands_without_privileges(name: str) -> None:
    lines = (DEPLOY / f"agent-{name}@.service").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))

    check_command(settings["ExecStart"].split()[1:])
    assert (settings["User"], settings["NoNewPrivileges"], settings["ProtectSystem"]) == ("agent", "yes", "strict")
    assert settings["CapabilityBoundingSet"] == ""
    # The workspace is all that it may change beside its own state.
    assert settings["ReadWritePaths"] == settings["WorkingDirectory"] == "%f"


def test_build_context_contains_only_files_copied_by_the_container_file() -> None:
    lines = (DEPLOY.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    sent = {line.removeprefix("!") for line in patterns if line.startswith("!")}

    copied = {source for name, rest in read_instructions() if name == "COPY" for source in rest.split()[:-1]}
    assert patterns[0] == "*"
    assert copied <= sent
    assert not {line for line in sent if line.startswith((".env", "runs", ".git/"))}


def test_lock_versions_constrain_the_image() -> None:
    (install,) = [rest for name, rest in read_instructions() if name == "RUN" and "pip install" in rest]
    script = install.partition(" > ")[0].replace(
        "/src/requirements.lock", quote(str(DEPLOY.parent / "requirements.lock"))
    )

    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)

    constraints = [Requirement(line) for line in done.stdout.splitlines()]
    assert len(constraints) == len(
        re.findall(r"^[a-z].*==", (DEPLOY.parent / "requirements.lock").read_text(), re.MULTILINE)
    )
    assert not [each for each in constraints if each.extras], "pip refuses constraints with extras"


def test_password_of_the_database_needs_no_escaping() -> None:
    environ = read_services()["worker"]["environment"]

    assert "POSTGRES_PASSWORD" not in environ["DATABASE_URL"]
    assert environ["PGPASSWORD"].startswith("${POSTGRES_PASSWORD")
