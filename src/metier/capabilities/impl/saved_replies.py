"""Replies of skills on disk, from before their process exits until they are in the store.

The process itself saves its reply, so that a skill whose effects must not be repeated has not worked in vain if the
agent dies between the exit of the process and the transaction that stores its response. The file is among the
artifacts, the only part of a run that a program in a sandbox may write to. It names a secret that is next to the spool,
where such a program may not write: a reply without that secret is ignored. Nothing in it has been redacted yet, so
only the owner may read it, and it is deleted as soon as the store has the response.
"""

import json
import secrets
from pathlib import Path

from msgspec import Struct
from pydantic import JsonValue

from metier.definitions.files.whole_file import replace_file


class SavedReply(Struct, frozen=True, kw_only=True):
    """The file for the reply to one call of `execute`."""

    file: Path
    secret: str
    """The file must name it."""

    def load(self) -> dict[str, JsonValue] | None:
        """The file is there whole or not at all."""
        try:
            value: JsonValue = json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return None
        is_ours = isinstance(value, dict) and value.get("secret") == self.secret
        reply = value.get("reply") if is_ours and isinstance(value, dict) else None
        return reply if isinstance(reply, dict) else None


def get_saved_reply(spool: Path, artifacts: Path, *, turn: int, call: int) -> SavedReply:
    """The file of one call; a turn whose answer breaks the contract has several calls."""
    return SavedReply(file=artifacts / f"{_get_prefix(spool)}{turn}-{call}.json", secret=_get_secret(spool))


def has_saved_reply(spool: Path, artifacts: Path) -> bool:
    found = artifacts.glob(f"{_get_prefix(spool)}*.json")
    return _get_secret_file(spool).exists() and any(
        SavedReply(file=file, secret=_get_secret(spool)).load() for file in found
    )


def delete_saved_replies(spool: Path | None, artifacts: Path | None) -> None:
    if spool is None or artifacts is None:
        return
    for file in (*artifacts.glob(f"{_get_prefix(spool)}*"), _get_secret_file(spool)):
        file.unlink(missing_ok=True)


def _get_prefix(spool: Path) -> str:
    return f".answer-{spool.name}-"


def _get_secret_file(spool: Path) -> Path:
    return spool.with_name(f"{spool.name}.answer")


def _get_secret(spool: Path) -> str:
    """The same for every process that works on this attempt; never empty, which any program could name."""
    file = _get_secret_file(spool)
    secret = file.read_text(encoding="ascii") if file.exists() else ""
    if not secret:
        secret = secrets.token_hex(16)
        replace_file(file, secret.encode("ascii"), durable=True)
    return secret
