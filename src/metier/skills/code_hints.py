"""What a piece of code seems to reach for: network, environment, packages. Reads text; a hint, never a guarantee."""

import ast
import tomllib

from metier.dataclass import dataclass
from metier.lazy_regex import lazy_regex

_NETWORK_MODULES = frozenset(
    {
        *("aiohttp", "asyncssh", "boto3", "botocore", "ftplib", "grpc", "httplib2", "httpx", "httpx2", "imaplib"),
        *("paramiko", "poplib", "pycurl", "requests", "smtplib", "socket", "socketserver", "telnetlib", "urllib3"),
        *("websocket", "websockets", "xmlrpc", "http.client", "http.server", "urllib.request"),
    }
)
_NETWORK_WORDS = lazy_regex(
    r"\b(?:curl|wget|ssh|scp|nc|ncat|rsync|Invoke-WebRequest|XMLHttpRequest)\b(?=\s|\()|\bfetch\(|require\(['\"](?:https?|net)['\"]\)"
)
_URL = lazy_regex(r"\b(?:https?|wss?|ftp)://(?:[^\s/'\"<>@]*@)?(?P<host>[\w.-]+\.[^\W\d_]{2,}|localhost)")
_SHELL_VARIABLE = lazy_regex(r"\$\{?(?P<name>[A-Z][A-Z0-9_]{2,})\b")
_NODE_VARIABLE = lazy_regex(r"process\.env(?:\.|\[['\"])(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_INLINE_METADATA = lazy_regex(r"(?m)^# /// script\r?$\n(?P<content>(?:^#(?:| .*)\r?$\n)+?)^# ///\r?$")
_SHELL_COMMON = frozenset({"HOME", "PATH", "PWD", "SHELL", "USER", "BASH_SOURCE", "LANG", "TMPDIR"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeHints:
    network: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()
    dependencies: frozenset[str] = frozenset()


def find_hints(text: str, *, suffix: str) -> CodeHints:
    """Hints in one code file; `suffix` is that of its name, e.g. `.py`."""
    hosts = frozenset(match["host"].lower() for match in _URL.finditer(text))
    if suffix == ".py":
        return _python_hints(text, hosts)
    network = frozenset(match.group().strip("(") for match in _NETWORK_WORDS.finditer(text))
    names = {match["name"] for match in _NODE_VARIABLE.finditer(text)}
    if suffix in (".sh", ".bash", ".zsh", ""):
        names |= {match["name"] for match in _SHELL_VARIABLE.finditer(text)} - _SHELL_COMMON
    return CodeHints(network=network, hosts=hosts, environment=frozenset(names))


def find_hosts(text: str) -> frozenset[str]:
    """As a resolver sees them: letters that only look like Latin ones are told apart."""
    return frozenset(_show_plainly(match["host"].lower()) for match in _URL.finditer(text))


def _show_plainly(host: str) -> str:
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


def _python_hints(text: str, hosts: frozenset[str]) -> CodeHints:
    dependencies = _inline_dependencies(text)
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return CodeHints(hosts=hosts, dependencies=dependencies)
    modules: set[str] = set()
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                modules.update(alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                modules.update({module, *(f"{module}.{alias.name}" for alias in node.names)})
            case ast.Call() | ast.Subscript():
                names.update(_environment_name(node))
            case _:
                pass
    network = {known for module in modules for known in _NETWORK_MODULES if f"{module}.".startswith(f"{known}.")}
    return CodeHints(network=frozenset(network), hosts=hosts, environment=frozenset(names), dependencies=dependencies)


def _environment_name(node: ast.Call | ast.Subscript) -> list[str]:
    """`os.environ["X"]`, `environ.get("X")`, `os.getenv("X")`."""
    if isinstance(node, ast.Subscript):
        is_environment, name = ast.unparse(node.value).endswith("environ"), node.slice
    elif node.args:
        called = ast.unparse(node.func)
        is_environment = called.endswith(("getenv", "environ.get", "environ.pop", "environ.setdefault"))
        name = node.args[0]
    else:
        return []
    return [name.value] if is_environment and isinstance(name, ast.Constant) and isinstance(name.value, str) else []


def _inline_dependencies(text: str) -> frozenset[str]:
    block = _INLINE_METADATA.search(text)
    if block is None:
        return frozenset()
    lines = [line[2:] if line.startswith("# ") else line[1:] for line in block["content"].splitlines()]
    try:
        content: dict[str, object] = tomllib.loads("\n".join(lines))
    except tomllib.TOMLDecodeError:
        return frozenset()
    found = content.get("dependencies", [])
    return frozenset(item for item in found if isinstance(item, str)) if isinstance(found, list) else frozenset()  # pyright: ignore[reportUnknownVariableType]
