"""`agent serve`: serve the HTTP API and the web console of this workspace."""

import importlib
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from metier.errors import UsageError
from metier.extras import hint_extra
from metier.runtime.opened_host import open_host
from metier.server.hosts import is_loopback
from metier.server.server_config import ServerConfig
from metier.server.users import (
    GRANTS_BY_ROLE,
    PROXY_SECRET_VARIABLE,
    Grant,
    LoginCodes,
    Role,
    User,
    build_entry,
    make_token,
)
from metier.settings.discovery import get_workspace
from metier.settings.running_server import (
    TOKEN_VARIABLE,
    get_private_folder,
    remove_served,
    remove_token,
    write_served,
    write_token,
)
from metier.settings.sections import ServerOptions

app = typer.Typer(rich_markup_mode=None, add_completion=False)

SECRET_VARIABLE = "AGENT_SERVER_SECRET"  # noqa: S105 - the name of the variable
_MIN_SECRET_LENGTH = 32


@app.command()
def serve(
    *,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on. Default: server.host.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 picks a free one.")] = None,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Number of server processes.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print {url, token_file, pid} when ready.")] = False,
    new_user: Annotated[
        str, typer.Option("--new-user", help="Print a token and server.users entry for this user.")
    ] = "",
    role: Annotated[
        Literal["peer", "viewer", "approver", "operator"], typer.Option("--role", help="Role of the new user.")
    ] = "viewer",
    grants: Annotated[
        list[str] | None,
        typer.Option("--grant", help="Extra permission: edit, limits, code or read (repeatable)."),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="Settings file.")] = None,
) -> int:
    """Serve the HTTP API and the web console.

    Every request needs a token.
    """
    if new_user:
        return _print_user(new_user, role, grants or [], as_json=as_json)
    flags = {"server.host": host, "server.port": port}
    given = {key: str(value) for key, value in flags.items() if value is not None}
    home = Path.home()
    folder = get_workspace(Path.cwd(), home=home)
    # Settings are read from `folder`, so a relative path would mean another file.
    config = config.absolute() if config is not None and folder != Path.cwd() else config
    opened = open_host(folder, environ=os.environ, home=home, flags=given, config=config)
    for problem in opened.warnings:
        sys.stderr.write(f"{problem.render()}\n")
    options = opened.host.settings.server
    _check_open(options)
    _check_proxy(options)
    _check_extra()
    # Without the variable, sessions end with the server. Servers behind one host name need the same key.
    key = _read_secret(SECRET_VARIABLE).encode() or secrets.token_bytes(32)
    listening = _listen(options)
    bound: int = listening.getsockname()[1]
    token = os.environ.get(TOKEN_VARIABLE, "").strip() or make_token()
    private = get_private_folder(home, host=options.host, port=bound)
    token_file = write_token(private, token)
    server_config = ServerConfig(
        folder=folder, home=home, environ=dict(os.environ), token=token, key=key, private=private,
        port=bound, settings_file=config, flags=given,
    )  # fmt: skip
    codes = LoginCodes(private)
    codes.clear()  # of a server on this port that was killed
    url = _build_url(options, bound)
    announce = _build_announcement(server_config, url, token_file, as_json=as_json)
    write_served(private, url=options.public_url or url, workspace=opened.host.workspace)
    try:
        run: Callable[..., int] = importlib.import_module("metier.server.processes").run_server
        return run(server_config, listening, workers=workers, announce=announce)
    finally:
        remove_served(private)
        remove_token(token_file, token)
        codes.clear()


def _build_url(options: ServerOptions, port: int) -> str:
    name = f"[{options.host}]" if ":" in options.host else options.host
    return f"http://{name}:{port}{options.root_path}"


def _build_announcement(
    server_config: ServerConfig, url: str, token_file: Path, *, as_json: bool
) -> Callable[[], None]:
    """Return the function that prints the server's address, with a link that signs a browser in once."""

    def announce() -> None:
        if as_json:
            line = {"url": url, "token_file": str(token_file), "pid": os.getpid()}
            sys.stdout.write(f"{json.dumps(line)}\n")
            sys.stdout.flush()
            return
        code = LoginCodes(server_config.private).issue(User(name=server_config.owner, role="operator"))
        sys.stderr.write(f"Serving {url}; the token is in {token_file}\nOpen {url}/login?code={code}\n")
        sys.stderr.flush()

    return announce


def _check_open(options: ServerOptions) -> None:
    """Raises `UsageError` if other machines can reach the server and it has no allowed hosts or users."""
    if is_loopback(options.host):
        return
    if not options.allowed_hosts:
        raise UsageError(
            f"Address {options.host!r} can be reached from other machines, and no host is named",
            hint="Name the host under which it is reached in server.allowed_hosts",
        )
    if not options.users and not options.proxy_roles and not os.environ.get(TOKEN_VARIABLE, "").strip():
        raise UsageError(
            f"Address {options.host!r} can be reached from other machines, and no user has a token",
            hint=f"Add users with `agent serve --new-user NAME`, or set {TOKEN_VARIABLE}",
        )


def _check_extra() -> None:
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UsageError("The server is not installed", hint=hint_extra("server"))


def _listen(options: ServerOptions) -> socket.socket:
    """Open the socket. Raises `UsageError` if the address is in use or belongs to another machine."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    # After a restart, connections of the old process in TIME_WAIT must not block the port.
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        # IPv6 addresses have brackets in URLs, but not here.
        listening.bind((options.host.strip("[]"), options.port))
        # Before the application is built: clients that connect meanwhile wait instead of being refused.
        # 2048 is uvicorn's own default.
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"The server cannot listen at {options.host}:{options.port}: {error.strerror}",
            hint="Choose another with --port; 0 takes a free one",
        ) from error
    # Server processes of `--workers` accept on the same socket.
    listening.set_inheritable(True)
    return listening


def _check_proxy(options: ServerOptions) -> None:
    """Raises `UsageError` if users of a proxy have roles and the proxy has no secret."""
    if not _read_secret(PROXY_SECRET_VARIABLE) and options.proxy_roles:
        raise UsageError(
            f"server.proxy_roles needs {PROXY_SECRET_VARIABLE}",
            hint="Set it to 32 random characters or more, and have the proxy send it in X-Proxy-Secret",
        )


def _read_secret(variable: str) -> str:
    """Read a secret of the environment. Raises `UsageError` if it is too short."""
    secret = os.environ.get(variable, "").strip()
    if secret and len(secret) < _MIN_SECRET_LENGTH:
        raise UsageError(
            f"{variable} is shorter than {_MIN_SECRET_LENGTH} characters",
            hint="Make one with `python3 -c 'import secrets; print(secrets.token_hex(32))'`",
        )
    return secret


def _print_user(name: str, role: Role, grants: list[str], *, as_json: bool) -> int:
    if not name.strip() or len(name) > 64 or any(mark.isspace() or mark == ":" for mark in name):
        raise UsageError(f"{name!r} is no name of a user", hint="Use up to 64 characters without blanks and colons")
    if unfit := set(grants).difference(GRANTS_BY_ROLE[role]):
        raise UsageError(
            f"A user with the role {role!r} cannot have the grant {min(unfit)!r}",
            hint="Approvers can have edit, limits and code; peers can have read; operators need no grant",
        )
    granted: list[Grant] = [grant for grant in GRANTS_BY_ROLE[role] if grant in grants]
    token = make_token()
    entry = build_entry(name, role, token, grants=granted)
    if as_json:
        sys.stdout.write(f"{json.dumps({'name': name, 'role': role, 'token': token, 'entry': entry})}\n")
    else:
        sys.stdout.write(f"token: {token}\nentry: {entry}\n")
        sys.stderr.write("Give the token to the user; add the entry to server.users in agent.yaml\n")
    return 0
