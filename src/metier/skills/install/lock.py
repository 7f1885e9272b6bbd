"""`skills.lock`: the exact skills of a workspace. Equal skills produce an equal file."""

import json
import re
from pathlib import Path

from pydantic import ValidationError

from metier.definitions.files.whole_file import replace_file
from metier.errors import SkillError, SkillRejected, UsageError
from metier.skills.install.installed import Registry, RegistryEntry
from metier.skills.skill_trust import TreeDigest
from metier.skills.source import MCP, GitSource, McpSource, parse_source
from metier.values import Value

FILE_NAME = "skills.lock"
VERSION = 1


class LockedSkill(Value):
    name: str
    url: str | None
    """None for a skill from a local folder, which the user must provide again with the same bytes."""
    commit: str | None
    subdir: str = ""
    tree: str
    files: dict[str, str]


class SkillsLock(Value):
    version: int = VERSION
    skills: tuple[LockedSkill, ...] = ()


def build_lock(registry: Registry) -> SkillsLock:
    """Build the lock of every installed skill, sorted by canonical name."""
    entries = [registry.skills[name] for name in sorted(registry.skills)]
    return SkillsLock(skills=tuple(_locked(entry) for entry in entries if entry.is_installed))


def render_lock(lock: SkillsLock) -> str:
    return json.dumps(lock.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_lock(workspace: Path, lock: SkillsLock) -> Path:
    path = workspace / FILE_NAME
    try:
        replace_file(path, render_lock(lock).encode(), durable=True, is_private=False)
    except OSError as error:
        raise SkillError(f"Cannot write {str(path)!r}: {error.strerror}") from error
    return path


def load_lock(workspace: Path) -> SkillsLock:
    path = workspace / FILE_NAME
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise UsageError(f"There is no {FILE_NAME!r} here", hint="Create one with `agent skills lock`") from error
    except OSError as error:
        raise SkillError(f"Cannot read {str(path)!r}: {error.strerror}") from error
    try:
        lock = SkillsLock.model_validate_json(text)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise SkillError(f"{str(path)!r} is damaged at {where or 'its start'!r}") from error
    if lock.version != VERSION:
        raise SkillError(f"{str(path)!r} has version {lock.version}", hint=f"This Metier reads version {VERSION}")
    return lock


def parse_locked_source(locked: LockedSkill, *, allow_file: bool = False) -> GitSource | McpSource:
    """Return the source of a locked skill. The file came with the workspace, so its addresses are validated.

    Raises `UsageError` for a dangerous address, and for a skill from a local folder.
    """
    if locked.url is not None and locked.url.startswith(MCP):
        served = parse_source(locked.url)
        assert isinstance(served, McpSource)
        return served
    if locked.url is None or locked.commit is None:
        hint = f"Give the folder: `agent skill add FOLDER --name {locked.name} --frozen`"
        raise UsageError(f"Skill {locked.name!r} was locked from a local folder", hint=hint)
    # A branch or tag could imitate an abbreviated commit.
    if not re.fullmatch("[0-9a-f]{40}", locked.commit):
        raise UsageError(f"Commit {locked.commit!r} of skill {locked.name!r} is not 40 hexadecimal digits")
    subdir = f"#{locked.subdir}" if locked.subdir else ""
    source = parse_source(f"{locked.url}@{locked.commit}{subdir}", allow_file=allow_file)
    # With an `@` or `#` in the address, the text means another source than the one that was locked.
    if not isinstance(source, GitSource) or source.url != locked.url or source.ref != locked.commit:
        raise UsageError(f"Address {locked.url!r} of skill {locked.name!r} is not a git address")
    return source


def check_locked(locked: LockedSkill, digest: TreeDigest) -> None:
    """Raise `SkillRejected` if a byte differs from the lock."""
    if digest.tree == locked.tree and digest.files == locked.files:
        return
    names = locked.files.keys() | digest.files.keys()
    differing = sorted(name for name in names if locked.files.get(name) != digest.files.get(name))
    # `files` has no modes: with equal files, only an executable bit can change the tree.
    what = ", ".join(repr(name) for name in differing[:5]) or "an executable bit"
    hint = "Nothing was installed. If the change is intended, update the skill and run `agent skills lock`"
    raise SkillRejected(f"Skill {locked.name!r} differs from {FILE_NAME}: {what}", hint=hint)


def _locked(entry: RegistryEntry) -> LockedSkill:
    return LockedSkill(
        name=entry.name,
        url=entry.git_url or entry.served_at,
        commit=entry.commit_sha,
        subdir=entry.subdir,
        tree=entry.tree,
        files=entry.files,
    )
