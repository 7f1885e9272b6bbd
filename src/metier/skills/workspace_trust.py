"""Workspace trust: `~/.agent/trust/<digest of its path>.json`.

A folder that was created on this machine is trusted. A folder from elsewhere is untrusted until the user runs
`agent trust`. Its policy, settings and schedules are trusted by content, because they grant permissions in the user's
name; its definitions and skills are trusted by location: they are the project itself.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from msgspec import Struct
from pydantic import AwareDatetime, TypeAdapter, ValidationError

from metier.definitions.files.contained_path import read_contained
from metier.definitions.files.quarantine import is_unsettled
from metier.definitions.files.walk import Walk
from metier.definitions.files.whole_file import identify_file, replace_file
from metier.definitions.project_files import NAMES
from metier.definitions.skills.sources import SKILL_FOLDERS, WORKSPACE_FOLDERS
from metier.errors import ConfigError
from metier.skills.git_clones import find_origin, get_source, get_unpacked
from metier.values import Value

# Limits of the survey, which runs at the start of every command. Beyond them, files are not recorded as created here.
_MAX_FILES = 2000
_MAX_BYTES = 32 * 1024 * 1024
_PASSED_OVER = frozenset({"node_modules", "__pycache__", ".venv"})
_REPOSITORIES = frozenset({".git", ".hg", ".svn", ".jj"})

VARIABLE = "AGENT_TRUST"
"""`all` trusts every folder, `named` only those of `agent trust`. By default, all folders except clones are trusted."""
_FOLDER = ".agent/trust"
_OWN_FILES = ("policy.yaml", "mcp.json", "tool-access.json", "schedules.yaml", "hooks.yaml")
_OWN_FOLDERS = ("agents", "tasks", "skills", "hooks", "commands", "evals")
_HOOKED = (".claude/settings.json", ".claude/settings.local.json", ".claude/hooks")
"""Hooks of other programs, for `import: claude`. They alone don't make a folder untrusted, but trust in it includes
them.
"""
_CONTEXT = ("context/system_prompt.md", "context/soul.json", "context/user_profile.json")
_FILES = frozenset({"agent.yaml", *_CONTEXT, *NAMES})
_SEEN_LINES = 2
"""Number of lines of the record of a folder created here: a stamp of its files, and a digest of their bytes."""


class AgentFiles(Struct, frozen=True, kw_only=True):
    """The files of a folder that address an agent."""

    files: tuple[tuple[str, os.stat_result], ...]
    """Sorted paths below the folder with their status. Links are not followed."""
    nested: tuple[str, ...]
    """Subfolders that are repositories."""
    is_complete: bool
    """False if there are too many files to list."""


def survey(workspace: Path, names: Sequence[str]) -> AgentFiles:
    """List the named files and folders with everything below them."""
    files: dict[str, os.stat_result] = {}
    waiting = [path for name in names if not is_unsettled(path := str(workspace / name))]
    tops = dict.fromkeys(name.partition("/")[0] for name in names if "/" in name)
    nested = [top for top in tops if any(os.path.lexists(workspace / top / each) for each in _REPOSITORIES)]
    start = len(str(workspace)) + 1
    while waiting and len(files) <= _MAX_FILES:
        path = waiting.pop()
        try:
            status = os.lstat(path)
            # Strings instead of `Path`, which is slower: this runs at the start of every command.
            children = os.listdir(path) if stat.S_ISDIR(status.st_mode) else None  # noqa: PTH208
        except OSError:
            continue
        if children is None:
            files[path[start:]] = status
            continue
        if not _REPOSITORIES.isdisjoint(children):
            nested.append(path[start:])
        waiting += [f"{path}/{name}" for name in children if name not in _PASSED_OVER | _REPOSITORIES]
    listed = tuple(sorted(files.items(), key=lambda item: item[0]))
    return AgentFiles(files=listed, nested=tuple(nested), is_complete=not waiting)


def stamp_files(found: AgentFiles) -> str:
    """Return a stamp that changes when a file is written, without reading files."""
    # Programs can set the time of the last write back, but not `ctime`.
    rows = [[name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino] for name, s in found.files]
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).hexdigest()


def digest_agent_files(workspace: Path, found: AgentFiles) -> str:
    """Return a digest of all bytes and link targets. Raises `OSError`."""
    left = _MAX_BYTES
    digest = hashlib.sha256()
    for name, status in found.files:
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode((workspace / name).readlink())
        else:
            content = read_contained(workspace / name, within=workspace, limit=left)
        left -= len(content)
        if left < 0:
            raise OSError("there is too much to read")
        # The length marks where the content ends, so that bytes cannot move from one file to the next unnoticed.
        digest.update(json.dumps([name, len(content)]).encode() + b"\0" + content)
    return digest.hexdigest()


type Part = Literal["settings", "policy", "hooks", "schedules"]
"""Content that is trusted by its digest."""


class TrustRecord(Value):
    """The user's decision."""

    workspace: str
    origin: str
    trusted_at: AwareDatetime
    digests: dict[Part, str]
    source: str = ""
    """Digest of the clone's address, so that another repository in the same folder is not trusted."""

    def is_about(self, workspace: Path) -> bool:
        return not self.source or self.source == get_source(workspace)


_RECORD: TypeAdapter[TrustRecord] = TypeAdapter(TrustRecord)


class WorkspaceTrust(Struct, frozen=True, kw_only=True):
    """Trust in one folder, which counts as created here by default."""

    origin: str = ""
    """Description of a foreign origin; empty for a folder that was created here."""
    record: TrustRecord | None = None
    brings: tuple[str, ...] = ()
    """Paths of its files that address an agent."""
    is_directory_named: bool = False
    """True if the user chose the folder of skills, by a flag or in the environment."""
    settings_hooks: str = ""
    """`hooks` in the folder's settings file, which its author wrote, effective or not."""
    are_hooks_own: bool = True
    """True if the effective `hooks` come from the user's settings, the environment or a flag."""

    @property
    def is_trusted(self) -> bool:
        return not self.origin or self.record is not None

    @property
    def is_withheld(self) -> bool:
        """Return True if it came from elsewhere, has settings or code, and is not trusted."""
        return not self.is_trusted and bool(self.brings)

    def counts(self, part: Part, digest: str) -> bool:
        """Return True if this content is trusted."""
        return not self.origin or (self.record is not None and self.record.digests.get(part) == digest)


MADE_HERE = WorkspaceTrust()


def get_trust(workspace: Path, *, home: Path, environ: Mapping[str, str]) -> WorkspaceTrust:
    """Return the trust of a folder. Raises `ConfigError` for an invalid environment variable."""
    match environ.get(VARIABLE, "").strip().lower():
        case "all":
            return MADE_HERE
        case "named":
            origin = find_origin(workspace) or f"{VARIABLE}=named"
        case "":
            return _judge(workspace, home=home)
        case other:
            hint = (
                "Write 'all' to trust every folder, 'named' to trust only folders given to `agent trust`, or unset it"
            )
            raise ConfigError(f"Environment variable {VARIABLE} is {other!r}", hint=hint)
    return _build(workspace, origin, tuple(list_agent_files(workspace)), home=home)


def _judge(workspace: Path, *, home: Path) -> WorkspaceTrust:
    """Decide about a folder. Without a sign of a foreign origin it is trusted, and its files are recorded.

    A later sign, such as a remote or the first fetch, doesn't affect recorded files that are unchanged.
    """
    names = tuple(list_agent_files(workspace))
    hooked = tuple(name for name in _HOOKED if os.path.lexists(workspace / name))
    found = survey(workspace, (*names, *(name for name in hooked if name not in names)))
    seen = _path(home, workspace).with_suffix(".seen")
    if found.files and found.is_complete and _read_seen(seen)[:1] == [stamp_files(found)]:
        return MADE_HERE  # unchanged since the last decision
    origin = find_origin(workspace, nested=found.nested) or get_unpacked(found.files, workspace)
    if not origin:
        _remember(workspace, found, seen)
        return MADE_HERE
    trust = _build(workspace, origin, names, home=home)
    if trust.record is None and _is_remembered(workspace, found, seen):
        return MADE_HERE
    return trust


def _build(workspace: Path, origin: str, names: tuple[str, ...], *, home: Path) -> WorkspaceTrust:
    record = _read(_path(home, workspace))
    if record is not None and not record.is_about(workspace):
        record = None
    return WorkspaceTrust(origin=origin, record=record, brings=names)


def _remember(workspace: Path, found: AgentFiles, seen: Path) -> None:
    """Record the files. If that fails, a later sign of a foreign origin leads to a question."""
    if not found.files or not found.is_complete:
        return
    with suppress(OSError):
        content = f"{stamp_files(found)}\n{digest_agent_files(workspace, found)}\n"
        seen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(seen, content.encode("ascii"))


def _is_remembered(workspace: Path, found: AgentFiles, seen: Path) -> bool:
    known = _read_seen(seen)
    if len(known) != _SEEN_LINES or not found.files or not found.is_complete:
        return False
    try:
        return digest_agent_files(workspace, found) == known[1]
    except OSError:
        return False


def _read_seen(seen: Path) -> list[str]:
    try:
        return seen.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def record_trust(
    workspace: Path, *, home: Path, origin: str, digests: Mapping[Part, str], now: datetime
) -> TrustRecord:
    """Store the user's decision. Raises `OSError`."""
    record = TrustRecord(
        workspace=str(workspace.resolve()),
        origin=origin,
        trusted_at=now,
        digests=dict(digests),
        source=get_source(workspace),
    )
    path = _path(home, workspace)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Durable: if a power cut lost the decision, the folder would be untrusted again.
    replace_file(path, _RECORD.dump_json(record, indent=1), durable=True)
    return record


def revoke_trust(workspace: Path, *, home: Path) -> bool:
    """Delete the user's decision. Return False if there was none."""
    try:
        _path(home, workspace).unlink()
    except FileNotFoundError:
        return False
    return True


def knows_file(file: Path, *, home: Path) -> bool:
    """Return True if `note_file` recorded this file as created here and it was not replaced since."""
    try:
        noted = _path(home, file).with_suffix(".made").read_text(encoding="ascii")
        # 0.2 recorded only the device and the inode.
        return f"{_identify(file)}:".startswith(f"{noted}:")
    except (OSError, ValueError):
        return False


def note_file(file: Path, *, home: Path) -> None:
    """Record a file as created here. Without the record, the file counts as foreign."""
    with suppress(OSError):
        path = _path(home, file).with_suffix(".made")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, _identify(file).encode("ascii"))


def list_agent_files(workspace: Path) -> Iterator[str]:
    """Yield the paths of a folder's files that address an agent."""
    own = [f"{base}/{name}" for base in WORKSPACE_FOLDERS for name in (*_OWN_FILES, *_OWN_FOLDERS)]
    shared = [folder for folder in SKILL_FOLDERS if folder not in own]
    for name in ("agent.yaml", *own, *shared, *_CONTEXT, *NAMES):
        # While a program runs in a sandbox, an empty folder takes the place of a file that it must not create.
        is_held = name in _FILES and (workspace / name).is_dir()
        if os.path.lexists(workspace / name) and not is_held:
            yield name
    if next(iter(Walk(workspace / "skills", "SKILL.md", within=workspace)), None) is not None:
        yield "skills"


def digest_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _path(home: Path, workspace: Path) -> Path:
    # Resolved, so that all links to a folder share its trust; hashed, so that any path fits into a file name.
    name = hashlib.sha256(os.fsencode(workspace.resolve())).hexdigest()[:32]
    return home / _FOLDER / f"{name}.json"


def _identify(file: Path) -> str:
    return f"{file.stat().st_dev}:{identify_file(file)}"


def _read(path: Path) -> TrustRecord | None:
    """Read a decision. An unreadable one is None, so nothing counts as trusted."""
    try:
        return _RECORD.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
