"""Answers of skills on disk, from before their process ends until they are in the store.

The process itself puts its answer there, so that a skill whose effects must not be repeated has not worked in vain when
the agent dies between the end of the process and the transaction that keeps what it said. The file lies among the
artifacts, the only part of a run that a program in a sandbox may write to, and names a secret that is next to the
spool, where it may not: an answer without that secret is ignored. Nothing has been redacted yet, so the files
are for the owner's eyes, and go as soon as the store has the answer.
"""

import json
import secrets
from pathlib import Path

from msgspec import Struct
from pydantic import JsonValue

from metier.definitions.files.whole_file import replace_file

_SUFFIX = ".answer"


class AnswerPlace(Struct, frozen=True, kw_only=True):
    """Where the answer of one call of `execute` is kept."""

    file: Path
    secret: str
    """What the file must name."""

    def read(self) -> dict[str, JsonValue] | None:
        """Nothing where there is none: the file is there whole or not at all."""
        try:
            value: JsonValue = json.loads(self.file.read_bytes())
        except (OSError, ValueError):
            return None
        is_ours = isinstance(value, dict) and value.get("secret") == self.secret
        reply = value.get("reply") if is_ours and isinstance(value, dict) else None
        return reply if isinstance(reply, dict) else None


def open_place(spool: Path, artifacts: Path, *, turn: int, call: int) -> AnswerPlace:
    """For one call of an attempt; a turn whose answer breaks the contract has several."""
    return AnswerPlace(file=artifacts / f"{_prefix(spool)}{turn}-{call}.json", secret=_get_secret(spool))


def has_answer(spool: Path, artifacts: Path) -> bool:
    """The first call of some turn was answered, by whom it should."""
    found = artifacts.glob(f"{_prefix(spool)}*.json")
    return _get_file(spool).exists() and any(AnswerPlace(file=f, secret=_get_secret(spool)).read() for f in found)


def forget_answers(spool: Path | None, artifacts: Path | None) -> None:
    """They are in the store now."""
    if spool is None or artifacts is None:
        return
    for file in (*artifacts.glob(f"{_prefix(spool)}*"), _get_file(spool)):
        file.unlink(missing_ok=True)


def _prefix(spool: Path) -> str:
    return f".answer-{spool.name}-"


def _get_file(spool: Path) -> Path:
    return spool.with_name(spool.name + _SUFFIX)


def _get_secret(spool: Path) -> str:
    """The same for every process that works on this attempt; never empty, which any program could name."""
    file = _get_file(spool)
    secret = file.read_text(encoding="ascii") if file.exists() else ""
    if not secret:
        secret = secrets.token_hex(16)
        replace_file(file, secret.encode("ascii"), durable=True)
    return secret
