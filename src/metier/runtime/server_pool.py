"""External servers that outlive a run: a session keeps the servers that its turns started."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from anyio.abc import TaskGroup

from metier.tools.mcp.server_connection import ServerConnection
from metier.tools.mcp.servers import ServerDefinition
from metier.tools.process.sandbox.confinement import Confinement

type Connect = Callable[[TaskGroup], ServerConnection]


class _PooledServer(NamedTuple):
    definition: ServerDefinition
    sandbox: Confinement | None
    connection: ServerConnection


class ServerPool:
    """Connections by server and sandbox. A server starts at the first call of one of its tools."""

    def __init__(self, group: TaskGroup) -> None:
        """Take the task group that runs the servers; its creator cancels it."""
        self._group = group
        self._servers: list[_PooledServer] = []

    async def keep_only(self, servers: Iterable[ServerDefinition]) -> None:
        """Close the connections to other servers, whose definition changed or is no longer accepted."""
        wanted = {server.name: server for server in servers}
        for pooled in list(self._servers):
            if wanted.get(pooled.definition.name) != pooled.definition:
                self._servers.remove(pooled)
                await pooled.connection.aclose()

    async def get(self, server: ServerDefinition, connect: Connect, *, sandbox: Confinement | None) -> ServerConnection:
        """Return the open connection in this sandbox, or a new one if there is none or it was given up.

        Without a sandbox the server runs like the user's own programs.
        """
        # A connection in another sandbox stays open: the run that opened it may be waiting for this run.
        for pooled in list(self._servers):
            if (pooled.definition.name, pooled.sandbox) != (server.name, sandbox):
                continue
            if not pooled.connection.is_given_up:
                return pooled.connection
            self._servers.remove(pooled)
            await pooled.connection.aclose()
        connection = connect(self._group)
        self._servers.append(_PooledServer(server, sandbox, connection))
        return connection
