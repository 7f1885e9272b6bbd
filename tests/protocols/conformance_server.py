"""The MCP server of the current folder's workspace, over HTTP at a free port, for HTTP-only suites.

It prints its URL and exits when standard input closes.
"""

import os
import socket
import sys
from pathlib import Path

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route

from metier.protocols.mcp.server import open_endpoint, open_http
from metier.runtime.opened_host import open_host
from metier.runtime.runs import open_runtime


async def main() -> None:
    opened = open_host(Path.cwd(), environ=os.environ, home=Path.home(), flags=None, config=None)
    listening = socket.create_server(("127.0.0.1", 0))
    async with (
        open_runtime(opened.host) as runtime,
        open_endpoint(runtime, report=lambda text: print(text, file=sys.stderr)) as door,
        open_http(door) as served,
    ):
        app = Starlette(routes=[Route("/mcp", endpoint=served)])
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))

        async def watch_input() -> None:
            await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            server.should_exit = True

        async with anyio.create_task_group() as group:
            group.start_soon(watch_input)
            print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
            await server.serve(sockets=[listening])
            group.cancel_scope.cancel()


anyio.run(main)
