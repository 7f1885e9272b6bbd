"""Features that endpoints don't support, cached per user so that the next run doesn't try them again.

An entry belongs to a provider, an address and a model. It expires after a week, because servers are updated.
"""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from metier.definitions.files.whole_file import replace_file

type Feature = Literal["tools", "response_schema"]

EXPIRY_SECONDS = 7 * 24 * 3600
_FILE = "endpoints.json"


class FeatureSupport(Protocol):
    """Feature support of the endpoint that a run uses."""

    def is_unsupported(self, feature: Feature, model: str) -> bool: ...

    def mark_unsupported(self, feature: Feature, model: str) -> None: ...


class FeatureMemory:
    """Feature support in memory, for runs without a cache."""

    def __init__(self) -> None:
        self._unsupported: set[tuple[Feature, str]] = set()

    def is_unsupported(self, feature: Feature, model: str) -> bool:
        return (feature, model) in self._unsupported

    def mark_unsupported(self, feature: Feature, model: str) -> None:
        self._unsupported.add((feature, model))


class Unsupported(NamedTuple):
    """A feature that a model doesn't support."""

    feature: str
    model: str
    """`provider/model`; empty in entries of older versions."""
    noted: float

    @property
    def expires(self) -> float:
        return self.noted + EXPIRY_SECONDS


class FeatureCache:
    """Feature support in a file. If it can't be read or written, each run sends one request that is rejected."""

    def __init__(self, folder: Path, provider: str, address: str, *, now: Callable[[], float] = time.time) -> None:
        self._file = folder / _FILE
        self._provider = provider
        self._address = address
        self._now = now
        self._known: dict[str, Unsupported] | None = None

    def is_unsupported(self, feature: Feature, model: str) -> bool:
        if self._known is None:
            self._known = _load(self._file)
        found = self._known.get(self._key(feature, model))
        return found is not None and found.expires > self._now()

    def mark_unsupported(self, feature: Feature, model: str) -> None:
        now = self._now()
        noted = Unsupported(feature, f"{self._provider}/{model}", now)
        # Read again, because another process may have added entries since.
        fresh = {key: each for key, each in _load(self._file).items() if each.expires > now}
        self._known = {**fresh, self._key(feature, model): noted}
        saved = {key: {"model": each.model, "noted": each.noted} for key, each in self._known.items()}
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file, json.dumps(saved, indent=1).encode())

    def _key(self, feature: Feature, model: str) -> str:
        # Hashed because an address may contain credentials.
        endpoint = f"{self._provider} {self._address}\0{model}"
        return f"{feature}:{hashlib.sha256(endpoint.encode()).hexdigest()[:32]}"


def list_unsupported(folder: Path, *, now: Callable[[], float] = time.time) -> tuple[Unsupported, ...]:
    """List the cached entries that have not expired, sorted by model."""
    found = (each for each in _load(folder / _FILE).values() if each.expires > now())
    return tuple(sorted(found, key=lambda each: (each.model, each.feature)))


def clear_unsupported(folder: Path) -> None:
    """Clear the cache, so that the next run tries every feature again. Raises `OSError`."""
    (folder / _FILE).unlink(missing_ok=True)


class _Entry(Struct, frozen=True):
    noted: float
    model: str = ""


def _load(file: Path) -> dict[str, Unsupported]:
    try:
        # Earlier versions wrote only the time.
        found = msgspec.json.decode(file.read_bytes(), type=dict[str, _Entry | float])
    except (OSError, msgspec.DecodeError, RecursionError):
        return {}
    entries = {key: entry if isinstance(entry, _Entry) else _Entry(entry) for key, entry in found.items()}
    return {key: Unsupported(key.partition(":")[0], each.model, each.noted) for key, each in entries.items()}
