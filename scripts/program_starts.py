"""List every place in the source that starts a process, and render `docs/contributing/programs.md` from it."""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from metier.programs import launcher
from metier.programs.launcher import USES, Use

SOURCE = Path(__file__).resolve().parent.parent / "src" / "metier"
PAGE = SOURCE.parent.parent / "docs" / "contributing" / "programs.md"
BEGIN, END = "<!-- programs: written by `./dev docs` -->\n", "<!-- /programs -->"

LAUNCHER = "programs/launcher.py"
HIDDEN = "hidden: "
"""Precedes the name of a start that no dotted name shows."""
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
    r"subprocess\..+|_posixsubprocess\..+|multiprocessing\..+|pty\..+|webbrowser\..+|pydoc\..+|venv\..+"
    r"|concurrent\.futures\.(?:process|Process).*"
    r"|(?:os|posix|nt)\.(?:exec|spawn|posix_spawn|fork|popen|system|startfile)\w*"
    r"|(?:anyio|asyncio|trio)\.(?:.+\.)?(?:open_process|run_process|create_subprocess_\w+|to_process.*)"
    r"|(?:click|typer)\.(?:edit|launch|echo_via_pager)|ctypes\.util\.find_library|platform\.(?:processor|architecture)"
    r"|uuid\.(?:getnode|uuid1)|mcp\..*stdio_client|uvicorn\.run|uvicorn\.supervisors.*"
)
"""Names by which a process is started, also by libraries."""
_METHODS = frozenset({"subprocess_exec", "subprocess_shell", "open_in_editor", "run_system_command", "fork_exec"})
"""Methods of event loops, line editors and the interpreter that start a process, whatever object they belong to."""
_MODULES = re.compile(r"subprocess|_posixsubprocess|multiprocessing|pty|webbrowser|pydoc|os|posix|nt")
"""Modules that start processes: importing one by a text, or reading its attributes by one, would hide a start."""
_VALUES = re.compile(
    r"subprocess\.(?:PIPE|DEVNULL|STDOUT|CREATE_\w+|CompletedProcess|TimeoutExpired|CalledProcessError)"
    r"|multiprocessing\.(?:connection\.Connection|synchronize\.Event|context(?:\.\w+(?:Context|Process))?)"
)
"""Names of the same modules that start nothing: constants, results, types."""


_TELLING = re.compile(
    r"subprocess|multiprocessing|\bpty\b|webbrowser|pydoc|venv|ProcessPool|exec|spawn|fork|popen|system|startfile|_process"
    r"|click|typer|find_library|processor|architecture|getnode|uuid1|stdio_client|in_editor|uvicorn|getattr|__import__"
    r"|import_module|launcher|shutil|Program\(|confinement=None"
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
    return sorted(
        name
        for name in module.names
        if name.startswith(HIDDEN) or (_STARTING.fullmatch(name) and not _VALUES.fullmatch(name))
    )


def list_uses(module: Module) -> list[Use]:
    """List the rows of the launcher that a module starts programs by."""
    by_name = {f"{launcher.__name__}.{name}": value for name, value in vars(launcher).items() if value in USES}
    return [use for name, use in by_name.items() if name in module.names]


def render_page() -> str:
    """Return the page with the programs of the launcher."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{head}{BEGIN}\n{render_programs()}\n{END}{rest.partition(END)[2]}"


def render_programs() -> str:
    """Return a section per program of the launcher."""
    users: dict[Use, list[str]] = {use: [] for use in USES}
    for module in list_modules():
        for use in list_uses(module) if module.name != LAUNCHER else ():
            users[use].append(f"`{module.name}`")
    facts = ("Started for", "Found by", "Environment", "Working folder", "Started in")
    sections: list[str] = []
    for use in USES:
        values = (use.purpose, use.found, use.environment, use.folder, ", ".join(users[use]))
        lines = [f"- {fact}: {value}" for fact, value in zip(facts, values, strict=True)]
        sections.append("\n".join([f"## {use.program}", "", *lines, ""]))
    return "\n".join(sections)


def _list_names(tree: ast.Module) -> Iterator[str]:
    known = _list_imports(tree)
    for alias, name in known.items():
        if alias != name:
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            head, dot, tail = _join(node).partition(".")
            if head in known:
                yield known[head] + dot + tail
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            yield f"{HIDDEN}{node.attr}"
        if isinstance(node, ast.Call):
            yield from _list_hidden(node, known)


def _list_imports(tree: ast.Module) -> dict[str, str]:
    """Return the names that imports bind, with the dotted names that they stand for."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                # `import a.b` binds `a`, like `import a`: both lead to every name of `a`.
                top = alias.name.partition(".")[0]
                known[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return known


def _list_hidden(call: ast.Call, known: Mapping[str, str]) -> Iterator[str]:
    """List starting modules that a call imports by a text, and attributes of them that `getattr` returns."""
    function = _join(call.func).rpartition(".")[2]
    match call.args:
        case [ast.Constant(value=str(module)), *_] if function in ("__import__", "import_module"):
            if _MODULES.fullmatch(module):
                yield f"{HIDDEN}{module}"
        case [ast.Name(id=name), attribute, *_] if function == "getattr" and _MODULES.fullmatch(known.get(name, "")):
            is_known = isinstance(attribute, ast.Constant)
            yield f"{known[name]}.{attribute.value}" if is_known else f"{HIDDEN}{name}"
        case _:
            pass


def _join(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_join(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
