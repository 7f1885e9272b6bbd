"""The entry in the server's table of mounts. Without the extra `a2a` there is no door, and nothing is imported."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from metier.protocols.a2a.mounting import ServerDoor


def mount(app: "Starlette", state: "ServerDoor") -> None:
    if find_spec("a2a") is None:
        return
    from metier.protocols.a2a.mounting import mount_routes

    mount_routes(app, state)
