"""An accepted server with code in the workspace never runs files written by sandboxed programs."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp_workspace import accept, define
from model_server import ModelServer, calls, says
from run_workspace import QUICK, Workspace, use_model

from metier.tools.mcp.server_connection import get_server_code
from metier.tools.mcp.servers import ServerDefinition
from metier.tools.process.sandbox.bubblewrap import get_bubblewrap
from metier.tools.process.sandbox.levels import try_level

SERVER = Path(__file__).parent / "prying_mcp_server.py"
REWRITE = """import os, sys
os.chdir(sys.argv[1])
for path in sys.argv[2:]:
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        text = open(path).read() if os.path.exists(path) else ""
        open(path, "w").write("open('../escaped', 'w').close()\\n" + text)
    except OSError as error:
        print(error)
"""


@pytest.fixture
def serving(workspace: Workspace, model: ModelServer) -> Workspace:
    """The profile `guarded` confines programs but not servers. Skips without bubblewrap."""
    trial = try_level("full", get_bubblewrap(os.environ, workspace.folder))
    if not trial.works:
        pytest.skip(f"sandbox level 'full' cannot be shown here: {trial.summary}")
    workspace.configure(model=use_model(model), runtime={**QUICK, "profile": "guarded"})
    workspace.write(
        ".agent/policy.yaml", "rules:\n  - {tool: script_run, allow: true}\n  - {tool: pry/pry, allow: true}\n"
    )
    workspace.add_skill("rewriter", "Rewrite files with a script.", rewrite=REWRITE)
    (workspace.folder / "server").mkdir()
    shutil.copy(SERVER, workspace.folder / "server/main.py")
    return workspace


def rewrite_then_call(model: ModelServer, workspace: Workspace, *paths: str) -> None:
    arguments = [str(workspace.folder), *paths]
    model.follow(
        calls("script_run", skill_name="rewriter", script_name="rewrite", args=arguments, json=False),
        calls("pry___pry"),
        says("Done."),
    )


def get_result(model: ModelServer) -> str:
    return str(model.received[-1]["messages"][-1]["content"])


def has_escaped(workspace: Workspace) -> bool:
    return (workspace.folder.parent / "escaped").exists()


@pytest.mark.parametrize("path", ["server/main.py", "server/json.py"])
def test_a_program_cannot_rewrite_the_code_of_an_unsandboxed_server(
    serving: Workspace, model: ModelServer, path: str
) -> None:
    accept(serving, pry={"command": sys.executable, "args": ["server/main.py"]})
    rewrite_then_call(model, serving, path)

    assert serving.agent("run", "Do it", "-q") == 0

    assert not has_escaped(serving)
    assert '"out"' in get_result(model).replace("\\", ""), "the server did not answer"


def test_files_that_changed_between_runs_are_accepted_again(
    serving: Workspace, model: ModelServer, capsys: pytest.CaptureFixture[str]
) -> None:
    accept(serving, pry={"command": sys.executable, "args": ["server/main.py"]})
    main = serving.folder / "server/main.py"
    main.write_text("open('../escaped', 'w').close()\n" + main.read_text())
    model.follow(calls("pry___pry"), says("Done."))

    assert serving.agent("run", "Do it", "-q") == 0

    assert not has_escaped(serving)
    assert "changed since it was accepted" in get_result(model)
    capsys.readouterr()
    assert serving.agent("mcp", "list", "--json") == 1
    assert "changed since it was accepted" in json.loads(capsys.readouterr().out)[0]["problem"]
    assert not has_escaped(serving)
    assert serving.agent("mcp", "accept", "pry", "--yes") == 0
    model.follow(calls("pry___pry"), says("Done."))
    assert serving.agent("run", "Do it", "-q") == 0
    assert '"out"' in get_result(model).replace("\\", "")


@pytest.mark.parametrize(
    ("definition", "rewritten"),
    [
        ({"command": sys.executable, "args": ["main.py"]}, ["main.py", "json.py"]),
        ({"command": sys.executable, "args": ["-m", "main"]}, ["main.py"]),
        ({"command": sys.executable, "args": ["server/main.py"], "env": {"PYTHONPATH": "."}}, ["json.py"]),
    ],
)
def test_a_server_that_can_run_any_workspace_code_is_sandboxed_like_a_program(
    serving: Workspace,
    model: ModelServer,
    capsys: pytest.CaptureFixture[str],
    definition: dict[str, object],
    rewritten: list[str],
) -> None:
    shutil.copy(SERVER, serving.folder / "main.py")
    accept(serving, pry=definition)
    rewrite_then_call(model, serving, *rewritten)

    assert serving.agent("run", "Do it", "-q") == 0

    assert not has_escaped(serving)
    capsys.readouterr()
    serving.agent("mcp", "list", "--json", "--no-start")
    assert json.loads(capsys.readouterr().out)[0]["sandbox"] == "full"


NAMED = [
    ({"command": "/opt/unknown", "args": ["lib/main"]}, "lib/main"),
    ({"command": "/opt/unknown", "args": ["--load=lib/main"]}, "lib/main"),
    ({"command": "/opt/unknown", "args": ["lib"]}, "lib"),
    ({"command": "perl", "args": ["-Ilib", "/opt/server"]}, "lib"),
    ({"command": "perl", "args": ["-I", "lib", "/opt/server"]}, "lib"),
    ({"command": "env", "args": ["-S", "unknown -I lib /opt/server"]}, "lib"),
    ({"command": "env", "args": ["-S", "A=b unknown lib/main"]}, "lib/main"),
    ({"command": "sh", "args": ["-c", "exec unknown 'lib/main'"]}, "lib/main"),
    ({"command": "java", "args": ["-cp", "/opt/x.jar:lib", "Main"]}, "lib"),
    ({"command": "/opt/unknown", "args": ["@lib/main"]}, "lib/main"),
    ({"command": "/opt/unknown", "args": ["--load", "$LIB/main"], "env": {"LIB": "lib"}}, "lib"),
    ({"command": "/opt/unknown", "env": {"SOME_PLUGINS": "/opt/plugins:lib"}}, "lib"),
    ({"command": "/opt/unknown", "env": {"SOME_OPTIONS": "--load lib/main"}}, "lib/main"),
]


@pytest.mark.parametrize(("definition", "path"), NAMED)
def test_every_file_and_folder_named_in_a_definition_counts_as_its_code(
    definition: dict[str, Any], path: str, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/main").write_text("data")
    server = ServerDefinition(name="x", **definition)

    code = get_server_code(server, os.environ, writable=[tmp_path.resolve()])
    before = code.digest()
    (tmp_path / "lib/main").write_text("evil")

    assert tmp_path / path in code.roots
    assert code.digest() != before


@pytest.mark.parametrize(("arguments", "is_open"), [(["."], False), (["-I", "."], True), (["-I."], True)])
def test_the_whole_workspace_is_code_only_with_certain_options(
    arguments: list[str], is_open: bool, tmp_path: Path
) -> None:
    server = ServerDefinition(name="x", command="/opt/unknown", args=tuple(arguments))

    found = get_server_code(server, os.environ, writable=[tmp_path.resolve()])

    assert (found.roots, found.is_open) == ((), is_open)


def test_an_unsandboxed_server_with_access_to_workspace_code_is_not_started(
    serving: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_MCP_OUTSIDE_SANDBOX", "pry")
    shutil.copy(SERVER, serving.folder / "main.py")
    accept(serving, pry={"command": sys.executable, "args": ["main.py"]})
    rewrite_then_call(model, serving, "main.py")

    assert serving.agent("run", "Do it", "-q") == 0

    assert not has_escaped(serving)
    assert "may run any code of the workspace" in get_result(model)


def test_a_server_outside_the_workspace_is_started_as_before(serving: Workspace, model: ModelServer) -> None:
    accept(serving, pry={"command": sys.executable, "args": [str(SERVER), "."]})
    rewrite_then_call(model, serving, "json.py")

    assert serving.agent("run", "Do it", "-q") == 0

    assert not has_escaped(serving)
    assert '"home": true' in get_result(model).replace("\\", "") or '"out"' in get_result(model).replace("\\", "")


def test_an_acceptance_of_an_older_version_is_renewed_for_workspace_code(
    serving: Workspace, model: ModelServer
) -> None:
    accept(serving, pry={"command": sys.executable, "args": ["server/main.py"]})
    (file,) = (serving.folder.parent / "home/.agent/mcp").glob("*.json")
    older = json.loads(file.read_text())
    del older["code"]
    file.write_text(json.dumps(older))
    define(serving, pry={"command": sys.executable, "args": ["server/main.py"]})
    model.follow(calls("pry___pry"), says("Done."))

    assert serving.agent("run", "Do it", "-q") == 0

    assert "changed since it was accepted" in get_result(model)


def test_an_unsandboxed_server_finds_no_program_in_the_workspace(
    serving: Workspace, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = serving.folder
    monkeypatch.setenv("PATH", f"{folder}/.venv/bin:{os.environ['PATH']}")
    serving.write(".venv/pyvenv.cfg", "home = /usr/bin\n")
    start = folder.parent / "start.sh"
    start.write_text(f"#!/bin/sh\nhelper-of-mine\nexec '{sys.executable}' '{SERVER}' .\n")
    start.chmod(0o755)
    planting = f"import os\nos.makedirs('{folder}/.venv/bin')\npath = '{folder}/.venv/bin/helper-of-mine'\n"
    planting += f"open(path, 'w').write('#!/bin/sh\\n: > {folder.parent}/escaped\\n')\nos.chmod(path, 0o755)\n"
    serving.add_skill("planter", "Plant a program.", plant=planting)
    accept(serving, pry={"command": str(start)})
    model.follow(
        calls("script_run", skill_name="planter", script_name="plant", json=False), calls("pry___pry"), says("Done.")
    )

    assert serving.agent("run", "Do it", "-q") == 0

    assert (folder / ".venv/bin/helper-of-mine").exists(), "the program could not write what the test is about"
    assert not has_escaped(serving)
    assert '"out"' in get_result(model).replace("\\", ""), "the server did not answer"
