"""A report on a skill for review before it is trusted: files, suspicious code, hidden characters."""

import ast
import re
import tomllib
import unicodedata
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from msgspec import Struct

from metier.definitions.skills.scripts import discover_scripts
from metier.definitions.skills.skill import SkillDefinition
from metier.skills.skill_trust import TreeDigest
from metier.values import Value

_NETWORK_MODULES = frozenset(
    {
        *("aiohttp", "asyncssh", "boto3", "botocore", "ftplib", "grpc", "httplib2", "httpx", "httpx2", "imaplib"),
        *("paramiko", "poplib", "pycurl", "requests", "smtplib", "socket", "socketserver", "telnetlib", "urllib3"),
        *("websocket", "websockets", "xmlrpc", "http.client", "http.server", "urllib.request"),
    }
)
_NETWORK_WORDS = re.compile(
    r"\b(?:curl|wget|ssh|scp|nc|ncat|rsync|Invoke-WebRequest|XMLHttpRequest)\b(?=\s|\()|\bfetch\(|require\(['\"](?:https?|net)['\"]\)"
)
# Skips a user name: `https://good.example@evil.example` leads to evil.example.
_URL = re.compile(r"\b(?:https?|wss?|ftp)://(?:[^\s/'\"<>@]*@)?(?P<host>[\w.-]+\.[^\W\d_]{2,}|localhost)")
_SHELL_VARIABLE = re.compile(r"\$\{?(?P<name>[A-Z][A-Z0-9_]{2,})\b")
_NODE_VARIABLE = re.compile(r"process\.env(?:\.|\[['\"])(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
_INLINE_METADATA = re.compile(r"(?m)^# /// script\r?$\n(?P<content>(?:^#(?:| .*)\r?$\n)+?)^# ///\r?$")
_SHELL_COMMON = frozenset({"HOME", "PATH", "PWD", "SHELL", "USER", "BASH_SOURCE", "LANG", "TMPDIR"})

_JOINERS = "\u200c\u200d"
_BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols that are displayed as blanks."""
_CODE = frozenset({".py", ".sh", ".bash", ".zsh", ".js", ".mjs", ".cjs", ".ts", ".rb", ".pl", ".ps1", ".php", ".lua"})
# Linux, Windows, macOS, universal macOS (and Java classes), WebAssembly.
_MACHINE_CODE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\x00asm")
_LARGE_FILE_POINTER = b"version https://git-lfs.github.com/spec/"
_MAX_SCANNED_BYTES = 2 * 1024 * 1024


class CodeHints(Struct, frozen=True, kw_only=True):
    network: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    environment: frozenset[str] = frozenset()
    dependencies: frozenset[str] = frozenset()


def get_hints(text: str, *, suffix: str) -> CodeHints:
    """Return hints in a code file. `suffix` is the file's extension, such as `.py`."""
    hosts = frozenset(match["host"].lower() for match in _URL.finditer(text))
    if suffix == ".py":
        return _python_hints(text, hosts)
    network = frozenset(match.group().strip("(") for match in _NETWORK_WORDS.finditer(text))
    names = {match["name"] for match in _NODE_VARIABLE.finditer(text)}
    if suffix in (".sh", ".bash", ".zsh", ""):
        names |= {match["name"] for match in _SHELL_VARIABLE.finditer(text)} - _SHELL_COMMON
    return CodeHints(network=network, hosts=hosts, environment=frozenset(names))


def list_hosts(text: str) -> frozenset[str]:
    """Return host names in ASCII form, which exposes look-alike letters of other scripts."""
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
    # Nested brackets by the thousand exhaust Python's parser.
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
    """Return the name in `os.environ["X"]`, `environ.get("X")` or `os.getenv("X")`."""
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


class HiddenCharacter(Struct, frozen=True, kw_only=True):
    line: int
    code_point: str
    """`U+200B`"""
    name: str


def list_hidden(text: str, *, limit: int = 20) -> tuple[HiddenCharacter, ...]:
    """List the first hidden characters. A byte order mark at the start, and joiners that a script or emoji needs, are
    not hidden.
    """
    found: list[HiddenCharacter] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        if line.isascii() and line.replace("\t", "").rstrip("\r").isprintable():
            continue
        for position, char in enumerate(line):
            if _is_hidden(char) and not _is_joined(line, position):
                name = unicodedata.name(char, "control character")
                found.append(HiddenCharacter(line=number, code_point=f"U+{ord(char):04X}", name=name))
                if len(found) >= limit:
                    return tuple(found)
    return tuple(found)


def _is_hidden(char: str) -> bool:
    if char.isascii():
        return not char.isprintable() and char not in "\t\r\f"
    # Variation selectors have no category of their own, and a row of them can encode a hidden text.
    if 0xE0100 <= ord(char) <= 0xE01EF or char in _BLANKS:
        return True
    return unicodedata.category(char) in ("Cf", "Cc", "Co", "Zl", "Zp")


def _is_joined(line: str, position: int) -> bool:
    if line[position] not in _JOINERS or position == 0 or position + 1 >= len(line):
        return False
    before, after = line[position - 1], line[position + 1]
    return not before.isascii() and not after.isascii() and not _is_hidden(before) and not _is_hidden(after)


class CapabilityReport(Value):
    """Capabilities of a skill as sorted lists. Equal reports mean equal capabilities."""

    scripts: tuple[str, ...] = ()
    toolsets: tuple[str, ...] = ()
    capability: tuple[str, ...] = ()
    """`impl.py` of a callable skill."""
    other_code: tuple[str, ...] = ()
    """Code files that are neither scripts nor part of toolsets."""
    binaries: tuple[str, ...] = ()
    """Executable binaries."""
    allowed_tools: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Variables declared under `permissions: env:`."""
    environment_read: tuple[str, ...] = ()
    """Variables that the code reads."""
    dependencies: tuple[str, ...] = ()
    """Packages that the scripts install."""
    network: tuple[str, ...] = ()
    """`file: module` for likely network access."""
    hosts: tuple[str, ...] = ()
    hidden_characters: tuple[str, ...] = ()
    """`file:line: U+200B ZERO WIDTH SPACE`"""
    large_file_pointers: tuple[str, ...] = ()
    """Git LFS pointers; their content is not downloaded."""
    files: int = 0
    bytes: int = 0


class CapabilityDiff(Value):
    """Capabilities that an update adds and removes, by field of the report, and the files that differ."""

    added: dict[str, tuple[str, ...]]
    removed: dict[str, tuple[str, ...]]
    files_added: tuple[str, ...] = ()
    files_changed: tuple[str, ...] = ()
    files_removed: tuple[str, ...] = ()


class _Scan(Struct, frozen=True):
    """One file of the package, read once."""

    name: str
    head: bytes
    text: str | None
    """None for a binary or large file."""
    hints: CodeHints

    @property
    def is_code(self) -> bool:
        return PurePosixPath(self.name).suffix.lower() in _CODE or self.head.startswith(b"#!")


def build_report(skill: SkillDefinition, digest: TreeDigest) -> CapabilityReport:
    """Scan every file of `digest`."""
    scans = [_scan(skill.folder, name) for name in digest.files]
    scripts = {f"scripts/{script.path.name}" for script in discover_scripts(skill)}
    known = scripts | {"impl.py"} | {_toolset_file(toolset) for toolset in skill.toolsets}
    return CapabilityReport(
        scripts=_sorted(scripts),
        toolsets=_sorted(skill.toolsets),
        capability=("impl.py",) if "impl.py" in digest.files else (),
        other_code=_sorted(scan.name for scan in scans if scan.is_code and scan.name not in known),
        binaries=_sorted(scan.name for scan in scans if scan.head.startswith(_MACHINE_CODE)),
        allowed_tools=_sorted(skill.allowed_tools),
        environment=_sorted(skill.permissions_env),
        environment_read=_sorted(name for scan in scans for name in scan.hints.environment),
        dependencies=_sorted(name for scan in scans for name in scan.hints.dependencies),
        network=_sorted(f"{scan.name}: {module}" for scan in scans for module in scan.hints.network),
        hosts=_sorted(host for scan in scans for host in scan.hints.hosts),
        hidden_characters=tuple(line for scan in scans for line in _hidden_lines(scan)),
        large_file_pointers=_sorted(scan.name for scan in scans if scan.head.startswith(_LARGE_FILE_POINTER)),
        files=len(digest.files),
        bytes=digest.bytes,
    )


def diff_reports(old: CapabilityReport, new: CapabilityReport) -> CapabilityDiff:
    """Compare capabilities; see `diff_files` for files."""
    added: dict[str, tuple[str, ...]] = {}
    removed: dict[str, tuple[str, ...]] = {}
    before, after = list_capabilities(old), list_capabilities(new)
    for field, words in after.items():
        if more := tuple(word for word in words if word not in before[field]):
            added[field] = more
        if less := tuple(word for word in before[field] if word not in words):
            removed[field] = less
    return CapabilityDiff(added=added, removed=removed)


def diff_files(diff: CapabilityDiff, *, old: dict[str, str], new: dict[str, str]) -> CapabilityDiff:
    """Add the names of differing files to a diff."""
    return diff.model_copy(
        update={
            "files_added": _sorted(new.keys() - old.keys()),
            "files_removed": _sorted(old.keys() - new.keys()),
            "files_changed": _sorted(name for name in old.keys() & new.keys() if old[name] != new[name]),
        }
    )


def list_capabilities(report: CapabilityReport) -> dict[str, tuple[str, ...]]:
    """Return the lists of the report with their names, in order."""
    return {name: value for name, value in report if isinstance(value, tuple)}


def _scan(folder: Path, name: str) -> _Scan:
    with (folder / name).open("rb") as stream:
        content = stream.read(_MAX_SCANNED_BYTES)
    head = content[:64]
    if b"\0" in content:
        return _Scan(name, head, None, CodeHints())
    text = content.decode("utf-8", "replace")
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in _CODE or head.startswith(b"#!"):
        return _Scan(name, head, text, get_hints(text, suffix=suffix))
    return _Scan(name, head, text, CodeHints(hosts=list_hosts(text)))


def _hidden_lines(scan: _Scan) -> list[str]:
    if scan.text is None:
        return []
    return [f"{scan.name}:{found.line}: {found.code_point} {found.name}" for found in list_hidden(scan.text)]


def _toolset_file(toolset: str) -> str:
    return toolset.partition(":")[0].replace(".", "/") + ".py"


def _sorted(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(words)))
