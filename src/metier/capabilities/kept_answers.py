"""Answers of skills on disk, from before their process ends until they are in the store.

The process itself puts its answer there, so that a skill whose effects nobody may repeat has not worked in vain when
the agent dies between the end of the process and the transaction that keeps what it said. Nothing has been redacted
yet: the files are for the owner's eyes, and go as soon as the store has the answer.
"""

import json
import shutil
from pathlib import Path

from pydantic import JsonValue

_SUFFIX = ".answer"


def name_answer(spool: Path, *, turn: int, call: int) -> Path:
    """Where the answer of one call of `execute` is kept; a turn whose answer breaks the contract has several calls."""
    return _get_folder(spool) / f"{turn}-{call}.json"


def read_answer(file: Path | None) -> dict[str, JsonValue] | None:
    """Nothing where there is none: the file is there whole or not at all."""
    if file is None:
        return None
    try:
        value: JsonValue = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def has_answer(spool: Path) -> bool:
    return any(_get_folder(spool).glob("*.json"))


def forget_answers(spool: Path | None) -> None:
    """They are in the store now."""
    if spool is not None:
        shutil.rmtree(_get_folder(spool), ignore_errors=True)


def _get_folder(spool: Path) -> Path:
    return spool.with_name(spool.name + _SUFFIX)
