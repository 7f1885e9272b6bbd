"""Replies of skills on disk, from before their process exits until the store has the response.

The process saves its reply itself, so that no effect is lost or repeated if the agent dies between the exit of the
process and the transaction. The file is in the artifacts, the only folder of a run that a sandboxed program may write
to. It contains a secret from a file next to the spool, where such a program may not write; a reply without the secret
is ignored. Replies are not redacted yet: only the owner may read them, and they are deleted once stored.
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
    """A reply must contain it."""

    def load(self) -> dict[str, JsonValue] | None:
        """Return the reply; None if there is none or it was forged."""
        try:
            value: JsonValue = json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return None
        is_ours = isinstance(value, dict) and value.get("secret") == self.secret
        reply = value.get("reply") if is_ours and isinstance(value, dict) else None
        return reply if isinstance(reply, dict) else None


def get_saved_reply(spool: Path, artifacts: Path, *, turn: int, call: int) -> SavedReply:
    """Return the file of one call. A turn has several calls if an answer violates the contract."""
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
    """Return the secret of this attempt, the same for every process that works on it."""
    file = _get_secret_file(spool)
    secret = file.read_text(encoding="ascii") if file.exists() else ""
    # An empty file would accept a forged reply without a secret.
    if not secret:
        secret = secrets.token_hex(16)
        replace_file(file, secret.encode("ascii"), durable=True)
    return secret
