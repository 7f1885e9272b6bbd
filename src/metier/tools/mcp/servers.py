"""The MCP servers of a workspace: `.agent/mcp.json`, `.mcp.json`, and the user's acceptance of each.

    {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"]},
                    "docs": {"url": "https://docs.example/mcp", "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"}}}}

A server is a foreign program: a cloned workspace must not start it before the user accepts it. The accepted tools are
stored in `~/.agent/mcp/<digest>.json` and offered to the model without starting the server. Starts nothing.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self, cast

from msgspec import Struct, field
from msgspec.structs import replace
from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from metier.definitions.files.contained_path import is_absent, read_contained
from metier.definitions.files.whole_file import replace_file
from metier.definitions.nearest import hint_nearest
from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import Context, Entries, FileModel, Items, ModelReading, Raw, fault, read_model
from metier.definitions.text.json_text import read_json
from metier.definitions.text.yaml_text import Entry, Scalar
from metier.definitions.text.yaml_text import Mapping as MappingNode
from metier.errors import ConfigError, UsageError
from metier.telemetry.secret_names import is_secret_name
from metier.tools.base import ToolInfo
from metier.values import Value

MAX_BYTES = 1024 * 1024
ROOT_KEY = "mcpServers"
STDIO_KEYS = frozenset({"args", "env", "cwd"})
HTTP_KEYS = frozenset({"headers"})
HTTP_TYPES = frozenset({"http", "streamable-http", "streamableHttp", "streamable_http"})

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,47}", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}", re.ASCII)


class ServerDefinition(Struct, frozen=True, kw_only=True):
    """The definition of a server. Values may contain `${VARIABLE}` before `expand_server`."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str = ""
    """Relative to the workspace, which is the default."""
    url: str = ""
    """Address of a streamable HTTP server, which has no command."""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    disabled: bool = False
    file: str = ""
    line: int = 1

    @property
    def target(self) -> str:
        """Return the command or address as written, for users."""
        return self.url or " ".join((self.command, *self.args))

    def digest(self, workspace: Path) -> str:
        """Hash everything that determines what is started and where, before variables are expanded."""
        parts = [self.name, self.command, self.args, dict(self.env), self.cwd, self.url, dict(self.headers)]
        # With the workspace, because an acceptance in one folder does not apply to the same text in another.
        return hashlib.sha256(json.dumps([str(workspace), *parts], sort_keys=True).encode()).hexdigest()


class McpConfig(Struct, frozen=True):
    servers: tuple[ServerDefinition, ...] = ()
    warnings: tuple[Problem, ...] = ()
    left_out: tuple[Problem, ...] = ()
    """The warnings about servers that are missing because of a problem: all of a broken shared file, or one of them."""


def load_mcp_config(file: Path, *, workspace: Path) -> McpConfig:
    """Load the file; empty if there is none. Raises `ConfigError` with every problem found."""
    data = _read_file(file, workspace=workspace)
    return McpConfig() if data is None else parse_mcp_config(data, file=str(file))


def load_shared_config(file: Path, *, workspace: Path) -> McpConfig:
    """Load a file that is shared with other programs: unusable entries are skipped with a warning.

    Raises `ConfigError` if it cannot be read.
    """
    data = _read_file(file, workspace=workspace)
    if data is None:
        return McpConfig()
    reading = _read_servers(data, file=str(file))
    # Warnings, because the file also serves other programs, with entries that only they understand.
    warnings = tuple(replace(problem, severity="warning") for problem in reading.problems)
    left_out = [
        warning for warning, problem in zip(warnings, reading.problems, strict=True) if problem.severity == "error"
    ]
    return McpConfig(reading.servers, warnings, tuple(left_out))


def add_servers(own: McpConfig, shared: McpConfig) -> McpConfig:
    """Combine both; of two servers with the same name, the own one counts."""
    names = {server.name for server in own.servers}
    others = tuple(server for server in shared.servers if server.name not in names)
    return McpConfig((*own.servers, *others), (*own.warnings, *shared.warnings), shared.left_out)


def _read_file(file: Path, *, workspace: Path) -> bytes | None:
    if is_absent(file):  # a cheap check first: every run looks for these files, and most are missing
        return None
    try:
        within = workspace if file.is_relative_to(workspace) else file.parent
        return read_contained(file, within=within, limit=MAX_BYTES)
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        return None  # placeholder for a missing file while a sandboxed program runs
    except OSError as error:
        raise ConfigError(f"The MCP servers '{file}' cannot be read: {error.strerror}") from error


def parse_mcp_config(data: bytes, *, file: str) -> McpConfig:
    """Parse the servers. Raises `ConfigError` with every problem found."""
    reading = _read_servers(data, file=file)
    if has_errors(reading.problems):
        raise ConfigError(
            f"The MCP servers '{file}' cannot be used", hint="Correct the lines above", problems=reading.problems
        )
    return McpConfig(reading.servers, reading.problems)


def choose_servers(config: McpConfig, wanted: str | tuple[str, ...]) -> tuple[ServerDefinition, ...]:
    """Return the enabled servers that are wanted. Raises `ConfigError` for an unknown name."""
    enabled = tuple(server for server in config.servers if not server.disabled)
    if isinstance(wanted, str):
        return enabled if wanted == "all" else ()
    names = [server.name for server in config.servers]
    for name in wanted:
        if name not in names:
            hint = hint_nearest(name, names) or f"Available: {', '.join(names) or 'none'}"
            raise ConfigError(f"No MCP server is called {name!r}", hint=hint)
    return tuple(server for server in enabled if server.name in wanted)


def expand_server(server: ServerDefinition, environ: Mapping[str, str]) -> ServerDefinition:
    """Return the definition with variables expanded. Raises `ConfigError` for one without a value or default."""
    missing: list[str] = []

    def expand(text: str) -> str:
        def find(match: re.Match[str]) -> str:
            # As in a shell, `:-` also replaces an empty value.
            value = environ.get(match[1]) or match[2]
            if value is None:
                missing.append(match[1])
            return value or ""

        return _VARIABLE.sub(find, text)

    expanded = replace(
        server,
        command=expand(server.command),
        args=tuple(expand(each) for each in server.args),
        env={name: expand(value) for name, value in server.env.items()},
        cwd=expand(server.cwd),
        url=expand(server.url),
        headers={name: expand(value) for name, value in server.headers.items()},
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


def list_server_secrets(servers: Iterable[ServerDefinition], environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the secrets to redact: variables in `env` and `headers`, and values there with a secret's name."""
    found: list[str] = []
    for server in servers:
        for name, text in (*server.env.items(), *server.headers.items()):
            found += [environ.get(match[1], "") for match in _VARIABLE.finditer(text)]
            if is_secret_name(name) and not _VARIABLE.search(text):
                found.append(text)
    return tuple(value for value in found if value)


def _read_text(value: object) -> object:
    # The JSON reader returns strings as quoted scalars, and numbers, booleans and null as plain ones.
    if isinstance(value, Scalar) and not value.is_plain and "\0" not in value.value:
        return value.value
    raise fault("not_text", "must be text")


_Text = Annotated[str, BeforeValidator(_read_text), Field(min_length=1)]
_AnyText = Annotated[str, BeforeValidator(_read_text)]


class _Server(FileModel):
    command: _Text = ""
    args: Items[_AnyText] = ()
    env: Entries[_AnyText] = Field(default_factory=dict[str, str])
    cwd: _Text = ""
    url: _Text = ""
    headers: Entries[_AnyText] = Field(default_factory=dict[str, str])
    type: _AnyText = ""
    disabled: Raw | None = None

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        # The scheme may come from a variable, which isn't expanded yet.
        if not url.startswith(("http://", "https://", "${")):
            raise fault("no_address", "must begin with http:// or https://")
        return url

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise fault("no_target", "must have either a 'command' or a 'url'")
        if self.type and self.type not in ({"stdio"} if self.command else HTTP_TYPES):
            hint = "Use 'stdio' with a command, 'http' with a url; the older 'sse' is not supported"
            raise fault("unknown_type", f"cannot be {self.type!r}", hint, key="type")
        kind, others = ("command", HTTP_KEYS) if self.command else ("url", STDIO_KEYS)
        for key in sorted(others & self.model_fields_set):
            raise fault("wrong_key", f"has no effect for a server with a {kind!r}", key=key)
        return self


class _ConfigFile(FileModel):
    servers: Entries[Raw] = Field(alias=ROOT_KEY)


class _FileReading(Struct, frozen=True):
    servers: tuple[ServerDefinition, ...]
    problems: tuple[Problem, ...]


def _read_servers(data: bytes, *, file: str) -> _FileReading:
    """Read all valid servers, and the problems of the others."""
    if len(data) > MAX_BYTES:
        message = f"The file is larger than {MAX_BYTES} bytes"
        problem = Problem(severity="error", code="file_too_large", message=message, file=file, line=1)
        return _FileReading((), (problem,))
    document = read_json(data, file=file)
    if document.root is None:
        return _FileReading((), document.problems)
    reading = read_model(_ConfigFile, document.root, file=file, context=Context(unknown_keys="warning"))
    problems = [*document.problems, *reading.problems]
    servers: list[ServerDefinition] = []
    found = document.root.find(ROOT_KEY) if isinstance(document.root, MappingNode) else None
    for entry in found.value.entries if found and isinstance(found.value, MappingNode) else ():
        server = _read_server(entry, file=file)
        servers += [server.value] if server.value else []
        problems += server.problems
    return _FileReading(tuple(servers), tuple(problems))


def _read_server(entry: Entry, *, file: str) -> ModelReading[ServerDefinition]:
    if not _NAME.fullmatch(entry.key):
        message = f"The server name {entry.key!r} cannot be part of a tool's name"
        hint = "Use up to 48 letters, digits, - and _"
        problem = Problem(severity="error", code="invalid_name", message=message, file=file, line=entry.line, hint=hint)
        return ModelReading(None, (problem,))
    node = replace(entry.value, line=entry.line)
    context = Context(unknown_keys="warning")
    reading = read_model(_Server, node, file=file, subject=f"Server {entry.key!r}", context=context)
    fields = reading.value
    if fields is None:
        return ModelReading(None, reading.problems)
    server = ServerDefinition(
        name=entry.key,
        command=fields.command,
        args=fields.args,
        env=fields.env,
        cwd=fields.cwd,
        url=fields.url,
        headers=fields.headers,
        disabled=isinstance(fields.disabled, Scalar) and fields.disabled == Scalar("true", fields.disabled.line),
        file=file,
        line=entry.line,
    )
    return ModelReading(server, reading.problems)


def add_server(text: str, name: str, server: Mapping[str, JsonValue], *, replaces: bool = False) -> str:
    """Add a server to the text of a file. Raises `UsageError` if the name is taken, unless it may be replaced."""
    root, servers = _read(text)
    if name in servers and not replaces:
        raise UsageError(f"There is an MCP server {name!r} already", hint="Add --replace to put this one in its place")
    servers[name] = dict(server)
    return _write(root, servers)


def remove_server(text: str, name: str) -> str | None:
    """Remove a server from the text of a file; None if there is no such server."""
    root, servers = _read(text)
    if name not in servers:
        return None
    del servers[name]
    return _write(root, servers)


def _read(text: str) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Parse a file that was validated before: an object of objects, or empty."""
    root = cast("dict[str, JsonValue]", json.loads(text)) if text.strip() else {}
    servers = root.get(ROOT_KEY)
    return root, dict(servers) if isinstance(servers, dict) else {}


def _write(root: dict[str, JsonValue], servers: dict[str, JsonValue]) -> str:
    return json.dumps({**root, ROOT_KEY: servers}, indent=2, ensure_ascii=False) + "\n"


_FOLDER = ".agent/mcp"


class Acceptance(Value):
    """The acceptance of one server in one workspace."""

    server: str
    workspace: str
    target: str
    accepted_at: AwareDatetime
    tools: tuple[ToolInfo, ...]
    code: str = ""
    """The hash of the server's files in the workspace; empty if there are none."""


_ACCEPTANCE: TypeAdapter[Acceptance] = TypeAdapter(Acceptance)


class AcceptedServers:
    """The accepted servers of one workspace. An acceptance is bound to the definition: a change requires a new one."""

    def __init__(self, home: Path, workspace: Path) -> None:
        self._folder = home / _FOLDER
        self._workspace = workspace

    def find(self, server: ServerDefinition) -> Acceptance | None:
        """Return the acceptance, or None; an unreadable record counts as not accepted."""
        try:
            return _ACCEPTANCE.validate_json(self._path(server).read_bytes())
        except (OSError, ValidationError):
            return None

    def accept(
        self, server: ServerDefinition, tools: tuple[ToolInfo, ...], *, now: datetime, code: str = ""
    ) -> Acceptance:
        """Record the acceptance of a server. Raises `OSError` if it cannot be written."""
        acceptance = Acceptance(
            server=server.name,
            workspace=str(self._workspace),
            target=server.target,
            accepted_at=now,
            tools=tools,
            code=code,
        )
        # Private and in the home: a program of the workspace must not accept a server by writing a file.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(server), _ACCEPTANCE.dump_json(acceptance, indent=1), durable=True)
        return acceptance

    def forget(self, server: ServerDefinition) -> bool:
        """Remove an acceptance. Returns False if there was none."""
        try:
            self._path(server).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, server: ServerDefinition) -> Path:
        # The digest is the name, so a changed definition finds no acceptance.
        return self._folder / f"{server.digest(self._workspace)[:32]}.json"
