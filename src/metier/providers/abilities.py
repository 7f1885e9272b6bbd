"""What an endpoint turned out not to support, kept in the user's cache: the next run does not try it again.

By provider, address and model. Forgotten after a week, because servers are updated.
"""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol, cast

from metier.definitions.files.whole_file import replace_file

type Ability = Literal["tools", "response_schema"]

_FORGOTTEN_SECONDS = 7 * 24 * 3600
_FILE = "endpoints.json"


class Abilities(Protocol):
    """Of the endpoint that a run asks."""

    def lacks(self, ability: Ability, model: str) -> bool: ...

    def note_lack(self, ability: Ability, model: str) -> None: ...


class KnownLacks:
    """In memory, for a run whose endpoint is not remembered."""

    def __init__(self) -> None:
        self._lacks: set[tuple[Ability, str]] = set()

    def lacks(self, ability: Ability, model: str) -> bool:
        return (ability, model) in self._lacks

    def note_lack(self, ability: Ability, model: str) -> None:
        self._lacks.add((ability, model))


class RememberedLacks:
    """In a file. One that cannot be read or written costs one refused request per run, and no more."""

    def __init__(self, folder: Path, endpoint: str, *, now: Callable[[], float] = time.time) -> None:
        self._file = folder / _FILE
        self._endpoint = endpoint
        self._now = now
        self._known: dict[str, float] | None = None

    def lacks(self, ability: Ability, model: str) -> bool:
        if self._known is None:
            self._known = self._load()
        return self._known.get(self._key(ability, model), 0.0) > self._now() - _FORGOTTEN_SECONDS

    def note_lack(self, ability: Ability, model: str) -> None:
        oldest = self._now() - _FORGOTTEN_SECONDS
        fresh = {key: noted for key, noted in self._load().items() if noted > oldest}
        self._known = {**fresh, self._key(ability, model): self._now()}
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file, json.dumps(self._known, indent=1).encode())

    def _key(self, ability: Ability, model: str) -> str:
        """Hashed: an address may hold a name and a password."""
        return f"{ability}:{hashlib.sha256(f'{self._endpoint}\0{model}'.encode()).hexdigest()[:32]}"

    def _load(self) -> dict[str, float]:
        try:
            found = cast("object", json.loads(self._file.read_bytes()))
        except (OSError, ValueError, RecursionError):
            return {}
        known = cast("dict[object, object]", found) if isinstance(found, dict) else {}
        return {str(key): float(noted) for key, noted in known.items() if isinstance(noted, int | float)}
