"""`registry.json`: the installed skills with their sources and trusted digests.

It is the single source of truth about installed skills. Every change uses `lock_registry` and `save_registry`, which
replaces the file atomically. An unreadable registry is never overwritten.
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout
from msgspec import Struct
from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.definitions.names import canonical_name
from metier.errors import SkillError
from metier.values import WHEN_USED, Value

VERSION = 2
_FILE = "registry.json"
_LOCK_SECONDS = 60.0
_JSON: TypeAdapter[JsonValue] = TypeAdapter(JsonValue, config=WHEN_USED)


class SkillHome(Struct, frozen=True):
    """The folder of installed skills, usually `~/.agent/skills`. Each skill is in a folder of its canonical name."""

    root: Path

    @property
    def registry_file(self) -> Path:
        return self.root / _FILE

    @property
    def staging(self) -> Path:
        """Temporary folders, each removed at the end of its process."""
        return self.root / ".staging"

    @property
    def store(self) -> Path:
        """Complete trees that are about to become visible, and old ones that are about to be deleted."""
        return self.root / ".store"

    def visible(self, canonical: str) -> Path:
        return self.root / canonical

    def folder_of(self, entry: "RegistryEntry") -> Path:
        """Return the skill's folder. For installed skills it is in this home, even if the home folder was moved."""
        return self.visible(entry.name_canonical) if entry.is_installed else Path(entry.installed_path)

    def stored(self, canonical: str, tree: str) -> Path:
        return self.store / f"{canonical}@{tree}"


class RegistryEntry(Value):
    name: str
    """Name as the author or `--name` spells it."""
    name_canonical: str
    git_url: str | None = None
    """None for a skill from a local folder."""
    commit_sha: str | None = None
    branch: str | None = None
    tag: str | None = None
    subdir: str = ""
    source_path: str | None = None
    """Local folder from which it was copied."""
    served_at: str | None = None
    """Server and skill, as `mcp:SERVER/SKILL`. Trust covers this origin and these bytes."""
    installed_path: str
    installed_at: datetime
    trusted: bool = False
    trusted_digest: str | None = None
    """Tree hash that the user trusted. Without it `trusted` has no effect."""
    tree: str = ""
    """Tree hash as installed."""
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 by path, as installed."""

    @property
    def is_installed(self) -> bool:
        """Return True if it was installed by `agent skill add`, not by hand."""
        return self.git_url is not None or self.source_path is not None or self.served_at is not None


class PendingChange(Value):
    """A change that is already in the registry, but perhaps not yet in the folder."""

    kind: Literal["place", "remove"]
    tree: str = ""
    """Hash of the new tree. For a removal, that of the old tree, or empty if unknown."""


class Registry(Value):
    version: int = VERSION
    skills: dict[str, RegistryEntry] = Field(default_factory=dict)
    """By canonical name."""
    pending: dict[str, PendingChange] = Field(default_factory=dict)
    """By canonical name. Empty unless a process is working or was killed."""

    def find(self, name: str) -> RegistryEntry | None:
        return self.skills.get(canonical_name(name))

    def with_entry(self, entry: RegistryEntry, pending: PendingChange | None = None) -> "Registry":
        changed = {**self.skills, entry.name_canonical: entry}
        return self.model_copy(update={"skills": changed, "pending": self._pending(entry.name_canonical, pending)})

    def without(self, canonical: str, pending: PendingChange | None = None) -> "Registry":
        changed = {key: entry for key, entry in self.skills.items() if key != canonical}
        return self.model_copy(update={"skills": changed, "pending": self._pending(canonical, pending)})

    def settled(self, canonical: str) -> "Registry":
        return self.model_copy(update={"pending": self._pending(canonical, None)})

    def _pending(self, canonical: str, change: PendingChange | None) -> dict[str, PendingChange]:
        others = {key: value for key, value in self.pending.items() if key != canonical}
        return {**others, canonical: change} if change else others


def load_registry(home: SkillHome) -> Registry:
    """Load the registry, or an empty one if there is no file. Raises `SkillError` if it is invalid."""
    try:
        text = home.registry_file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):  # a service may have /dev/null for its home
        return Registry()
    except OSError as error:
        raise SkillError(
            f"Registry {str(home.registry_file)!r} cannot be read: {error.strerror}",
            hint="Check who may read it, or set HOME to another folder",
        ) from error
    return parse_registry(text, file=home.registry_file)


def parse_registry(text: bytes, *, file: Path) -> Registry:
    hint = "Nothing was changed; correct the file, or move it away and add the skills again"
    try:
        content = _JSON.validate_json(text)
    except ValidationError as error:
        raise SkillError(f"Registry {str(file)!r} is not JSON", hint=hint) from error
    version = content.get("version", 1) if isinstance(content, dict) else 1
    if isinstance(version, int) and version > VERSION:
        raise SkillError(f"Registry {str(file)!r} has version {version}", hint="Use the newer Metier that wrote it")
    try:
        return Registry.model_validate(content if version == VERSION else _upgrade(content))
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise SkillError(f"Registry {str(file)!r} is damaged at {where!r}", hint=hint) from error


@contextmanager
def lock_registry(home: SkillHome, *, wait_seconds: float = _LOCK_SECONDS) -> Generator[None]:
    """Lock the registry against other processes and threads."""
    # No soft lock: it is a file whose existence is the lock, so it would outlive a killed process.
    lock = FileLock(home.root / ".registry.lock", timeout=wait_seconds, fallback_to_soft=False)
    try:
        home.root.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise SkillError("Another process is changing the skills", hint="Try again when it has finished") from error
    except OSError as error:
        raise SkillError(
            f"Cannot write to the folder of installed skills {str(home.root)!r}: {error.strerror}",
            hint="Make it writable, or set HOME to another folder",
        ) from error
    try:
        yield
    finally:
        lock.release()


def save_registry(home: SkillHome, registry: Registry) -> None:
    """Replace the file atomically. The caller holds the lock."""
    text = json.dumps(registry.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    replace_file(home.registry_file, text.encode(), durable=True, is_private=False)


def _upgrade(content: JsonValue) -> JsonValue:
    """Convert the first format. It has no hashes, so its trust isn't bound to any bytes and is dropped."""
    inner = content.get("skills", content) if isinstance(content, dict) else content
    entries = [*inner.values()] if isinstance(inner, dict) else inner
    if not isinstance(entries, list):
        return content
    skills: dict[str, JsonValue] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            return content
        known = _upgrade_entry(entry)
        skills[str(known["name_canonical"])] = known
    return {"version": VERSION, "skills": skills}


def _upgrade_entry(entry: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    canonical = entry.get("name_canonical") or canonical_name(str(entry.get("name", "")))
    return {**entry, "name_canonical": canonical, "trusted": False, "trusted_digest": None}
