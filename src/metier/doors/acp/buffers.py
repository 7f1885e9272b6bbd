"""Files as the editor holds them, by `fs/read_text_file` and `fs/write_text_file` of the protocol."""

from contextlib import suppress
from pathlib import Path
from typing import cast

import anyio

from metier.doors.acp.connection import Connection, EditorGone, Params, Refusal

ANSWER_SECONDS = 10.0
"""An editor that does not answer for so long does not hold up a step: the disk counts then."""
MOST_CHARACTERS = 5_000_000


class EditorBuffers:
    """Asks an editor only for what it says that it can do."""

    def __init__(self, connection: Connection, capabilities: Params) -> None:
        files: object = capabilities.get("fs")
        offered = cast("Params", files) if isinstance(files, dict) else {}
        self._can_read = offered.get("readTextFile") is True
        self._can_write = offered.get("writeTextFile") is True
        self._connection = connection
        self.session_id = ""

    async def read(self, path: Path) -> str | None:
        if not self._can_read:
            return None
        with anyio.move_on_after(ANSWER_SECONDS), suppress(EditorGone, Refusal):
            answer = await self._connection.request("fs/read_text_file", self._name(path))
            content = answer.get("content")
            return content if isinstance(content, str) and len(content) <= MOST_CHARACTERS else None
        return None

    async def save(self, path: Path, text: str) -> None:
        if self._can_write:
            with anyio.move_on_after(ANSWER_SECONDS), suppress(EditorGone, Refusal):
                await self._connection.request("fs/write_text_file", {**self._name(path), "content": text})

    def _name(self, path: Path) -> Params:
        return {"sessionId": self.session_id, "path": str(path)}
