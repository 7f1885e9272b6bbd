"""`agent mcp`: manage the MCP servers of this workspace, and serve the workspace over MCP."""

import importlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import anyio
import typer
from msgspec import Struct
from pydantic import JsonValue

from metier.cli.shared.command_options import AsJson, Config, build_group
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.skill.decision import decide_interactively
from metier.definitions.files.whole_file import replace_file
from metier.definitions.nearest import hint_nearest
from metier.errors import MetierError, UsageError
from metier.extras import hint_extra
from metier.runtime.cleaning import SHARED_FILE, load_host_config
from metier.runtime.host import Host
from metier.runtime.mcp import Trial, get_enclosure, open_acceptances, try_servers
from metier.settings.setting_values import is_secret_name, looks_secret
from metier.telemetry.amounts import format_count
from metier.tools.base import ToolInfo
from metier.tools.mcp.offered_tools import Difference, compare_listings
from metier.tools.mcp.servers import (
    Acceptance,
    ServerDefinition,
    add_server,
    choose_servers,
    expand_server,
    parse_mcp_config,
    remove_server,
)

Shared = Annotated[bool, typer.Option("--shared", help="Write to `.mcp.json`, which other programs read too.")]
Pairs = list[str] | None


def add(
    name: Annotated[str, typer.Argument(help="Server name; its tools are NAME/tool.")],
    command: Annotated[list[str] | None, typer.Argument(help="Program and its arguments, after `--`.")] = None,
    *,
    url: Annotated[str, typer.Option("--url", help="URL of a remote server.")] = "",
    env: Annotated[Pairs, typer.Option("--env", help="Environment variable as NAME=VALUE (repeatable).")] = None,
    header: Annotated[Pairs, typer.Option("--header", help="HTTP header as NAME=VALUE (repeatable).")] = None,
    shared: Shared = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing server.")] = False,
    config: Config = None,
) -> None:
    """Add an MCP server.

    Keep secrets in the environment: `--env TOKEN='${MY_TOKEN}'`.
    """
    host = open_host(config)
    if bool(command) == bool(url):
        raise UsageError(
            "Pass either a command after `--` or --url",
            hint=f"For example, `agent mcp add {name} -- uvx mcp-server-time`",
        )
    server: dict[str, JsonValue] = {"url": url} if url else {"command": (command or [""])[0]}
    if command and command[1:]:
        server["args"] = list(command[1:])
    server |= {
        key: dict(found) for key, found in (("env", _read_pairs(env)), ("headers", _read_pairs(header))) if found
    }
    file = _get_file(host, shared=shared)
    if not replace and any(each.name == name for each in load_host_config(host).servers):
        raise UsageError(f"MCP server {name!r} already exists", hint="Add --replace to overwrite it")
    text = add_server(_read_text(file), name, server, replaces=replace)
    # Validate before writing: an invalid file would break every later command of the workspace.
    parse_mcp_config(text.encode(), file=str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    # Not private: the file is committed, and other programs read `.mcp.json`.
    replace_file(file, text.encode(), is_private=False)
    warn_line(f"{name} is in '{file.relative_to(host.workspace)}'")
    warn_line(f"next:    agent mcp accept {name}")


def remove(name: Annotated[str, typer.Argument(help="Server name.")], *, config: Config = None) -> None:
    """Remove an MCP server."""
    host = open_host(config)
    named = [server for server in load_host_config(host).servers if server.name == name]
    removed = [file for file in (_get_file(host, shared=False), _get_file(host, shared=True)) if _drop(file, name)]
    if not removed:
        raise UsageError(f"No MCP server is called {name!r}", hint="Run `agent mcp list` to list MCP servers")
    for server in named:
        # Acceptances are found by the definition: added again unchanged, the server would start without a review.
        open_acceptances(host).forget(server)
    warn_line(f"{name} is no longer in {', '.join(repr(str(file.relative_to(host.workspace))) for file in removed)}")


def _drop(file: Path, name: str) -> bool:
    text = remove_server(_read_text(file), name)
    if text is not None:
        replace_file(file, text.encode(), is_private=False)
    return text is not None


def _get_file(host: Host, *, shared: bool) -> Path:
    return host.workspace / (SHARED_FILE if shared else host.settings.mcp.file)


def _read_text(file: Path) -> str:
    """Read a configuration file. Raises `ConfigError` if it is invalid, so that it is not overwritten."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return ""
    if data.strip():
        parse_mcp_config(data, file=str(file))
    return data.decode("utf-8-sig")


def _read_pairs(given: Pairs) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for word in given or ():
        name, separator, value = word.partition("=")
        if not name or not separator:
            raise UsageError(f"{word!r} is not NAME=VALUE")
        if looks_secret(value) or (is_secret_name(name, value) and "${" not in value and value):
            raise UsageError(
                f"{name} looks like a secret; use the name of an environment variable instead",
                hint=f"Set the variable in your environment, and write {name}='${{{name.upper().replace('-', '_')}}}'",
            )
        pairs[name] = value
    return pairs


app = build_group("Manage MCP servers, or serve this workspace.")
_SHOWN_CHARACTERS = 100
_ENCLOSURES = {
    "http": "remote server: nothing is started here",
    "outside": "runs with your permissions, without a sandbox",
    "none": "cannot run: a sandbox is required but not available here",
}


class ServerStatus(Struct, frozen=True, kw_only=True):
    """The status of one server."""

    server: ServerDefinition
    is_used: bool
    acceptance: Acceptance | None
    trial: Trial | None
    """None if it was not started."""
    enclosure: str
    """`http`, `outside` of the sandbox, or the level of the sandbox that a run here would use."""

    @property
    def differences(self) -> dict[str, Difference]:
        if self.acceptance is None or self.trial is None or self.trial.listing is None:
            return {}
        return compare_listings(self.acceptance.tools, self.trial.listing.tools)

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        """Return the tools that are offered to a model."""
        return self.acceptance.tools if self.acceptance is not None else ()

    @property
    def state(self) -> str:
        if not self.is_used:
            return "off"
        if self.acceptance is None:
            return "not accepted"
        if self.trial is None:
            return "accepted"
        if self.trial.listing is None:
            return "does not start"
        return "changed" if self.differences else "ok"


app.command("add", no_args_is_help=True)(add)
app.command("remove")(remove)


@app.command("list")
def list_servers(
    *,
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start accepted servers to test them.")] = True,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """List MCP servers and their tools.

    Exit code 1: an accepted server does not start or changed its tools.
    """
    host = open_host(config)
    statuses = examine(host, start=start)
    if as_json:
        write_json([as_object(status) for status in statuses])
    else:
        for status in statuses:
            write_server_status(status)
        if not statuses:
            warn_line(f"No MCP servers in '{host.settings.mcp.file}' or '.mcp.json'; add one with `agent mcp add`")
    return int(any(status.state in ("does not start", "changed") for status in statuses))


@app.command()
def accept(
    names: Annotated[list[str] | None, typer.Argument(help="Server names.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Accept all configured servers.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")] = False,
    config: Config = None,
) -> int:
    """Review and accept an MCP server.

    A server runs with your permissions, and in a sandbox only if one is required or `mcp.outside_sandbox` doesn't
    list it. It is never started before you accept it, and a tool whose description changed is not called.
    """
    host = open_host(config)
    servers = _choose(host, names or [], every=every)
    for server in servers:
        # Only to fail for an unset variable before anything is started.
        expand_server(server, host.environ)
        warn_line(f"{server.name}: {'connects to' if server.url else 'runs'} {server.target}")
        enclosure = get_enclosure(host, server)
        warn_line(f"{server.name}: {_ENCLOSURES.get(enclosure, f'in the sandbox, level {enclosure!r}')}")
    if not yes and not decide_interactively("Start them and list their tools?", flag="--yes"):
        return 1
    trials = anyio.run(partial(try_servers, is_accepting=True), host, servers)
    return max(_accept_one(host, server, trials[server.name], yes=yes) for server in servers)


@app.command()
def forget(name: Annotated[str, typer.Argument(help="Server name.")], *, config: Config = None) -> None:
    """Revoke the acceptance of an MCP server."""
    host = open_host(config)
    (server,) = _choose(host, [name], every=False)
    if not open_acceptances(host).forget(server):
        raise UsageError(f"MCP server {name!r} was not accepted")
    warn_line(f"{name} is no longer accepted")


@app.command()
def serve(*, config: Config = None) -> int:
    """Serve this workspace to an MCP client over stdio.

    The client cannot approve calls: approvals wait for `agent approve`. If the client or this program is killed,
    runs can be resumed.
    """
    if find_spec("mcp") is None:
        raise UsageError("Serving MCP needs the package 'mcp'", hint=hint_extra("mcp"))
    host = open_host(config)
    # Imported late: the SDK is optional, and its import takes more than a second.
    exit_code: int = importlib.import_module("metier.protocols.mcp.server").serve_stdio(host)
    return exit_code


def as_object(status: ServerStatus) -> dict[str, JsonValue]:
    trial, acceptance = status.trial, status.acceptance
    refused = trial.listing.refused if trial is not None and trial.listing is not None else ()
    return {
        "server": status.server.name,
        "target": status.server.target,
        "transport": "http" if status.server.url else "stdio",
        "state": status.state,
        "sandbox": status.enclosure,
        "problem": trial.problem if trial is not None else "",
        "accepted_at": acceptance.accepted_at.isoformat() if acceptance is not None else None,
        "tools": [
            {"name": info.name, "description": info.description, "risk": info.risk, "effect": info.effect}
            for info in status.tools
        ],
        "differences": dict(status.differences),
        "refused": list(refused),
    }


def examine(host: Host, *, start: bool = False) -> list[ServerStatus]:
    """Return the status of every server of the workspace; `start` tries the accepted ones."""
    loaded = load_host_config(host)
    for problem in loaded.warnings:
        warn_line(problem.render())
    used = {server.name for server in choose_servers(loaded, host.settings.mcp.servers)}
    accepted = open_acceptances(host)
    found = {server.name: accepted.find(server) for server in loaded.servers}
    trials: dict[str, Trial] = {}
    ready: list[ServerDefinition] = []
    for server in loaded.servers:
        if not start or server.name not in used or found[server.name] is None:
            continue
        try:
            expand_server(server, host.environ)
        except MetierError as error:
            trials[server.name] = Trial(problem=error.message)
        else:
            ready.append(server)
    if ready:
        trials |= anyio.run(try_servers, host, ready)
    return [
        ServerStatus(
            server=server,
            is_used=server.name in used,
            acceptance=found[server.name],
            trial=trials.get(server.name),
            enclosure=get_enclosure(host, server),
        )
        for server in loaded.servers
    ]


def _choose(host: Host, names: list[str], *, every: bool) -> list[ServerDefinition]:
    servers = load_host_config(host).servers
    if every != (not names):
        raise UsageError("Name the servers, or pass --all", hint="Run `agent mcp list` to list MCP servers")
    if every:
        servers = choose_servers(load_host_config(host), host.settings.mcp.servers)
        if not servers:
            raise UsageError("No servers to accept", hint=f"Define them in '{host.settings.mcp.file}'")
        return list(servers)
    known = {server.name: server for server in servers}
    for name in names:
        if name not in known:
            hint = hint_nearest(name, known) or "Run `agent mcp list` to list MCP servers"
            raise UsageError(f"No MCP server is called {name!r}", hint=hint)
    return [known[name] for name in dict.fromkeys(names)]


def _accept_one(host: Host, server: ServerDefinition, trial: Trial, *, yes: bool) -> int:
    if trial.listing is None:
        warn_line(f"{server.name}: not accepted. {trial.problem}")
        return 1
    before = open_acceptances(host).find(server)
    differences = compare_listings(before.tools, trial.listing.tools) if before is not None else {}
    for info in trial.listing.tools:
        mark = f" ({differences[info.name]})" if info.name in differences else ""
        write_line(f"{info.name}{mark}  claims: {info.effect}, risk {info.risk}")
        write_line(f"    {info.description}")
    for name, difference in differences.items():
        if difference == "removed":
            write_line(f"{name} (removed)")
    for reason in trial.listing.refused:
        warn_line(f"{server.name}: {reason}")
    if not yes and not decide_interactively(f"Offer these tools of {server.name!r} to models?", flag="--yes"):
        return 1
    # The hash of the code that was started, and not of the files as they are after the user's answer.
    open_acceptances(host).accept(server, trial.listing.tools, now=host.clock.now(), code=trial.code)
    warn_line(f"{server.name} is accepted: {format_count(len(trial.listing.tools), 'tool')}")
    return 0


def write_server_status(status: ServerStatus) -> None:
    server = status.server
    write_line(f"{server.name}  {status.state}  {server.target}")
    write_line(f"    {_ENCLOSURES.get(status.enclosure, f'in the sandbox, level {status.enclosure!r}')}")
    if status.trial is not None and status.trial.problem:
        write_line(f"    {status.trial.problem}")
    if status.state == "not accepted":
        write_line(f"    Review and accept it: agent mcp accept {server.name}")
    for name, difference in status.differences.items():
        write_line(f"    {difference}: {name}")
    for info in status.tools:
        first = info.description.partition("\n")[0][:_SHOWN_CHARACTERS]
        write_line(f"    {info.name}  ({info.effect}, {info.risk})  {first}".rstrip())
