"""Is a piece of Python safe to run inside one synchronous task? By syntax alone: nothing is imported or run.

A turn of a skill is one call that returns: it must not need an event loop, leave anything running behind it, or wait
for a network without a limit. This finds what would; each finding has its line and what to write instead.
"""

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from metier.definitions.problems import Problem, Severity
from metier.errors import UsageError

type Function = ast.FunctionDef | ast.AsyncFunctionDef

SYNTAX = "python_syntax"
MAX_SOURCE_BYTES = 2 * 1024 * 1024
KEPT_SOURCE_BYTES = 64 * 1024
"""What is found in a file up to this size is kept: a skill is checked before each of its turns."""
ASYNC_MODULES = frozenset({"asyncio", "aiohttp", "anyio", "trio", "curio", "uvloop", "aiofiles", "asyncpg", "gevent"})
_VERBS = frozenset({"get", "post", "put", "patch", "delete", "head", "options", "request"})
_SESSIONS = frozenset(
    {"requests.Session()", "requests.session()", "urllib3.PoolManager()", "urllib3.HTTPSConnectionPool()"}
)
_POSITION_OF_TIMEOUT: dict[str, int] = {
    "urllib.request.urlopen": 2,
    "socket.create_connection": 1,
    "http.client.HTTPConnection": 2,
    "http.client.HTTPSConnection": 2,
}
"""Calls that reach a network, and which of their arguments is the time limit."""
_WORKERS = frozenset({"threading.Thread", "threading.Timer", "multiprocessing.Process"})
_POOLS = frozenset(
    {
        "concurrent.futures.ThreadPoolExecutor",
        "concurrent.futures.ProcessPoolExecutor",
        "multiprocessing.Pool",
        "multiprocessing.pool.ThreadPool",
    }
)
_DETACHED = frozenset({"os.fork", "os.forkpty", "os.posix_spawn", "_thread.start_new_thread", "os.daemon"})
_LOOSE_PROGRAMS = frozenset({"subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output"})


class ImportedNames:
    """Names of one module that imports gave it, wherever in the file they stand."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            for local, full in _imported(node):
                self._names[local] = full

    def resolve(self, node: ast.expr) -> str:
        """The full name of what an expression names, e.g. `threading.Thread`; empty for anything but a name."""
        match node:
            case ast.Name(id=name):
                return self._names.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                owner = self.resolve(value)
                return f"{owner}.{attr}" if owner else ""
            case ast.Call(func=func):
                # `requests.Session().get(…)`: what a call gives is known by what was called.
                called = self.resolve(func)
                return f"{called}()" if called else ""
            case _:
                return ""


def _imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                if alias.asname:
                    yield alias.asname, alias.name
                else:
                    first = alias.name.partition(".")[0]
                    yield first, first
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"
        case _:
            return


def list_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module that is imported, with its line; also by a call with the name written out."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield alias.name, node.lineno
            case ast.ImportFrom(module=str(module), level=0):
                yield module, node.lineno
            case ast.Call(func=ast.Name(id="__import__"), args=[ast.Constant(value=str(name)), *_]):
                yield name, node.lineno
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
                yield name, node.lineno
            case _:
                pass


def list_scopes(tree: ast.Module) -> Iterator[tuple[ast.Module | Function, list[ast.AST]]]:
    """The module and each function with the nodes that belong to it and to no function inside it."""
    for scope in (tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))):
        yield scope, list(_own_nodes(scope))


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _own_nodes(child)


def find_keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def is_nothing(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


class Finding(Struct, frozen=True, kw_only=True):
    """One place that is not safe. A warning has a limit of its own, or only sometimes none."""

    code: str
    line: int
    message: str
    remedy: str
    severity: Severity = "error"


def check_source(text: str) -> tuple[Finding, ...]:
    """What is not safe in a Python source, by line."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return (_unreadable(error.lineno or 1, error.msg),)
    except (ValueError, RecursionError, MemoryError) as error:
        return (_unreadable(1, str(error) or type(error).__name__),)
    names = ImportedNames(tree)
    found = [
        *_list_async(tree),
        *_list_async_imports(tree),
        *_list_calls(tree, names),
        *_list_left_running(tree, names),
    ]
    return tuple(sorted(set(found), key=lambda finding: (finding.line, finding.code)))


def check_path(path: Path) -> tuple[tuple[Path, tuple[Finding, ...]], ...]:
    """Every Python file at or below a path, sorted. Raises `UsageError` when there is none."""
    if not os.path.lexists(path):
        raise UsageError(f"Path {str(path)!r} does not exist", hint="Give a Python file, a skill or a folder")
    files = [path] if path.is_file() else sorted(found for found in path.rglob("*.py") if _is_source(found, path))
    if not files:
        raise UsageError(f"There is no Python file in {str(path)!r}", hint="Give a Python file, a skill or a folder")
    return tuple((file, check_file(file)) for file in files)


def check_file(file: Path) -> tuple[Finding, ...]:
    try:
        data = file.read_bytes()
    except OSError as error:
        return (_unreadable(1, f"the file cannot be read: {error.strerror}"),)
    if len(data) > MAX_SOURCE_BYTES:
        return (_unreadable(1, f"the file is larger than {MAX_SOURCE_BYTES} bytes"),)
    text = data.decode("utf-8", "replace")
    return _check_small_source(text) if len(data) <= KEPT_SOURCE_BYTES else check_source(text)


@functools.lru_cache(maxsize=64)
def _check_small_source(text: str) -> tuple[Finding, ...]:
    return check_source(text)


def as_problem(finding: Finding, file: str, *, strict: bool = False) -> Problem:
    """In `strict` a warning is an error too."""
    return Problem(
        severity="error" if strict else finding.severity,
        code=finding.code,
        message=finding.message,
        file=file,
        line=finding.line,
        hint=finding.remedy,
    )


def _is_source(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(root).parts)
    return file.is_file() and not hidden


def _unreadable(line: int, why: str) -> Finding:
    return Finding(code=SYNTAX, line=line, message=f"Not readable as Python: {why}", remedy="Fix the file")


def _list_async(tree: ast.Module) -> Iterator[Finding]:
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef(name=name):
                yield Finding(
                    code="async_def",
                    line=node.lineno,
                    message=f"Function {name!r} is async",
                    remedy="Write a plain function: a turn is one call that returns",
                )
            case ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield Finding(
                    code="await", line=node.lineno, message="It awaits", remedy="Call the blocking form, with a timeout"
                )
            case ast.comprehension(is_async=1):
                line = node.target.lineno
                yield Finding(code="await", line=line, message="It awaits", remedy="Loop over a plain iterable")
            case _:
                pass


def _list_async_imports(tree: ast.Module) -> Iterator[Finding]:
    for module, line in list_imports(tree):
        name = module.partition(".")[0]
        if name in ASYNC_MODULES:
            remedy = "Use a blocking library; several things at once belong into several skills"
            yield Finding(code="async_import", line=line, message=f"Module {name!r} needs an event loop", remedy=remedy)


def _list_calls(tree: ast.Module, names: ImportedNames) -> Iterator[Finding]:
    sessions = _get_sessions(tree, names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = names.resolve(node.func)
            yield from _judge_network(node, called, sessions)
            yield from _judge_program(node, called)


def _get_sessions(tree: ast.Module, names: ImportedNames) -> dict[str, str]:
    """Variables that hold a session, by what made it."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value):
                found[name] = names.resolve(value)
            case ast.withitem(context_expr=ast.Call() as value, optional_vars=ast.Name(id=name)):
                found[name] = names.resolve(value)
            case _:
                pass
    return {name: made for name, made in found.items() if made in _SESSIONS}


def _judge_network(call: ast.Call, called: str, sessions: dict[str, str]) -> Iterator[Finding]:
    if called in ("httpx.AsyncClient", "httpx2.AsyncClient"):
        remedy = "Use httpx.Client(timeout=10)"
        yield Finding(code="await", line=call.lineno, message=f"{called} needs an event loop", remedy=remedy)
        return
    owner, _, verb = called.rpartition(".")
    owner = sessions.get(owner, owner)
    is_bare = (verb in _VERBS and owner in {"requests", "urllib3", *_SESSIONS}) or called in _POSITION_OF_TIMEOUT
    if is_bare and _lacks_timeout(call, called):
        remedy = f"Write {called.rpartition('.')[2]}(…, timeout=10)"
        message = f"{called} may wait for ever: it has no timeout"
        yield Finding(code="http_without_timeout", line=call.lineno, message=message, remedy=remedy)
    library = called.partition(".")[0]
    if library in ("httpx", "httpx2") and (verb in _VERBS or verb in ("Client", "stream")):
        given = find_keyword(call, "timeout")
        if is_nothing(given):
            message = f"{called} has its timeout turned off"
            yield Finding(code="http_without_timeout", line=call.lineno, message=message, remedy="Write timeout=10")
        elif given is None and owner in ("httpx", "httpx2"):
            message = f"{called} does not say how long it waits"
            yield Finding(
                code="http_default_timeout", line=call.lineno, message=message, remedy="Write timeout=10",
                severity="warning",
            )  # fmt: skip


def _lacks_timeout(call: ast.Call, called: str) -> bool:
    if any(keyword.arg is None for keyword in call.keywords):
        # `**options` may hold one; nothing can be said.
        return False
    given = find_keyword(call, "timeout")
    if given is not None:
        return is_nothing(given)
    position = _POSITION_OF_TIMEOUT.get(called)
    if position is None or len(call.args) <= position:
        return True
    return is_nothing(call.args[position])


def _judge_program(call: ast.Call, called: str) -> Iterator[Finding]:
    if called in _LOOSE_PROGRAMS and find_keyword(call, "timeout") is None:
        message = f"{called} waits for a program without a limit"
        yield Finding(
            code="program_without_timeout", line=call.lineno, message=message, remedy="Write timeout=60",
            severity="warning",
        )  # fmt: skip
    if called in _DETACHED:
        message = f"{called} starts something that outlives the call"
        yield Finding(
            code="background_task", line=call.lineno, message=message, remedy="Do the work in the call itself"
        )
    if called == "os.system" and any(_ends_in_background(argument) for argument in call.args):
        message = "The command goes on in the background"
        yield Finding(
            code="background_task", line=call.lineno, message=message, remedy="Wait for it: leave out the '&'"
        )
    if called.endswith((".apply_async", ".delay")):
        message = f"{called} queues work that the skill does not wait for"
        yield Finding(
            code="background_task", line=call.lineno, message=message,
            remedy="Answer with the state 'delegating', and let the run wait", severity="warning",
        )  # fmt: skip
    if called == "input":
        message = "It waits for a person at a terminal"
        yield Finding(code="waits_for_person", line=call.lineno, message=message, remedy="Answer with 'input_required'")


def _ends_in_background(node: ast.expr) -> bool:
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return text.rstrip().endswith("&") and not text.rstrip().endswith("&&")


def _list_left_running(tree: ast.Module, names: ImportedNames) -> Iterator[Finding]:
    """Threads, pools and programs that a function starts and does not wait for."""
    for _, nodes in list_scopes(tree):
        waited = _list_waited(nodes)
        held = {id(item.context_expr) for node in nodes if isinstance(node, ast.With) for item in node.items}
        kept = _get_kept(nodes)
        for node in nodes:
            if isinstance(node, ast.Call) and id(node) not in held:
                yield from _judge_started(
                    node, names.resolve(node.func), waits=_waits_of(waited, kept.get(id(node), ""))
                )


def _judge_started(call: ast.Call, called: str, *, waits: set[str]) -> Iterator[Finding]:
    if called in _WORKERS:
        daemon = find_keyword(call, "daemon")
        if isinstance(daemon, ast.Constant) and daemon.value is True:
            message = f"{called} with daemon=True outlives the call"
            yield Finding(code="background_task", line=call.lineno, message=message, remedy="Leave it out, and join it")
        elif "join" not in waits:
            message = f"{called} is started here and never joined"
            remedy = "Call join() on it before you return"
            yield Finding(code="thread_without_join", line=call.lineno, message=message, remedy=remedy)
    elif called in _POOLS and not {"shutdown", "join"} & waits:
        remedy = f"Write `with {called.rpartition('.')[2]}(…) as pool:`"
        yield Finding(code="background_task", line=call.lineno, message=f"{called} is never shut down", remedy=remedy)
    elif called == "subprocess.Popen" and not {"wait", "communicate"} & waits:
        remedy = "Use subprocess.run(…, timeout=60)"
        message = "subprocess.Popen is started here and never waited for"
        yield Finding(code="background_task", line=call.lineno, message=message, remedy=remedy)


def _get_kept(nodes: list[ast.AST]) -> dict[int, str]:
    """The variable that a call's result goes to, by the call; a list of them counts as the variable of the list."""
    kept: dict[int, str] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[target], value=value) | ast.NamedExpr(target=target, value=value):
                calls = [found for found in ast.walk(value) if isinstance(found, ast.Call)]
                kept |= {id(call): ast.unparse(target) for call in calls}
            case ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[ast.Call() as call]):
                kept[id(call)] = ast.unparse(owner)
            case _:
                pass
    return kept


def _list_waited(nodes: list[ast.AST]) -> frozenset[str]:
    """`name.join`, `name.wait` and similar ones; of a loop over a list, for the list as well."""
    waited: set[str] = set()
    loops = {ast.unparse(node.target): ast.unparse(node.iter) for node in nodes if isinstance(node, ast.For)}
    loops |= {ast.unparse(node.target): ast.unparse(node.iter) for node in nodes if isinstance(node, ast.comprehension)}
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr="join" | "wait" | "communicate" | "shutdown" as verb)):
                name = ast.unparse(owner)
                waited |= {f"{name}.{verb}", f"{loops.get(name, name)}.{verb}"}
            case _:
                pass
    return frozenset(waited)


def _waits_of(waited: frozenset[str], name: str) -> set[str]:
    return {wait.rpartition(".")[2] for wait in waited if name and wait.rpartition(".")[0] == name}
