"""A skill's process does only what its contract declares."""

import socket
from pathlib import Path

import pytest
from capability_skills import write_skill

from metier import create_agent_adapter, create_executor
from metier.capabilities.protocol import AgentResponse

WRITE = "def execute(c):\n    (c.workspace / c.inputs['file']).write_text('x')\n    return {}\n"
CAUGHT = """
def execute(c):
    try:
        (c.workspace / 'a').write_text('x')
    except OSError:
        pass
    return {}
"""
PROGRAM = "import subprocess\ndef execute(c):\n    subprocess.run(['true'], timeout=5, check=True)\n    return {}\n"
CONNECT = """
import socket
def execute(c):
    socket.create_connection(("127.0.0.1", c.inputs["port"]), timeout=5).close()
    return {}
"""


def invoke(workspace: Path, contract: str, impl: str, **inputs: str | int) -> AgentResponse:
    write_skill(workspace / "skills", "sample", contract=contract, impl=impl)
    return create_agent_adapter(create_executor(workspace)).invoke("sample", dict(inputs), "ctx")


@pytest.mark.parametrize(
    ("contract", "file", "allowed"),
    [
        ("", "a", False),
        ("autonomy_level: suggest\nside_effects: [writes_files]", "a", False),
        ("autonomy_level: implement\nside_effects: [writes_files]", "a", True),
        ("autonomy_level: implement\nside_effects: [network]", "a", False),
        ("autonomy_level: implement\nside_effects: {kinds: [writes_files], paths: [docs/*]}", "docs/a", True),
        ("autonomy_level: implement\nside_effects: {kinds: [writes_files], paths: [docs/*]}", "a", False),
        ("autonomy_level: implement\nside_effects: {kinds: [writes_files], paths: [docs/*]}", "docs/../../a", False),
        ("autonomy_level: commit\nside_effects: [writes_files]", "../a", False),
        ("autonomy_level: commit\nside_effects: [writes_files]", "link/a", False),
    ],
)
def test_files_are_written_only_in_the_paths_of_the_contract(
    workspace: Path, contract: str, file: str, *, allowed: bool
) -> None:
    (workspace / "docs").mkdir()
    (workspace / "link").symlink_to(workspace.parent)

    response = invoke(workspace, contract, WRITE, file=file)

    assert response.state == ("completed" if allowed else "blocked")
    assert (workspace / file).exists() is allowed
    if not allowed:
        assert response.metadata.agent_state_detail == "undeclared_effect"


def test_suggestion_is_written_to_the_run_folder(workspace: Path) -> None:
    impl = "def execute(c):\n    (c.artifacts / 'plan.txt').write_text('x')\n    return {}\n"
    contract = "autonomy_level: suggest\nside_effects: [writes_files]\nrequired_artifacts: [plan.txt]"

    response = invoke(workspace, contract, impl)

    assert response.state == "completed"
    assert Path(response.artifacts[0]).read_text(encoding="utf-8") == "x"


def test_effect_is_blocked_even_if_the_skill_catches_the_denial(workspace: Path) -> None:
    response = invoke(workspace, "", CAUGHT)

    assert response.state == "blocked"
    assert not (workspace / "a").exists()


@pytest.mark.parametrize(
    "change",
    [
        "import os; os.remove(c.workspace / 'kept')",
        "import os; os.rename(c.workspace / 'kept', c.workspace / 'gone')",
        "import os; os.truncate(c.workspace / 'kept', 0)",
        "import os; os.open(c.workspace / 'kept', os.O_WRONLY)",
        "import shutil; shutil.rmtree(c.workspace)",
        "import sqlite3; sqlite3.connect(c.workspace / 'new.db')",
        "import os; os.symlink('kept', c.workspace / 'new')",
        "import os; os.system('true')",
        "import ctypes; ctypes.CDLL(None)",
    ],
)
def test_read_only_skill_cannot_change_anything(workspace: Path, change: str) -> None:
    (workspace / "kept").write_text("kept", encoding="utf-8")

    response = invoke(workspace, "", f"def execute(c):\n    {change}\n    return {{}}\n")

    assert (response.state, response.metadata.agent_state_detail) == ("blocked", "undeclared_effect")
    assert (workspace / "kept").read_text(encoding="utf-8") == "kept"
    assert not (workspace / "new.db").exists()


def test_temporary_files_are_allowed(workspace: Path) -> None:
    impl = """
import tempfile
def execute(c):
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        return {"name": file.name}
"""
    response = invoke(workspace, "", impl)

    assert response.state == "completed"
    assert not Path(str(response.outputs["name"])).parent.exists()


@pytest.mark.parametrize("kind", ["", "runs_programs"])
def test_programs_run_only_if_the_contract_allows_it(workspace: Path, kind: str) -> None:
    contract = f"autonomy_level: implement\nside_effects: [{kind}]"

    assert invoke(workspace, contract, PROGRAM).state == ("completed" if kind else "blocked")


@pytest.mark.parametrize("kind", ["", "network"])
def test_network_is_reached_only_if_the_contract_allows_it(workspace: Path, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])

        response = invoke(workspace, f"side_effects: [{kind}]", CONNECT, port=port)

    assert response.state == ("completed" if kind else "blocked")


def test_environment_of_the_agent_is_not_inherited(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "not-for-skills")
    monkeypatch.setenv("SAMPLE_TOKEN", "for-this-one")
    impl = "import os\ndef execute(c):\n    return {'names': sorted(os.environ)}\n"

    names = invoke(workspace, "permissions:\n  env: [SAMPLE_TOKEN]", impl).outputs["names"]

    assert isinstance(names, list)
    assert "SAMPLE_TOKEN" in names
    assert "OPENAI_API_KEY" not in names
