"""Metier starts its own programs only through one launcher, which confined programs cannot influence."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import program_starts
import pytest
from program_starts import COPIES, INSIDE, LAUNCHER, PAGE, SOURCE, Module, list_modules, list_starts, list_uses

from metier.programs.launcher import SUPERVISOR, USES, Program, use_own_program

pytestmark = pytest.mark.slow

SEARCHING = {
    "programs/code.py": "finds the program that an accepted command line names",
    "programs/search.py": "trusted search",
    "runtime/diagnosis.py": "checks whether the shell of the settings exists, and starts nothing",
    "tools/shell/bash.py": "finds the program that an approval covers, and starts nothing",
    "tools/mcp/server_connection.py": "shows the program of a server to its sandbox",
}


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return list(list_modules())


def test_only_the_launcher_starts_programs(modules: list[Module]) -> None:
    starting = {module.name: list_starts(module) for module in modules if list_starts(module)}

    assert starting.keys() == {LAUNCHER} | INSIDE.keys() | COPIES.keys(), starting


@pytest.mark.parametrize(
    "text",
    [
        "import subprocess\nsubprocess.run(['x'])",
        "from subprocess import Popen as start\nstart(['x'])",
        "import functools, os\nfunctools.partial(os.execvp, 'x')",
        "import anyio\nasync def f(): await anyio.open_process('x')",
        "import multiprocessing as m\nm.get_context('spawn')",
        "import webbrowser\nwebbrowser.open('x')",
        "from asyncio import create_subprocess_shell",
        "import anyio\nimport anyio.to_thread\nasync def f(): await anyio.open_process('x')",
        "import os\nimport os.path\nos.system('x')",
        "import concurrent.futures\nconcurrent.futures.ProcessPoolExecutor()",
        "from mcp.client.stdio import stdio_client",
        "async def f(loop): await loop.subprocess_exec(None, 'x')",
        "def f(buffer): buffer.open_in_editor()",
        "import os\ngetattr(os, 'system')('x')",
        "import os\ndef f(name): getattr(os, name)('x')",
        "import importlib\nimportlib.import_module('subprocess').run('x')",
        "__import__('os').system('x')",
    ],
)
def test_start_that_bypasses_the_launcher_is_detected(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "module.py").write_text(text)
    monkeypatch.setattr(program_starts, "SOURCE", tmp_path)

    (module,) = list_modules()

    assert list_starts(module)


def test_every_row_of_the_launcher_is_used(modules: list[Module]) -> None:
    used = {use for module in modules if module.name != LAUNCHER for use in list_uses(module)}

    assert used == set(USES)


def test_only_the_launcher_builds_program_objects(modules: list[Module]) -> None:
    building = {module.name for module in modules for call in list_calls(module) if call == "Program"}

    assert building == {LAUNCHER}


def test_only_commands_of_the_launcher_run_without_a_confinement(modules: list[Module]) -> None:
    unconfined = {
        module.name
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.keyword) and node.arg == "confinement"
        if isinstance(node.value, ast.Constant) and node.value.value is None
    }

    assert unconfined == {"tools/process/run.py"}


def test_program_without_an_absolute_path_is_refused() -> None:
    with pytest.raises(ValueError, match="'git' is no absolute path"):
        use_own_program(SUPERVISOR, "git", environment={})
    with pytest.raises(ValueError, match="no absolute path"):
        Program(use=SUPERVISOR, command=("./git",), environment={})


def test_programs_are_searched_in_known_folders(modules: list[Module]) -> None:
    searching = {module.name for module in modules if "shutil.which" in module.names}

    assert searching == set(SEARCHING)


def test_the_page_lists_the_programs_of_the_launcher() -> None:
    assert PAGE.read_text(encoding="utf-8") == program_starts.render_page(), "run `./dev docs`"


def test_program_passed_to_an_interpreter_as_text_imports_only_the_standard_library() -> None:
    text = (SOURCE / "tools/shell/line_runner.py").read_text(encoding="utf-8")
    order = json.dumps([["", [[["echo", "read"], []]]]])

    done = subprocess.run([sys.executable, "-I", "-S", "-c", text, order], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("read\n", "")


def list_calls(module: Module) -> list[str]:
    called = (node.func for node in ast.walk(module.tree) if isinstance(node, ast.Call))
    return [function.id for function in called if isinstance(function, ast.Name)]
