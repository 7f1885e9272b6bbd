"""External servers that outlive a run: a session keeps those that its turns started until it ends."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from anyio.abc import TaskGroup

from metier.tools.mcp.server_connection import ServerConnection
from metier.tools.mcp.servers import ServerDefinition
from metier.tools.process.sandbox.confinement import Confinement

type Connect = Callable[[TaskGroup], ServerConnection]


class _Kept(NamedTuple):
    definition: ServerDefinition
    frame: Confinement | None
    connection: ServerConnection


class ServerPool:
    """Connections by server and sandbox. None of them is started before the first call."""

    def __init__(self, group: TaskGroup) -> None:
        """Take the task group that keeps started servers; its creator ends it."""
        self._group = group
        self._kept: list[_Kept] = []

    async def keep_only(self, servers: Iterable[ServerDefinition]) -> None:
        """End all others: their definition changed, or is no longer accepted."""
        wanted = {server.name: server for server in servers}
        for pooled in list(self._kept):
            if wanted.get(pooled.definition.name) != pooled.definition:
                self._kept.remove(pooled)
                await pooled.connection.aclose()

    async def get(self, server: ServerDefinition, connect: Connect, *, frame: Confinement | None) -> ServerConnection:
        """Return the open connection or a new one, if there is none in this sandbox or it was given up.

        One in another frame stays: the run that began it may be waiting for the one that asks now. No frame: outside.
        """
        for pooled in [each for each in self._kept if (each.definition.name, each.frame) == (server.name, frame)]:
            if not pooled.connection.is_given_up:
                return pooled.connection
            self._kept.remove(pooled)
            await pooled.connection.aclose()
        connection = connect(self._group)
        self._kept.append(_Kept(server, frame, connection))
        return connection
