"""`agent mcp`: the external tool servers of this workspace, what they offer, and who accepted them."""

import importlib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import anyio
import typer
from msgspec import Struct
from pydantic import JsonValue

from metier.cli.shared.options import AsJson, Config
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.shared.place import open_place
from metier.cli.skill.decision import decide_interactively
from metier.definitions.files.whole_file import replace_file
from metier.definitions.nearest import hint_nearest
from metier.errors import MetierError, UsageError
from metier.extras import hint_extra
from metier.runtime.cleaning import SHARED_FILE, load_place_config
from metier.runtime.host import Host
from metier.runtime.mcp import Trial, find_enclosure, open_acceptances, try_servers
from metier.settings.values import is_secret_name, looks_secret
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

Shared = Annotated[
    bool, typer.Option("--shared", help="Write `.mcp.json`, which other programs read too, instead of our own file.")
]
Pairs = list[str] | None


def add(
    name: Annotated[str, typer.Argument(help="What the server is called; its tools are NAME/tool.")],
    command: Annotated[list[str] | None, typer.Argument(help="The program and its arguments, behind `--`.")] = None,
    *,
    url: Annotated[str, typer.Option("--url", help="The address of a server that runs elsewhere.")] = "",
    env: Annotated[Pairs, typer.Option("--env", help="A variable for it, as NAME=VALUE; may be repeated.")] = None,
    header: Annotated[Pairs, typer.Option("--header", help="A header for it, as NAME=VALUE; may be repeated.")] = None,
    shared: Shared = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of one of that name.")] = False,
    config: Config = None,
) -> None:
    """Name an external tool server of this workspace. It is started when you accept it, not before.

    Secrets stay in the environment: write `--env TOKEN='${MY_TOKEN}'`.
    """
    place = open_place(config)
    if bool(command) == bool(url):
        raise UsageError(
            "Give either a command behind `--` or --url", hint=f"agent mcp add {name} -- uvx mcp-server-time"
        )
    server: dict[str, JsonValue] = {"url": url} if url else {"command": (command or [""])[0]}
    if command and command[1:]:
        server["args"] = list(command[1:])
    server |= {
        key: dict(found) for key, found in (("env", _read_pairs(env)), ("headers", _read_pairs(header))) if found
    }
    file = _find_file(place, shared=shared)
    if not replace and any(each.name == name for each in load_place_config(place).servers):
        raise UsageError(f"There is an MCP server {name!r} already", hint="Add --replace to put this one in its place")
    text = add_server(_read_text(file), name, server, replaces=replace)
    parse_mcp_config(text.encode(), file=str(file))
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, text.encode(), is_private=False)
    warn_line(f"{name} is in '{file.relative_to(place.workspace)}'")
    warn_line(f"next:    agent mcp accept {name}")


def remove(
    name: Annotated[str, typer.Argument(help="The server to take out of its file.")], *, config: Config = None
) -> None:
    """Take a server out of the file that names it, and take its acceptance back."""
    place = open_place(config)
    named = [server for server in load_place_config(place).servers if server.name == name]
    removed = [file for file in (_find_file(place, shared=False), _find_file(place, shared=True)) if _drop(file, name)]
    if not removed:
        raise UsageError(f"No MCP server is called {name!r}", hint="`agent mcp list` shows them")
    for server in named:
        open_acceptances(place).forget(server)
    warn_line(f"{name} is no longer in {', '.join(repr(str(file.relative_to(place.workspace))) for file in removed)}")


def _drop(file: Path, name: str) -> bool:
    text = remove_server(_read_text(file), name)
    if text is not None:
        replace_file(file, text.encode(), is_private=False)
    return text is not None


def _find_file(place: Host, *, shared: bool) -> Path:
    return place.workspace / (SHARED_FILE if shared else place.settings.mcp.file)


def _read_text(file: Path) -> str:
    """Raises `ConfigError` for a file that cannot be used: it is not written over."""
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
                f"{name} was given what looks like a secret; files hold the name of a variable instead",
                hint=f"Set the variable in your environment, and write {name}='${{{name.upper().replace('-', '_')}}}'",
            )
        pairs[name] = value
    return pairs


app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    no_args_is_help=True,
    help="List, add, accept and remove external tool servers (MCP), and serve this workspace to MCP clients.",
)
_SHOWN_CHARACTERS = 100
_ENCLOSURES = {
    "http": "runs elsewhere: nothing is started here",
    "outside": "runs as you, outside of any sandbox",
    "none": "does not run: a sandbox is required and none works here",
}


class Standing(Struct, frozen=True, kw_only=True):
    """How one server stands."""

    server: ServerDefinition
    is_used: bool
    acceptance: Acceptance | None
    trial: Trial | None
    """None where it was not started."""
    enclosure: str
    """`http`, `outside` of the sandbox, or the level of the sandbox that a run here would use."""

    @property
    def differences(self) -> dict[str, Difference]:
        if self.acceptance is None or self.trial is None or self.trial.listing is None:
            return {}
        return compare_listings(self.acceptance.tools, self.trial.listing.tools)

    @property
    def tools(self) -> tuple[ToolInfo, ...]:
        """What is offered to a model."""
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
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the accepted servers to try them.")] = True,
    as_json: AsJson = False,
    config: Config = None,
) -> int:
    """Show the servers, whether they start, and their tools. Only servers that you accepted are started.

    Exit code 1: an accepted server does not start, or no longer offers what was accepted.
    """
    place = open_place(config)
    standings = examine(place, start=start)
    if as_json:
        write_json([as_object(standing) for standing in standings])
    else:
        for standing in standings:
            write_standing(standing)
        if not standings:
            warn_line(f"No servers: there is no '{place.settings.mcp.file}' and no '.mcp.json', or they name none")
    return int(any(standing.state in ("does not start", "changed") for standing in standings))


@app.command()
def accept(
    names: Annotated[list[str] | None, typer.Argument(help="The servers to accept.")] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All servers that are used.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start and accept them without a question.")] = False,
    config: Config = None,
) -> int:
    """Start a server, show what it offers, and accept it for this workspace on this machine.

    A server runs as you; in a sandbox only where one is required, or where `mcp.outside_sandbox` leaves it out. Until
    it is accepted it is never started; when its definition changes it has to be accepted again, and a tool that it
    describes differently later is not called.
    """
    place = open_place(config)
    servers = _choose(place, names or [], every=every)
    for server in servers:
        expand_server(server, place.environ)
        warn_line(f"{server.name}: {'connects to' if server.url else 'runs'} {server.target}")
        enclosure = find_enclosure(place, server)
        warn_line(f"{server.name}: {_ENCLOSURES.get(enclosure, f'in the sandbox, level {enclosure!r}')}")
    if not yes and not decide_interactively("Start and ask what they offer?", flag="--yes"):
        return 1
    trials = anyio.run(partial(try_servers, is_accepting=True), place, servers)
    return max(_accept_one(place, server, trials[server.name], yes=yes) for server in servers)


@app.command()
def forget(
    name: Annotated[str, typer.Argument(help="The server whose acceptance is taken back.")], *, config: Config = None
) -> None:
    """Take an acceptance back: the server is not started and its tools are not offered any more."""
    place = open_place(config)
    (server,) = _choose(place, [name], every=False)
    if not open_acceptances(place).forget(server):
        raise UsageError(f"MCP server {name!r} was not accepted")
    warn_line(f"{name} is no longer accepted")


@app.command()
def serve(*, config: Config = None) -> int:
    """Serve the tasks, skills and runs of this workspace to an MCP client, on stdin and stdout.

    A client starts it as a program. Nothing that the client answers approves anything: an approval waits for a person,
    who decides it with `agent approvals`. Runs go on where the client, or this program, was killed.
    """
    if find_spec("mcp") is None:
        raise UsageError("Serving MCP needs the package 'mcp'", hint=hint_extra("mcp"))
    place = open_place(config)
    exit_code: int = importlib.import_module("metier.doors.mcp.stdio").serve_stdio(place)
    return exit_code


def as_object(standing: Standing) -> dict[str, JsonValue]:
    trial, acceptance = standing.trial, standing.acceptance
    refused = trial.listing.refused if trial is not None and trial.listing is not None else ()
    return {
        "server": standing.server.name,
        "target": standing.server.target,
        "transport": "http" if standing.server.url else "stdio",
        "state": standing.state,
        "sandbox": standing.enclosure,
        "problem": trial.problem if trial is not None else "",
        "accepted_at": acceptance.accepted_at.isoformat() if acceptance is not None else None,
        "tools": [
            {"name": info.name, "description": info.description, "risk": info.risk, "effect": info.effect}
            for info in standing.tools
        ],
        "differences": dict(standing.differences),
        "refused": list(refused),
    }


def examine(place: Host, *, start: bool = False) -> list[Standing]:
    """How every server of the workspace stands; `start` tries those that were accepted."""
    loaded = load_place_config(place)
    for problem in loaded.warnings:
        warn_line(problem.render())
    used = {server.name for server in choose_servers(loaded, place.settings.mcp.servers)}
    accepted = open_acceptances(place)
    found = {server.name: accepted.find(server) for server in loaded.servers}
    trials: dict[str, Trial] = {}
    ready: list[ServerDefinition] = []
    for server in loaded.servers:
        if not start or server.name not in used or found[server.name] is None:
            continue
        try:
            expand_server(server, place.environ)
        except MetierError as error:
            trials[server.name] = Trial(problem=error.message)
        else:
            ready.append(server)
    if ready:
        trials |= anyio.run(try_servers, place, ready)
    return [
        Standing(
            server=server,
            is_used=server.name in used,
            acceptance=found[server.name],
            trial=trials.get(server.name),
            enclosure=find_enclosure(place, server),
        )
        for server in loaded.servers
    ]


def _choose(place: Host, names: list[str], *, every: bool) -> list[ServerDefinition]:
    servers = load_place_config(place).servers
    if every != (not names):
        raise UsageError("Name the servers, or say --all", hint="`agent mcp list` shows them")
    if every:
        servers = choose_servers(load_place_config(place), place.settings.mcp.servers)
        if not servers:
            raise UsageError("There are no servers to accept", hint=f"Define them in '{place.settings.mcp.file}'")
        return list(servers)
    known = {server.name: server for server in servers}
    for name in names:
        if name not in known:
            hint = hint_nearest(name, known) or f"There are: {', '.join(known) or 'none'}"
            raise UsageError(f"No MCP server is called {name!r}", hint=hint)
    return [known[name] for name in dict.fromkeys(names)]


def _accept_one(place: Host, server: ServerDefinition, trial: Trial, *, yes: bool) -> int:
    if trial.listing is None:
        warn_line(f"{server.name}: not accepted. {trial.problem}")
        return 1
    before = open_acceptances(place).find(server)
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
    open_acceptances(place).accept(server, trial.listing.tools, now=place.clock.now(), code=trial.code)
    warn_line(f"{server.name} is accepted: {len(trial.listing.tools)} tools")
    return 0


def write_standing(standing: Standing) -> None:
    server = standing.server
    write_line(f"{server.name}  {standing.state}  {server.target}")
    write_line(f"    {_ENCLOSURES.get(standing.enclosure, f'in the sandbox, level {standing.enclosure!r}')}")
    if standing.trial is not None and standing.trial.problem:
        write_line(f"    {standing.trial.problem}")
    if standing.state == "not accepted":
        write_line(f"    Look at it and accept it: agent mcp accept {server.name}")
    for name, difference in standing.differences.items():
        write_line(f"    {difference}: {name}")
    for info in standing.tools:
        first = info.description.partition("\n")[0][:_SHOWN_CHARACTERS]
        write_line(f"    {info.name}  ({info.effect}, {info.risk})  {first}".rstrip())
