"""`agent chat`: a conversation with an agent, one run per message."""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, cast

import anyio
import typer
from msgspec.structs import replace

from metier.cli.chat.list_chats import list_chats_with_messages
from metier.cli.chat.screen import PlainScreen, Screen
from metier.cli.chat.session import ChatOptions, Session
from metier.cli.shared.command_options import AsJson, CommandGroup, Config
from metier.cli.shared.context import current_settings, is_at_terminal
from metier.cli.shared.open_host import open_host, open_run_host
from metier.cli.shared.open_runs import in_runtime
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.errors import UsageError, unwrapped
from metier.providers.model_names import qualify_model_name
from metier.runtime.chat.chats import Chat, ChatRequest, open_chat
from metier.runtime.host import Host
from metier.runtime.mcp import keep_servers
from metier.runtime.runs import open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.views.painter import build_painter

app = typer.Typer(
    cls=CommandGroup, rich_markup_mode=None, add_completion=False, help="Start or continue a conversation."
)

PROFILE = "runtime.profile"


@app.callback(invoke_without_command=True)
def chat(
    ctx: typer.Context,
    *,
    agent: Annotated[str, typer.Option("--agent", help="Agent ID.")] = "",
    model: Annotated[str, typer.Option("--model", help="Model, or provider/model.")] = "",
    context: Annotated[str, typer.Option("--context", help="Conversation name, or the ID of a run.")] = "",
    last: Annotated[bool, typer.Option("--continue", help="Continue the latest conversation.")] = False,
    provider: Annotated[str | None, typer.Option("--provider", help="Model provider; `offline` needs no key.")] = None,
    profile: Annotated[
        Literal["permissive", "guarded", "strict"] | None,
        typer.Option(
            "--profile",
            help="Default when no rule matches. At a terminal: guarded.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per turn.")] = False,
    config: Config = None,
) -> int:
    """Start or continue a conversation."""
    if ctx.invoked_subcommand is not None:
        # Click passes options in front of `list` to this function, where they would have no effect.
        if agent or model or context or last or provider or profile or quiet or as_json:
            raise UsageError("`agent chat list` does not take options of `agent chat`", hint="Put options after `list`")
        return 0
    if "\n" in context:
        raise UsageError("A conversation name must be a single line")
    named = qualify_model_name(model, provider=provider)
    request = ChatRequest(context_id=context, is_continued=last, agent=agent, model=named)
    flags = {name: value for name, value in (("model.provider", provider), (PROFILE, profile)) if value}
    return talk(request, flags=flags, config=config, quiet=quiet, as_json=as_json)


def talk(
    request: ChatRequest,
    *,
    first: str = "",
    flags: Mapping[str, str] | None = None,
    config: Path | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Run a conversation; `first` is a message entered before it was opened."""
    given = dict(flags or {})
    if is_at_terminal() and current_settings(config, given).origins[PROFILE].kind == "default":
        # At a terminal the user can be asked.
        given[PROFILE] = "guarded"
    is_open = not (request.model or request.agent or request.is_continued or request.context_id)
    host = open_run_host(config, given, is_new_run=is_open)
    # The user at this machine may choose the built-in agent. Senders over a protocol must not bypass the default agent.
    request = replace(request, may_name_built_in=True)
    return anyio.run(_converse, host, request, ChatOptions(quiet=quiet, as_json=as_json, first=first))


@app.command("list")
def list_conversations(
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="Maximum number of conversations.")] = 20,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List conversations."""

    chats = in_runtime(open_host(config), lambda runtime: list_chats_with_messages(runtime, limit=limit))
    if as_json:
        write_json([each.as_json() for each in chats])
        return
    width = build_painter(sys.stdout).width
    for each in chats:
        write_line(each.render(width=width))
    if not chats:
        warn_line("No conversations yet")


async def _converse(host: Host, request: ChatRequest, options: ChatOptions) -> int:
    with unwrapped(), using_plugins(host, report=warn_line) as extended:
        async with keep_servers(extended) as host_with_servers, open_runtime(host_with_servers) as runtime:
            conversation = await open_chat(runtime, request)
            screen = open_screen(conversation, history=host.runs / "chat_history")
            session = Session(conversation, screen, options)
            code = await session.run()
            sys.stdout.flush()
            return code
    raise AssertionError("the block above returns or raises")


def open_screen(conversation: Chat, *, history: Path) -> Screen:
    """Open the full screen at a terminal, and the plain one for a pipe, a file or a dumb terminal."""
    is_terminal = is_at_terminal()
    if not is_terminal or os.environ.get("TERM", "dumb") in ("dumb", ""):
        return PlainScreen(is_terminal=is_terminal)
    # The import takes a fifth of a second, which a pipe does not need.
    terminal = importlib.import_module("metier.cli.chat.terminal")
    return cast("Screen", terminal.Terminal(conversation, history=history))  # the class is a `Screen`
