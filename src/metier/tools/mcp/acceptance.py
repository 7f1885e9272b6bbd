"""Which servers the user accepted on this machine, and what they offered then: `~/.agent/mcp/<digest>.json`.

A server is a foreign program. A person starts it for the first time, never a folder that was
cloned. What it offered then is what a model is told later, without starting it.
"""

from datetime import datetime
from pathlib import Path

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.messages import Value
from metier.tools.base import ToolInfo
from metier.tools.mcp.config import ServerDefinition

_FOLDER = ".agent/mcp"


class Acceptance(Value):
    """One server of one workspace, as it was accepted."""

    server: str
    workspace: str
    target: str
    accepted_at: AwareDatetime
    tools: tuple[ToolInfo, ...]
    code: str = ""
    """The hash of the files in the workspace that it is started from; empty where there are none."""


_ACCEPTANCE: TypeAdapter[Acceptance] = TypeAdapter(Acceptance)


class AcceptedServers:
    """The servers that were accepted for one workspace. Bound to the bytes of the definition: a changed one is new."""

    def __init__(self, home: Path, workspace: Path) -> None:
        self._folder = home / _FOLDER
        self._workspace = workspace

    def find(self, server: ServerDefinition) -> Acceptance | None:
        """What cannot be read was not accepted."""
        try:
            return _ACCEPTANCE.validate_json(self._path(server).read_bytes())
        except (OSError, ValidationError):
            return None

    def accept(
        self, server: ServerDefinition, tools: tuple[ToolInfo, ...], *, now: datetime, code: str = ""
    ) -> Acceptance:
        """Raises `OSError` where it cannot be written down."""
        acceptance = Acceptance(
            server=server.name,
            workspace=str(self._workspace),
            target=server.target,
            accepted_at=now,
            tools=tools,
            code=code,
        )
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path(server), _ACCEPTANCE.dump_json(acceptance, indent=1), durable=True)
        return acceptance

    def forget(self, server: ServerDefinition) -> bool:
        """False when it was not accepted."""
        try:
            self._path(server).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, server: ServerDefinition) -> Path:
        return self._folder / f"{server.digest(self._workspace)[:32]}.json"
