"""A check of Python code for synchronous tasks, by syntax alone: nothing is imported or run.

A turn of a skill is one call that returns: it must not need an event loop, leave anything running, or wait for a
network without a timeout. Each problem has its line and a replacement.
"""

import ast
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from metier.definitions.problems import Problem, Severity
from metier.errors import UsageError

type Function = ast.FunctionDef | ast.AsyncFunctionDef

SYNTAX = "python_syntax"
MAX_SOURCE_BYTES = 2 * 1024 * 1024
MAX_CACHED_SOURCE_BYTES = 64 * 1024
"""Results for files up to this size are cached: a skill is checked before each of its turns."""
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
"""Network calls, with the position of their timeout argument."""
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
    """Names that the imports of a module bind, anywhere in the file."""

    def __init__(self, tree: ast.Module) -> None:
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            for local, full in _imported(node):
                self._names[local] = full

    def resolve(self, node: ast.expr) -> str:
        """Return the full name of an expression, e.g. `threading.Thread`; empty for anything but a name."""
        match node:
            case ast.Name(id=name):
                return self._names.get(name, name)
            case ast.Attribute(value=value, attr=attr):
                owner = self.resolve(value)
                return f"{owner}.{attr}" if owner else ""
            case ast.Call(func=func):
                # `requests.Session().get(…)`: the result of a call is identified by its function.
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
                    # `import a.b` binds the name `a` only.
                    first = alias.name.partition(".")[0]
                    yield first, first
        # Relative imports, of a higher level, bring the skill's own modules, which are checked themselves.
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"
        case _:
            return


def list_imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return every imported module with its line, including `__import__("name")` and `import_module("name")`."""
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
    """Return the module and each function with its nodes, without those of nested functions."""
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


def check_source(text: str) -> tuple[Problem, ...]:
    """Return the problems of Python source, sorted by line."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return (_unreadable(error.lineno or 1, error.msg),)
    # `ast.parse` raises these for NUL characters and for deeply nested code.
    except (ValueError, RecursionError, MemoryError) as error:
        return (_unreadable(1, str(error) or type(error).__name__),)
    names = ImportedNames(tree)
    found = [
        *_list_async(tree),
        *_list_async_imports(tree),
        *_list_calls(tree, names),
        *_list_left_running(tree, names),
    ]
    return tuple(sorted(set(found), key=lambda problem: (problem.line or 0, problem.code)))


def check_path(path: Path) -> tuple[tuple[Path, tuple[Problem, ...]], ...]:
    """Check every Python file at or below a path. Raises `UsageError` if there is none."""
    if not os.path.lexists(path):
        raise UsageError(f"Path {str(path)!r} does not exist", hint="Give a Python file, a skill or a folder")
    files = [path] if path.is_file() else sorted(found for found in path.rglob("*.py") if _is_source(found, path))
    if not files:
        raise UsageError(f"No Python file in {str(path)!r}", hint="Give a Python file, a skill or a folder")
    return tuple((file, check_file(file)) for file in files)


def check_file(file: Path) -> tuple[Problem, ...]:
    return tuple(replace(problem, file=str(file)) for problem in _check_bytes(file))


def _check_bytes(file: Path) -> tuple[Problem, ...]:
    try:
        data = file.read_bytes()
    except OSError as error:
        return (_unreadable(1, f"the file cannot be read: {error.strerror}"),)
    if len(data) > MAX_SOURCE_BYTES:
        return (_unreadable(1, f"the file is larger than {MAX_SOURCE_BYTES} bytes"),)
    text = data.decode("utf-8", "replace")
    return _check_small_source(text) if len(data) <= MAX_CACHED_SOURCE_BYTES else check_source(text)


@functools.lru_cache(maxsize=64)
def _check_small_source(text: str) -> tuple[Problem, ...]:
    return check_source(text)


def _build_problem(*, code: str, line: int, message: str, hint: str, severity: Severity = "error") -> Problem:
    return Problem(severity=severity, code=code, message=message, line=line, hint=hint)


def _is_source(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") or part == "__pycache__" for part in file.relative_to(root).parts)
    return file.is_file() and not hidden


def _unreadable(line: int, why: str) -> Problem:
    return _build_problem(code=SYNTAX, line=line, message=f"Not readable as Python: {why}", hint="Fix the file")


def _list_async(tree: ast.Module) -> Iterator[Problem]:
    for node in ast.walk(tree):
        match node:
            case ast.AsyncFunctionDef(name=name):
                yield _build_problem(
                    code="async_def",
                    line=node.lineno,
                    message=f"Function {name!r} is async",
                    hint="Write a plain function: a turn is one call that returns",
                )
            case ast.Await() | ast.AsyncFor() | ast.AsyncWith():
                yield _build_problem(
                    code="await",
                    line=node.lineno,
                    message="It uses await",
                    hint="Call the blocking form, with a timeout",
                )
            case ast.comprehension(is_async=1):
                line = node.target.lineno
                yield _build_problem(
                    code="await", line=line, message="It uses async for", hint="Loop over a plain iterable"
                )
            case _:
                pass


def _list_async_imports(tree: ast.Module) -> Iterator[Problem]:
    for module, line in list_imports(tree):
        name = module.partition(".")[0]
        if name in ASYNC_MODULES:
            hint = "Use a blocking library; split concurrent work into several skills"
            yield _build_problem(
                code="async_import", line=line, message=f"Module {name!r} needs an event loop", hint=hint
            )


def _list_calls(tree: ast.Module, names: ImportedNames) -> Iterator[Problem]:
    sessions = _get_sessions(tree, names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = names.resolve(node.func)
            yield from _check_network(node, called, sessions)
            yield from _check_program(node, called)


def _get_sessions(tree: ast.Module, names: ImportedNames) -> dict[str, str]:
    """Return the variables that hold a session, with the function that created it."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value):
                found[name] = names.resolve(value)
            case ast.withitem(context_expr=ast.Call() as value, optional_vars=ast.Name(id=name)):
                found[name] = names.resolve(value)
            case _:
                pass
    return {name: called for name, called in found.items() if called in _SESSIONS}


def _check_network(call: ast.Call, called: str, sessions: dict[str, str]) -> Iterator[Problem]:
    if called in ("httpx.AsyncClient", "httpx2.AsyncClient"):
        hint = "Use httpx.Client(timeout=10)"
        yield _build_problem(code="await", line=call.lineno, message=f"{called} needs an event loop", hint=hint)
        return
    owner, _, verb = called.rpartition(".")
    owner = sessions.get(owner, owner)
    is_bare = (verb in _VERBS and owner in {"requests", "urllib3", *_SESSIONS}) or called in _POSITION_OF_TIMEOUT
    if is_bare and _lacks_timeout(call, called):
        hint = f"Write {called.rpartition('.')[2]}(…, timeout=10)"
        message = f"{called} can wait forever: it has no timeout"
        yield _build_problem(code="http_without_timeout", line=call.lineno, message=message, hint=hint)
    # Unlike requests, httpx has a timeout by default (5 s), so a missing one is only a warning.
    library = called.partition(".")[0]
    if library in ("httpx", "httpx2") and (verb in _VERBS or verb in ("Client", "stream")):
        given = find_keyword(call, "timeout")
        if is_nothing(given):
            message = f"{called} has its timeout disabled"
            yield _build_problem(
                code="http_without_timeout", line=call.lineno, message=message, hint="Write timeout=10"
            )
        # Not for the calls of a client, which may have been given a timeout.
        elif given is None and owner in ("httpx", "httpx2"):
            message = f"{called} relies on the default timeout"
            yield _build_problem(
                code="http_default_timeout", line=call.lineno, message=message, hint="Write timeout=10",
                severity="warning",
            )  # fmt: skip


def _lacks_timeout(call: ast.Call, called: str) -> bool:
    if any(keyword.arg is None for keyword in call.keywords):
        # `**options` may contain one.
        return False
    given = find_keyword(call, "timeout")
    if given is not None:
        return is_nothing(given)
    position = _POSITION_OF_TIMEOUT.get(called)
    if position is None or len(call.args) <= position:
        return True
    return is_nothing(call.args[position])


def _check_program(call: ast.Call, called: str) -> Iterator[Problem]:
    if called in _LOOSE_PROGRAMS and find_keyword(call, "timeout") is None:
        message = f"{called} waits for a program without a timeout"
        yield _build_problem(
            code="program_without_timeout", line=call.lineno, message=message, hint="Write timeout=60",
            severity="warning",
        )  # fmt: skip
    if called in _DETACHED:
        message = f"{called} starts something that outlives the call"
        yield _build_problem(
            code="background_task", line=call.lineno, message=message, hint="Do the work in the call itself"
        )
    if called == "os.system" and any(_ends_in_background(argument) for argument in call.args):
        message = "The command continues in the background"
        yield _build_problem(
            code="background_task", line=call.lineno, message=message, hint="Wait for it: remove the '&'"
        )
    # The names of Celery's methods. Other objects may have them too, so this is only a warning.
    if called.endswith((".apply_async", ".delay")):
        message = f"{called} queues work that the skill does not wait for"
        yield _build_problem(
            code="background_task", line=call.lineno, message=message,
            hint="Return the state 'delegating', and let the run wait", severity="warning",
        )  # fmt: skip
    if called == "input":
        message = "It waits for input at a terminal"
        yield _build_problem(
            code="waits_for_person", line=call.lineno, message=message, hint="Return the state 'input_required'"
        )


def _ends_in_background(node: ast.expr) -> bool:
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return text.rstrip().endswith("&") and not text.rstrip().endswith("&&")


def _list_left_running(tree: ast.Module, names: ImportedNames) -> Iterator[Problem]:
    """Report threads, pools and programs that a function starts and does not wait for."""
    for _, nodes in list_scopes(tree):
        waited = _list_waited(nodes)
        # At its end, a `with` statement waits for what it started.
        held = {id(item.context_expr) for node in nodes if isinstance(node, ast.With) for item in node.items}
        variables = _get_variables(nodes)
        for node in nodes:
            if isinstance(node, ast.Call) and id(node) not in held:
                yield from _check_started(
                    node, names.resolve(node.func), waits=_waits_of(waited, variables.get(id(node), ""))
                )


def _check_started(call: ast.Call, called: str, *, waits: set[str]) -> Iterator[Problem]:
    if called in _WORKERS:
        daemon = find_keyword(call, "daemon")
        if isinstance(daemon, ast.Constant) and daemon.value is True:
            message = f"{called} with daemon=True outlives the call"
            yield _build_problem(
                code="background_task", line=call.lineno, message=message, hint="Remove it, and join the thread"
            )
        elif "join" not in waits:
            message = f"{called} is started and never joined"
            hint = "Call join() on it before you return"
            yield _build_problem(code="thread_without_join", line=call.lineno, message=message, hint=hint)
    elif called in _POOLS and not {"shutdown", "join"} & waits:
        hint = f"Write `with {called.rpartition('.')[2]}(…) as pool:`"
        yield _build_problem(
            code="background_task", line=call.lineno, message=f"{called} is never shut down", hint=hint
        )
    elif called == "subprocess.Popen" and not {"wait", "communicate"} & waits:
        hint = "Use subprocess.run(…, timeout=60)"
        message = "The started process is never waited for"
        yield _build_problem(code="background_task", line=call.lineno, message=message, hint=hint)


def _get_variables(nodes: list[ast.AST]) -> dict[int, str]:
    """Return the variable that holds each call's result. An element of a list is held by the list's variable."""
    variables: dict[int, str] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[target], value=value) | ast.NamedExpr(target=target, value=value):
                calls = [found for found in ast.walk(value) if isinstance(found, ast.Call)]
                variables |= {id(call): ast.unparse(target) for call in calls}
            case ast.Call(func=ast.Attribute(value=owner, attr="append"), args=[ast.Call() as call]):
                variables[id(call)] = ast.unparse(owner)
            case _:
                pass
    return variables


def _list_waited(nodes: list[ast.AST]) -> frozenset[str]:
    """Return `name.join`, `name.wait` and similar calls; a loop over a list counts for the list too."""
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
