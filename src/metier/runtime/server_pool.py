"""External servers that outlive a run: a sitting keeps what its turns started, and ends it when it ends itself."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from anyio.abc import TaskGroup

from metier.tools.mcp_config import ServerDefinition
from metier.tools.mcp_connection import ServerConnection
from metier.tools.sandbox.confinement import Confinement

type Connect = Callable[[TaskGroup], ServerConnection]


class _Kept(NamedTuple):
    definition: ServerDefinition
    frame: Confinement
    connection: ServerConnection


class ServerPool:
    """Connections by the name of their server. None of them is started before the first call."""

    def __init__(self, group: TaskGroup) -> None:
        """The task group keeps what is started; whoever made it ends it."""
        self._group = group
        self._kept: dict[str, _Kept] = {}

    async def keep_only(self, servers: Iterable[ServerDefinition]) -> None:
        """End every other one: its definition was changed, or nobody accepts it any more."""
        wanted = {server.name: server for server in servers}
        for name, kept in list(self._kept.items()):
            if wanted.get(name) != kept.definition:
                del self._kept[name]
                await kept.connection.aclose()

    async def get(self, server: ServerDefinition, connect: Connect, *, frame: Confinement) -> ServerConnection:
        """The connection that is there, or a new one: there is none, it was given up, or it is enclosed otherwise."""
        kept = self._kept.get(server.name)
        if kept is not None and kept.frame == frame and not kept.connection.is_given_up:
            return kept.connection
        if kept is not None:
            await kept.connection.aclose()
        connection = connect(self._group)
        self._kept[server.name] = _Kept(server, frame, connection)
        return connection
