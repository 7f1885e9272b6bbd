"""`agent serve` as a process: its output, access and shutdown."""

import json
import stat
import subprocess
import sys

import pytest
from run_workspace import Workspace
from running_server import RunningServer, serving_process


@pytest.mark.slow
def test_serve_prints_one_line_and_writes_a_token_readable_only_by_its_user(workspace: Workspace) -> None:
    with serving_process(workspace.folder) as served:
        mode = stat.S_IMODE(served.token_file.stat().st_mode)
        folder_mode = stat.S_IMODE(served.token_file.parent.stat().st_mode)
        health = served.running.get("/api/v1/health")

        assert (mode, folder_mode, health["status"]) == (0o600, 0o700, "ok")

        served.process.terminate()
        stdout, stderr = served.process.communicate(timeout=100)

        assert (served.process.returncode, stdout, stderr) == (0, "", "")
        assert not served.token_file.exists()


@pytest.mark.slow
def test_several_processes_share_one_address_and_all_end_with_the_first(workspace: Workspace) -> None:
    # Each process is `python -c "from multiprocessing…"` in this folder, and must not find this one.
    workspace.write("multiprocessing.py", "open('escaped', 'w')\n")
    with serving_process(workspace.folder, "--workers", "2") as served:
        for _ in range(8):
            assert served.running.get("/api/v1/health")["status"] == "ok"
        served.process.terminate()
        served.process.communicate(timeout=60)

        assert served.process.returncode == 0
    assert not (workspace.folder / "escaped").exists()


def test_a_public_address_requires_named_hosts_and_users(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert workspace.agent("serve", "--host", "0.0.0.0", "--port", "0") == 2
    assert "no host is named" in capsys.readouterr().err

    settings = json.loads((workspace.folder / "agent.yaml").read_text())
    workspace.configure(**settings, server={"allowed_hosts": ["agents.example.org"]})

    assert workspace.agent("serve", "--host", "0.0.0.0", "--port", "0") == 2
    assert "no user has a token" in capsys.readouterr().err


def test_a_request_without_a_token_is_refused(server: RunningServer) -> None:
    with server.client(token="") as client:
        answer = client.get("/api/openapi.json")

    problem = answer.json()
    assert (answer.status_code, problem["code"], answer.headers["content-type"]) == (
        401,
        "token_missing",
        "application/problem+json",
    )


def test_other_commands_import_nothing_of_the_server(workspace: Workspace) -> None:
    code = (
        "import sys\n"
        "from metier.cli.main import run\n"
        "assert run(['--help']) == 0\n"
        "assert run(['run', '--provider', 'offline', '--dry-run', 'greet me']) == 0\n"
        "unwanted = ('metier.server', 'fastapi', 'starlette', 'uvicorn', 'jinja2')\n"
        "heavy = [name for name in sys.modules if name.startswith(unwanted)]\n"
        "assert not heavy, heavy\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
