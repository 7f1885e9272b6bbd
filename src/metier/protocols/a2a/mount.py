"""The server's mount point for A2A. Without the extra `a2a`, nothing is imported or mounted."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from metier.protocols.a2a.mounting import MountingServer


def mount(app: "Starlette", state: "MountingServer") -> None:
    if find_spec("a2a") is None:
        return
    from metier.protocols.a2a.mounting import mount_routes

    mount_routes(app, state)
