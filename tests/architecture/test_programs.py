"""Every program that Metier starts for itself is known, and found in a way that no confined program can influence."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "metier"

STARTING = frozenset({
    "anyio.open_process", "anyio.run_process", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell",
    "subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "os.system", "os.popen", "os.posix_spawn", "os.posix_spawnp", "os.execl", "os.execle", "os.execlp", "os.execlpe",
    "os.execv", "os.execve", "os.execvp", "os.execvpe", "os.startfile", "pty.spawn", "webbrowser.open", "click.edit",
    "click.launch", "typer.launch", "multiprocessing.Process",
})  # fmt: skip
STARTERS = {
    "cli/shared/editor.py": ("your editor",),
    "evals/local_git.py": ("git",),
    "runtime/doctor/health.py": ("git", "ripgrep", "bubblewrap", "uv"),
    "runtime/queue/autostart.py": ("a worker",),
    "skills/git/process.py": ("git",),
    "tools/shell/line_runner.py": ("commands",),
    "tools/process/run.py": ("the supervisor",),
    "tools/files/ripgrep.py": ("ripgrep",),
    "tools/files/snapshots.py": ("git",),
    "tools/process/sandbox/attempts.py": ("the interpreter",),
    "tools/process/sandbox/ladder.py": ("bubblewrap",),
    "tools/process/sandbox/shim.py": ("commands",),
    "tools/process/supervisor.py": ("bubblewrap", "MCP servers"),
}
"""The modules that start a program, with the rows of the table in `docs/security.md` that say how it is found."""
SEARCHING = {
    "runtime/doctor/health.py": "looks whether the shell of the settings exists, and starts nothing",
    "skills/trusted_programs.py": "the one place that searches PATH",
    "tools/mcp/server_code.py": "looks where the program of a server lies",
    "tools/mcp/tools.py": "shows the program of a server to its sandbox",
}


def list_modules(functions: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    """Those that can call one of them: their text has each part of its name."""
    names = [name.split(".") for name in functions]
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if name.startswith(("bundled/", "testing/")):
            continue
        text = file.read_text(encoding="utf-8")
        if any(all(part in text for part in parts) for parts in names):
            yield name, ast.parse(text)


def list_calls(module: ast.Module) -> set[str]:
    """Every function of another module that is called, by its dotted name."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    called = (_join_name(node.func) for node in ast.walk(module) if isinstance(node, ast.Call))
    return {names.get(head, head) + dot + tail for head, dot, tail in (name.partition(".") for name in called)}


def _join_name(function: ast.expr) -> str:
    """`a.b.c` as it is written; of anything else an empty part."""
    if isinstance(function, ast.Attribute):
        return f"{_join_name(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def test_only_known_modules_start_programs() -> None:
    starting = {name for name, module in list_modules(STARTING) if list_calls(module) & STARTING}

    assert starting == set(STARTERS)


def test_path_is_searched_in_one_place() -> None:
    searching = {name for name, module in list_modules(["shutil.which"]) if "shutil.which" in list_calls(module)}

    assert searching == set(SEARCHING)


def test_the_security_page_says_how_each_program_is_found() -> None:
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    section = page.partition("## What Metier starts itself")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE))

    assert {program for programs in STARTERS.values() for program in programs} <= rows


def test_program_that_is_handed_to_an_interpreter_as_text_imports_the_standard_library_alone() -> None:
    text = (SOURCE / "tools/shell/line_runner.py").read_text(encoding="utf-8")
    order = json.dumps([["", [[["echo", "read"], []]]]])

    done = subprocess.run([sys.executable, "-I", "-S", "-c", text, order], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("read\n", "")
