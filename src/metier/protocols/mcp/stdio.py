"""`agent mcp serve`: the MCP server of this workspace on stdin and stdout, until the client closes them."""

import logging
import sys
from collections.abc import Callable

import anyio
from mcp.server.stdio import stdio_server

from metier.errors import unwrapped
from metier.protocols.mcp.server import build_server, opened_door
from metier.runtime.cleaning import build_host_redactor
from metier.runtime.host import Host
from metier.runtime.runs import open_runtime
from metier.runtime.workspace.plugins import using_plugins
from metier.telemetry.sanitize import sanitize_line


def serve_stdio(host: Host) -> int:
    """Stdout is the protocol: everything else goes to stderr, cleaned."""
    redact = build_host_redactor(host).redact

    def report(text: str) -> None:
        sys.stderr.write(f"mcp: {sanitize_line(redact(text))}\n")
        sys.stderr.flush()

    # The SDK logs messages of the peer, which are no text of ours.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    anyio.run(_serve, host, report)
    return 0


async def _serve(host: Host, report: Callable[[str], None]) -> None:
    with unwrapped(), using_plugins(host, report=report) as extended:
        async with (
            open_runtime(extended) as runtime,
            opened_door(runtime, report=report) as endpoint,
            stdio_server() as (received, sent),
        ):
            server = build_server(endpoint)
            await server.run(received, sent, server.create_initialization_options())
