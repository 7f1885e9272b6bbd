"""`agent mcp add` and `agent mcp remove`: change the files that name the external tool servers."""

from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from metier.cli.shared.options import Config
from metier.cli.shared.output import warn_line
from metier.cli.shared.place import open_place
from metier.definitions.files.whole_file import replace_file
from metier.errors import UsageError
from metier.runtime.cleaning import SHARED_FILE, load_place_config
from metier.runtime.host import Host
from metier.runtime.mcp import open_acceptances
from metier.settings.secrecy import is_secret_name, looks_secret
from metier.tools.mcp.config import parse_mcp_config
from metier.tools.mcp.config_edit import add_server, remove_server

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
