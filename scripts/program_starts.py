"""List every place in the source that starts a process, and render `docs/contributing/programs.md` from it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from metier.programs import launcher
from metier.programs.launcher import USES, Use

SOURCE = Path(__file__).resolve().parent.parent / "src" / "metier"
PAGE = SOURCE.parent.parent / "docs" / "contributing" / "programs.md"
BEGIN, END = "<!-- programs: written by `./dev docs` -->\n", "<!-- /programs -->"

LAUNCHER = "programs/launcher.py"
INSIDE = {
    "tools/process/sandbox/attempts.py": "a trial of the sandbox: runs inside it",
    "tools/process/sandbox/shim.py": "becomes the command, inside the sandbox",
    "tools/process/supervisor.py": "becomes bubblewrap, or a command of the launcher or of a run without a sandbox",
    "tools/shell/line_runner.py": "becomes the programs of a line, inside the sandbox",
}
"""Programs of Metier that the launcher starts, and which then become the command that they were given."""
COPIES = {
    "worker/celery_worker.py": "copies of this process that serve a broker",
}
"""Modules that fork: a copy of this process runs, and no program is started."""

_STARTING = re.compile(
    r"subprocess\..+|multiprocessing\..+|pty\..+|webbrowser\..+|pydoc\..+|venv\..+|concurrent\.futures\.Process.*"
    r"|os\.(?:exec|spawn|posix_spawn|fork|popen|system|startfile)\w*"
    r"|(?:anyio|asyncio|trio)\.(?:open_process|run_process|create_subprocess_\w+|to_process.*)"
    r"|(?:click|typer)\.(?:edit|launch|echo_via_pager)|ctypes\.util\.find_library|platform\.processor|uuid\.getnode"
)
_VALUES = re.compile(
    r"subprocess\.(?:PIPE|DEVNULL|STDOUT|CREATE_\w+|CompletedProcess|TimeoutExpired|CalledProcessError)"
    r"|multiprocessing\.(?:connection\.Connection|synchronize\.Event|context(?:\.\w+(?:Context|Process))?)"
)
"""Names of the same modules that start nothing: constants, results, types."""


_TELLING = re.compile(
    r"subprocess|multiprocessing|\bpty\b|webbrowser|pydoc|venv|ProcessPool|exec|spawn|fork|popen|system|startfile|_process"
    r"|click|typer|find_library|processor|getnode|launcher|shutil|Program\(|confinement=None"
)
"""A module without any of these words starts nothing, and is not parsed."""


class Module(NamedTuple):
    name: str
    names: frozenset[str]
    """Every dotted name of another module that it uses, called or not."""
    tree: ast.Module


def list_modules() -> Iterator[Module]:
    """List the modules of the product; skills that ship run in the sandbox, and test doubles in tests."""
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE).as_posix()
        if name.startswith(("bundled/", "testing/")):
            continue
        text = file.read_text(encoding="utf-8")
        if _TELLING.search(text):
            tree = ast.parse(text)
            yield Module(name, frozenset(_list_names(tree)), tree)


def list_starts(module: Module) -> list[str]:
    """List the names by which a module can start a process."""
    return sorted(name for name in module.names if _STARTING.fullmatch(name) and not _VALUES.fullmatch(name))


def list_uses(module: Module) -> list[Use]:
    """List the rows of the launcher that a module starts programs by."""
    by_name = {f"{launcher.__name__}.{name}": value for name, value in vars(launcher).items() if value in USES}
    return [use for name, use in by_name.items() if name in module.names]


def render_page() -> str:
    """Return the security page with its table as the source says."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{BEGIN}{render_table()}{END}{rest.partition(END)[2]}"


def render_table() -> str:
    users: dict[Use, list[str]] = {use: [] for use in USES}
    for module in list_modules():
        for use in list_uses(module) if module.name != LAUNCHER else ():
            users[use].append(f"`{module.name}`")
    rows = [[*use, ", ".join(users[use])] for use in USES]
    head = ["program", "started for", "how it is found", "environment", "working folder", "started in"]
    lines = [" | ".join(cells) for cells in (head, *rows)]
    lines.insert(1, "|".join(["---"] * len(head)))
    return "".join(f"| {line} |\n" if "---" not in line else f"|{line}|\n" for line in lines)


def _list_names(tree: ast.Module) -> Iterator[str]:
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for alias, name in known.items():
        if alias != name:
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            head, dot, tail = _join(node).partition(".")
            if head in known:
                yield known[head] + dot + tail


def _join(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_join(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
