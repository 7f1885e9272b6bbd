"""The servers of the Model Context Protocol: `.agent/mcp.json`, `.mcp.json`, and the user's acceptance of each.

    {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]},
                    "docs": {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"}}}}

A server is a foreign program: the user starts it for the first time, never a folder that was cloned. Its offer at
that moment is kept in `~/.agent/mcp/<digest>.json` and shown to the model later without starting it. Reads, checks
and edits; starts nothing.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import AwareDatetime, JsonValue, TypeAdapter, ValidationError

from metier.definitions.files.contained_path import is_absent, read_contained
from metier.definitions.files.whole_file import replace_file
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.errors import ConfigError, UsageError
from metier.messages import Value
from metier.telemetry.names import is_secret_name
from metier.tools.base import ToolInfo

MAX_BYTES = 1024 * 1024
ROOT_KEY = "mcpServers"
STDIO_KEYS = ("command", "args", "env", "cwd")
HTTP_KEYS = ("url", "headers")
KEYS = (*STDIO_KEYS, *HTTP_KEYS, "type", "disabled")
HTTP_TYPES = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}", re.ASCII)


class ServerDefinition(Struct, frozen=True, kw_only=True):
    """One server as it is written down. Texts may hold `${VARIABLE}` until `expand_server` was asked."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str = ""
    """Relative to the workspace, which it is when empty."""
    url: str = ""
    """A streamable HTTP server; then there is no command."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    disabled: bool = False
    file: str = ""
    line: int = 1

    @property
    def target(self) -> str:
        """What is started or connected to, as it is written, for people."""
        return self.url or " ".join((self.command, *self.args))

    def digest(self, workspace: Path) -> str:
        """Changes with everything that decides what is started where. Made before variables are put in."""
        parts = [self.name, self.command, self.args, dict(self.env), self.cwd, self.url, dict(self.headers)]
        return hashlib.sha256(json.dumps([str(workspace), *parts], sort_keys=True).encode()).hexdigest()


class McpConfig(Struct, frozen=True):
    servers: tuple[ServerDefinition, ...] = ()
    warnings: tuple[Problem, ...] = ()


def load_mcp_config(file: Path, *, workspace: Path) -> McpConfig:
    """What the file says; nothing where there is none. Raises `ConfigError` with every problem found."""
    data = _read_file(file, workspace=workspace)
    return McpConfig() if data is None else parse_mcp_config(data, file=str(file))


def load_shared_config(file: Path, *, workspace: Path) -> McpConfig:
    """The same of a file that was written for other programs too: what we cannot use of it is left out with a warning.

    Raises `ConfigError` where it cannot be read.
    """
    data = _read_file(file, workspace=workspace)
    if data is None:
        return McpConfig()
    reader = _Reader(str(file), data)
    servers = reader.read()
    return McpConfig(tuple(servers), tuple(replace(problem, severity="warning") for problem in reader.problems))


def add_servers(own: McpConfig, shared: McpConfig) -> McpConfig:
    """Both together; of two servers with one name the first counts."""
    names = {server.name for server in own.servers}
    others = tuple(server for server in shared.servers if server.name not in names)
    return McpConfig((*own.servers, *others), (*own.warnings, *shared.warnings))


def _read_file(file: Path, *, workspace: Path) -> bytes | None:
    if is_absent(file):  # most places have none, and each run asks
        return None
    try:
        within = workspace if file.is_relative_to(workspace) else file.parent
        return read_contained(file, within=within, limit=MAX_BYTES)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return None  # it holds the place of a missing file while a program runs in a sandbox
    except OSError as error:
        raise ConfigError(f"The MCP servers '{file}' cannot be read: {error.strerror}") from error


def parse_mcp_config(data: bytes, *, file: str) -> McpConfig:
    reader = _Reader(file, data)
    servers = reader.read()
    if has_errors(reader.problems):
        raise ConfigError(
            f"The MCP servers '{file}' cannot be used", hint="Correct the lines above", problems=reader.problems
        )
    return McpConfig(tuple(servers), tuple(reader.problems))


def choose_servers(config: McpConfig, wanted: str | tuple[str, ...]) -> tuple[ServerDefinition, ...]:
    """Those that are to be used. Raises `ConfigError` for a name that no server has."""
    enabled = tuple(server for server in config.servers if not server.disabled)
    if isinstance(wanted, str):
        return enabled if wanted == "all" else ()
    names = [server.name for server in config.servers]
    for name in wanted:
        if name not in names:
            hint = hint_nearest(name, names) or f"There are: {', '.join(names) or 'none'}"
            raise ConfigError(f"No MCP server is called {name!r}", hint=hint)
    return tuple(server for server in enabled if server.name in wanted)


def expand_server(server: ServerDefinition, environ: Mapping[str, str]) -> ServerDefinition:
    """The definition with its variables put in. Raises `ConfigError` for one that is not set and has no default."""
    missing: list[str] = []

    def put_in(text: str) -> str:
        def find(match: re.Match[str]) -> str:
            value = environ.get(match[1]) or match[2]
            if value is None:
                missing.append(match[1])
            return value or ""

        return _VARIABLE.sub(find, text)

    expanded = ServerDefinition(
        name=server.name,
        command=put_in(server.command),
        args=tuple(put_in(each) for each in server.args),
        env={name: put_in(value) for name, value in server.env.items()},
        cwd=put_in(server.cwd),
        url=put_in(server.url),
        headers={name: put_in(value) for name, value in server.headers.items()},
        file=server.file,
        line=server.line,
    )
    if missing:
        problem = Problem(
            severity="error",
            code="missing_variable",
            message=f"MCP server {server.name!r} needs the variable {missing[0]!r}, which is not set",
            file=server.file,
            line=server.line,
            hint=f"Set {missing[0]}, or write ${{{missing[0]}:-default}}",
        )
        raise ConfigError(problem.message, hint=problem.hint, problems=(problem,))
    return expanded


def find_server_secrets(servers: Iterable[ServerDefinition], environ: Mapping[str, str]) -> tuple[str, ...]:
    """What must never show: variables that are in `env` and `headers`, and values there behind a secret's name."""
    found: list[str] = []
    for server in servers:
        for name, text in (*server.env.items(), *server.headers.items()):
            found += [environ.get(match[1], "") for match in _VARIABLE.finditer(text)]
            if is_secret_name(name) and not _VARIABLE.search(text):
                found.append(text)
    return tuple(value for value in found if value)


class _Reader:
    """Goes through the file and collects what is wrong with it."""

    def __init__(self, file: str, data: bytes) -> None:
        self._file = file
        self._data = data
        self.problems: list[Problem] = []

    def read(self) -> list[ServerDefinition]:
        root = self._parse()
        if root is None:
            return []
        for key in root.keys() - {ROOT_KEY}:
            self._report("unknown_key", f"Key {key!r} has no effect", key, is_error=False)
        servers = root.get(ROOT_KEY)
        if not isinstance(servers, dict):
            self._report("no_servers", f"The file must hold {{{ROOT_KEY!r}: {{…}}}}", ROOT_KEY)
            return []
        found = [self._read_server(name, value) for name, value in servers.items()]
        return [server for server in found if server is not None]

    def _parse(self) -> dict[str, JsonValue] | None:
        if len(self._data) > MAX_BYTES:
            self._report("too_large", f"The file is larger than {MAX_BYTES} bytes")
            return None
        try:
            root: JsonValue = json.loads(self._data.decode("utf-8-sig"), object_pairs_hook=self._refuse_twice)
        except UnicodeDecodeError:
            self._report("not_utf8", "The file is not UTF-8")
        except json.JSONDecodeError as error:
            self._report("not_json", f"The file is not JSON: {error.msg}", line=error.lineno)
        except RecursionError:
            self._report("too_deep", "The file is nested too deeply")
        else:
            if isinstance(root, dict):
                return root
            self._report("not_an_object", "The file must hold an object")
        return None

    def _refuse_twice(self, pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
        found = dict(pairs)
        for name in found:
            if sum(each == name for each, _ in pairs) > 1:
                self._report("twice", f"Key {name!r} stands twice", line=self._line_of(name, nth=2))
        return found

    def _read_server(self, name: str, value: JsonValue) -> ServerDefinition | None:
        if not _NAME.fullmatch(name):
            message = f"The server name {name!r} cannot stand before the slash of a tool's name"
            self._report("invalid_name", message, name, hint="Use up to 48 letters, digits, - and _")
            return None
        if not isinstance(value, dict):
            self._report("not_an_object", f"Server {name!r} must be an object", name)
            return None
        before = len(self.problems)
        self._check_keys(name, value)
        server = ServerDefinition(
            name=name,
            command=self._text(name, value, "command"),
            args=self._texts(name, value, "args"),
            env=self._mapping(name, value, "env"),
            cwd=self._text(name, value, "cwd"),
            url=self._text(name, value, "url"),
            headers=self._mapping(name, value, "headers"),
            disabled=value.get("disabled") is True,
            file=self._file,
            line=self._line_of(name),
        )
        return None if has_errors(self.problems[before:]) else server

    def _check_keys(self, name: str, value: dict[str, JsonValue]) -> None:
        for key in value:
            if key not in KEYS:
                hint = hint_nearest(key, KEYS) or "What may be called without a question is decided by rules alone"
                self._report("unknown_key", f"Key {key!r} of server {name!r} has no effect", key, hint, is_error=False)
        if ("command" in value) == ("url" in value):
            self._report("no_target", f"Server {name!r} must have either a 'command' or a 'url'", name)
        kind = value.get("type")
        if kind is not None and kind not in ({"stdio"} if "command" in value else HTTP_TYPES):
            hint = "Use 'stdio' with a command, 'http' with a url; the older 'sse' is not supported"
            self._report("unknown_type", f"Server {name!r} cannot have the type {kind!r}", "type", hint)
        url = value.get("url")
        if isinstance(url, str) and not url.startswith(("http://", "https://", "${")):
            self._report("no_address", f"The url of server {name!r} must begin with http:// or https://", "url")
        other = HTTP_KEYS if "command" in value else STDIO_KEYS
        for key in other:
            if key in value and key not in ("command", "url"):
                self._report("wrong_key", f"Server {name!r} is of a kind that has no {key!r}", key)

    def _text(self, server: str, value: dict[str, JsonValue], key: str) -> str:
        found = value.get(key, "")
        if isinstance(found, str) and (found or key not in value) and "\0" not in found:
            return found
        self._report("wrong_type", f"Key {key!r} of server {server!r} must be text", key)
        return ""

    def _texts(self, server: str, value: dict[str, JsonValue], key: str) -> tuple[str, ...]:
        found = value.get(key, [])
        if isinstance(found, list) and all(isinstance(each, str) and "\0" not in each for each in found):
            return tuple(cast("list[str]", found))  # each was looked at
        self._report("wrong_type", f"Key {key!r} of server {server!r} must be a list of texts", key)
        return ()

    def _mapping(self, server: str, value: dict[str, JsonValue], key: str) -> dict[str, str]:
        found = value.get(key, {})
        if isinstance(found, dict) and all(isinstance(each, str) and "\0" not in each for each in found.values()):
            return cast("dict[str, str]", found)  # each was looked at
        self._report("wrong_type", f"Key {key!r} of server {server!r} must be an object of texts", key)
        return {}

    def _report(  # noqa: PLR0917 - what a problem is made of
        self, code: str, message: str, key: str = "", hint: str = "", *, line: int = 0, is_error: bool = True
    ) -> None:
        place = line or (self._line_of(key) if key else 1)
        severity = "error" if is_error else "warning"
        self.problems.append(
            Problem(severity=severity, code=code, message=message, file=self._file, line=place, hint=hint)
        )

    def _line_of(self, key: str, *, nth: int = 1) -> int:
        index = -1
        for _ in range(nth):
            index = self._data.find(json.dumps(key).encode(), index + 1)
        return self._data.count(b"\n", 0, max(index, 0)) + 1


def add_server(text: str, name: str, server: Mapping[str, JsonValue], *, replaces: bool = False) -> str:
    """The text of the file with the server. Raises `UsageError` where there is one of that name and none is wanted."""
    root, servers = _read(text)
    if name in servers and not replaces:
        raise UsageError(f"There is an MCP server {name!r} already", hint="Add --replace to put this one in its place")
    servers[name] = dict(server)
    return _write(root, servers)


def remove_server(text: str, name: str) -> str | None:
    """The text without the server; None where it has none of that name."""
    root, servers = _read(text)
    if name not in servers:
        return None
    del servers[name]
    return _write(root, servers)


def _read(text: str) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """The file was checked before it is changed: it is an object of objects, or empty."""
    root = cast("dict[str, JsonValue]", json.loads(text)) if text.strip() else {}
    servers = root.get(ROOT_KEY)
    return root, dict(servers) if isinstance(servers, dict) else {}


def _write(root: dict[str, JsonValue], servers: dict[str, JsonValue]) -> str:
    return json.dumps({**root, ROOT_KEY: servers}, indent=2, ensure_ascii=False) + "\n"


_FOLDER = ".agent/mcp"


class Acceptance(Value):
    """One server of one workspace, as it was accepted."""

    server: str
    workspace: str
    target: str
    accepted_at: AwareDatetime
    tools: tuple[ToolInfo, ...]
    code: str = ""
    """The hash of the files in the workspace that it is started from; empty where there are none."""


_ACCEPTANCE: TypeAdapter[Acceptance] = TypeAdapter(Acceptance)


class AcceptedServers:
    """The servers that were accepted for one workspace. Bound to the bytes of the definition: a changed one is new."""

    def __init__(self, home: Path, workspace: Path) -> None:
        self._folder = home / _FOLDER
        self._workspace = workspace

    def find(self, server: ServerDefinition) -> Acceptance | None:
        """What cannot be read was not accepted."""
        try:
            return _ACCEPTANCE.validate_json(self._path(server).read_bytes())
        except (OSError, ValidationError):
            return None

    def accept(
        self, server: ServerDefinition, tools: tuple[ToolInfo, ...], *, now: datetime, code: str = ""
    ) -> Acceptance:
        """Raises `OSError` where it cannot be written down."""
        acceptance = Acceptance(
            server=server.name,
            workspace=str(self._workspace),
            target=server.target,
            accepted_at=now,
            tools=tools,
            code=code,
        )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(server), _ACCEPTANCE.dump_json(acceptance, indent=1), durable=True)
        return acceptance

    def forget(self, server: ServerDefinition) -> bool:
        """False when it was not accepted."""
        try:
            self._path(server).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, server: ServerDefinition) -> Path:
        return self._folder / f"{server.digest(self._workspace)[:32]}.json"
