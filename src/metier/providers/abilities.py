"""What an endpoint turned out not to support, kept in the user's cache: the next run does not try it again.

By provider, address and model. Forgotten after a week, because servers are updated.
"""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, cast

from metier.definitions.files.whole_file import replace_file

type Ability = Literal["tools", "response_schema"]

EXPIRY_SECONDS = 7 * 24 * 3600
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


class Unsupported(NamedTuple):
    """A feature that a model was found not to support."""

    ability: str
    model: str
    """With its provider; empty if an older version noted it."""
    noted: float

    @property
    def expires(self) -> float:
        return self.noted + EXPIRY_SECONDS


class RememberedLacks:
    """In a file. One that cannot be read or written costs one refused request per run, and no more."""

    def __init__(self, folder: Path, provider: str, address: str, *, now: Callable[[], float] = time.time) -> None:
        self._file = folder / _FILE
        self._provider = provider
        self._address = address
        self._now = now
        self._known: dict[str, Unsupported] | None = None

    def lacks(self, ability: Ability, model: str) -> bool:
        if self._known is None:
            self._known = _load(self._file)
        found = self._known.get(self._key(ability, model))
        return found is not None and found.expires > self._now()

    def note_lack(self, ability: Ability, model: str) -> None:
        now = self._now()
        noted = Unsupported(ability, f"{self._provider}/{model}", now)
        fresh = {key: each for key, each in _load(self._file).items() if each.expires > now}
        self._known = {**fresh, self._key(ability, model): noted}
        kept = {key: {"model": each.model, "noted": each.noted} for key, each in self._known.items()}
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file, json.dumps(kept, indent=1).encode())

    def _key(self, ability: Ability, model: str) -> str:
        """Hashed: an address may hold a name and a password."""
        endpoint = f"{self._provider} {self._address}\0{model}"
        return f"{ability}:{hashlib.sha256(endpoint.encode()).hexdigest()[:32]}"


def list_unsupported(folder: Path, *, now: Callable[[], float] = time.time) -> tuple[Unsupported, ...]:
    """The features in the cache that are not expired, sorted by model."""
    found = (each for each in _load(folder / _FILE).values() if each.expires > now())
    return tuple(sorted(found, key=lambda each: (each.model, each.ability)))


def clear_unsupported(folder: Path) -> None:
    """Try every feature again from the next run on. Raises `OSError`."""
    (folder / _FILE).unlink(missing_ok=True)


def _load(file: Path) -> dict[str, Unsupported]:
    try:
        found = cast("object", json.loads(file.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}
    known = cast("dict[object, object]", found) if isinstance(found, dict) else {}
    return {str(key): entry for key, value in known.items() if (entry := _read_entry(str(key), value)) is not None}


def _read_entry(key: str, value: object) -> Unsupported | None:
    fields = cast("dict[object, object]", value) if isinstance(value, dict) else {"noted": value}
    noted, model = fields.get("noted"), fields.get("model")
    if not isinstance(noted, int | float):
        return None
    return Unsupported(key.partition(":")[0], model if isinstance(model, str) else "", float(noted))
