"""`agent acp`: the Agent Client Protocol on stdin and stdout. Answers `initialize` before it loads the rest."""

import importlib
from pathlib import Path
from typing import Annotated, Any, Protocol

import anyio
import typer

from metier.protocols.acp.connection import Connection, Params, claim_streams
from metier.version import __version__

app = typer.Typer(rich_markup_mode=None, add_completion=False)

PROTOCOL_VERSION = 1


@app.command()
def acp(*, config: Annotated[Path | None, typer.Option("--config", help="Settings file.")] = None) -> int:
    """Serve an editor over the Agent Client Protocol.

    Approvals that the editor doesn't answer wait in `agent approvals`.
    """
    source, sink = claim_streams()
    anyio.run(_serve, Connection(source, sink), config)
    return 0


class Editor(Protocol):
    """The handler of all methods but `initialize`; see `metier.protocols.acp.editor`."""

    async def handle(self, method: str, params: Params) -> Params: ...

    async def close(self) -> None: ...


async def _serve(connection: Connection, config: Path | None) -> None:
    greeting = Greeting(connection, config)
    await connection.serve(greeting.handle, greeting.close)


class Greeting:
    """Answers `initialize` itself and loads the handler for everything else."""

    def __init__(self, connection: Connection, config: Path | None) -> None:
        self._connection = connection
        self._config = config
        self._capabilities: Params = {}
        self._editor: Editor | None = None

    async def handle(self, method: str, params: Params) -> Params:
        if method == "initialize":
            capabilities = params.get("clientCapabilities")
            self._capabilities = capabilities if isinstance(capabilities, dict) else {}
            return build_greeting()
        return await self._load().handle(method, params)

    async def close(self) -> None:
        if self._editor is not None:
            await self._editor.close()

    def _load(self) -> Editor:
        if self._editor is None:
            # Late, because importing the runtime takes most of the time that an editor would wait for its first reply.
            module: Any = importlib.import_module("metier.protocols.acp.editor")
            self._editor = module.EditorSessions(self._connection, self._capabilities, self._config)
        assert self._editor is not None
        return self._editor


def build_greeting() -> Params:
    """Return the agent's capabilities. An editor with an unknown version learns ours."""
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "agentInfo": {"name": "metier", "title": "Metier", "version": __version__},
        "agentCapabilities": {
            "loadSession": True,
            "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
            "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
        },
        "authMethods": [],
    }
