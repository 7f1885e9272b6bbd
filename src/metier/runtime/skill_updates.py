"""Skills from outside: updates of installed ones in two steps, and skills that an MCP server serves (SEP-2640).

An update is shown first, and then exactly that update is installed. Of a served skill, the manifest is checked first,
then every file against it: nothing is fetched before the user asks, and nothing that the manifest does not list.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from msgspec import Struct
from pydantic import BaseModel, Field, JsonValue, ValidationError

from metier.approval.matchers import read_value
from metier.definitions.files.contained_path import read_contained
from metier.definitions.names import canonical_name
from metier.definitions.skills.skill_file import FILE_NAME
from metier.definitions.text.front_matter import read_front_matter
from metier.errors import SkillError, SkillNotFound, SkillRejected, ToolFailed, UsageError
from metier.runtime.host import Host
from metier.runtime.mcp import open_server
from metier.runtime.workspace.skill_catalog import get_all_skills
from metier.skills.activation import USER_FOLDERS
from metier.skills.install.installed import RegistryEntry, SkillHome
from metier.skills.install.operations import Answer, Installer, Outcome, Proposal, ServedSkill
from metier.skills.install.placement import read_registry
from metier.skills.layout import check_paths
from metier.skills.source import McpSource
from metier.tools.mcp.server_connection import ServerConnection
from metier.views.diff import build_diff

# Both limits are those of SEP-2640.
MAX_SERVED_FILES = 512
MAX_SERVED_BYTES = 16 * 1024 * 1024
_MAX_PAGES = 100
_MAX_SHOWN_FILES = 60
_MAX_SHOWN_BYTES = 200_000


class SkillUpdate(Struct, frozen=True, kw_only=True):
    """The changes of an update that is not installed yet."""

    outcome: Outcome
    diffs: Mapping[str, str]
    """Unified diffs by file; a sentence for binary files."""

    @property
    def is_new(self) -> bool:
        return self.outcome.status != "unchanged"

    @property
    def proposal(self) -> Proposal:
        return self.outcome.proposal


def find_installed(host: Host, name: str) -> RegistryEntry | None:
    """Return the registry entry of the skill; None for workspace and bundled skills."""
    entry = read_registry(_get_home(host)).find(name)
    return entry if entry is not None and entry.is_installed else None


async def check_for_update(host: Host, name: str) -> SkillUpdate:
    """Fetch the skill from its source and compare it. Raises `SkillNotFound`, `SkillError`."""
    diffs: dict[str, str] = {}

    def look(proposal: Proposal) -> Answer:
        # The installer deletes the fetched files after this returns.
        diffs.update(_compare_files(proposal))
        return "stop"

    outcome = await _build_installer(host).update(name, confirm=look)
    return SkillUpdate(outcome=outcome, diffs=diffs)


async def install_update(host: Host, name: str, *, tree: str, is_trusted: bool) -> Outcome:
    """Install the update whose hash is `tree`. Raises `SkillRejected` if the source has another one now."""

    def answer(proposal: Proposal) -> Answer:
        # The source may have changed again since the user looked at the update.
        if proposal.digest.tree != tree:
            return "stop"
        return "trust" if is_trusted else "keep_untrusted"

    outcome = await _build_installer(host).update(name, confirm=answer)
    if outcome.status == "declined":
        raise SkillRejected(f"Skill {name!r} changed at its source since you looked", hint="Look at the update again")
    if outcome.status == "unchanged" and outcome.proposal.digest.tree != tree:
        raise UsageError(f"Skill {name!r} no longer has this update", hint="Review the update again")
    return outcome


def _build_installer(host: Host) -> Installer:
    bundled = [package for package in get_all_skills(host).packages if package.source == "bundled"]
    return Installer(
        home=_get_home(host),
        clock=host.clock,
        taken=frozenset(canonical_name(package.definition.name) for package in bundled),
        fetch_served=partial(fetch_served, host),
    )


def _get_home(host: Host) -> SkillHome:
    return SkillHome(host.home / USER_FOLDERS[0])


def _compare_files(proposal: Proposal) -> dict[str, str]:
    """Return the diffs of the first changed files by name."""
    diff, previous = proposal.diff, proposal.previous
    if diff is None or previous is None:
        return {}
    names = sorted((*diff.files_added, *diff.files_changed, *diff.files_removed))[:_MAX_SHOWN_FILES]
    old, new = Path(previous.installed_path), proposal.definition.folder
    return {name: _compare_file(name, old, new) for name in names}


def _compare_file(name: str, old: Path, new: Path) -> str:
    before, after = (_read(folder / name, within=folder) for folder in (old, new))
    if before is None or after is None:
        return f"{name}: no text, or too long to show"
    return build_diff(before, after, path=name)


def _read(file: Path, *, within: Path) -> str | None:
    """Read a file: empty if missing, None if it is not text."""
    try:
        data = read_contained(file, within=within, limit=_MAX_SHOWN_BYTES)
        return None if len(data) > _MAX_SHOWN_BYTES else data.decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        return None


class ServedFile(BaseModel):
    uri: str = Field(max_length=2_000)
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    size: int = Field(ge=0, le=MAX_SERVED_BYTES)


class SkillEntry(BaseModel):
    uri: str = Field(max_length=2_000)
    frontmatter: dict[str, JsonValue]
    resources: list[ServedFile] = Field(min_length=1, max_length=MAX_SERVED_FILES)
    """Files of the skill. A skill that is generated for each reader has no list and can't be pinned."""

    @property
    def root(self) -> str:
        return self.uri.removesuffix(f"/{FILE_NAME}")


async def fetch_served(host: Host, source: McpSource) -> ServedSkill:
    """Fetch a skill. Raises `SkillRejected` if it contradicts its manifest, `SkillNotFound`, `SkillError`."""
    try:
        async with open_server(host, source.server) as server:
            entry = await _find_entry(server, source)
            paths = _check_manifest(entry)
            # `SKILL.md` first: if it contradicts the manifest, nothing else is fetched.
            first = await _fetch_file(server, paths.pop(FILE_NAME))
            _check_front_matter(entry, first)
            files = {FILE_NAME: first, **{path: await _fetch_file(server, file) for path, file in paths.items()}}
    except ToolFailed as error:
        raise SkillError(f"{source.describe()!r} cannot be fetched: {error.message}") from error
    return ServedSkill(uri=entry.uri, files=files)


async def _find_entry(server: ServerConnection, source: McpSource) -> SkillEntry:
    """Return the entry by address or name. Raises `SkillRejected` if several have that name."""
    if source.skill.endswith(f"/{FILE_NAME}"):
        return _read_entry((await server.ask("skills/get", {"uri": source.skill})).get("skill"))
    found: list[JsonValue] = []
    cursor: JsonValue = None
    # A server could return cursors without end.
    for _ in range(_MAX_PAGES):
        page = await server.ask("skills/list", {} if cursor is None else {"cursor": cursor})
        skills = page.get("skills")
        found += [each for each in (skills if isinstance(skills, list) else ()) if _is_called(each, source.skill)]
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    if not found:
        raise SkillNotFound(f"Server {source.server!r} serves no skill {source.skill!r}")
    entries = [_read_entry(each) for each in found]
    if len(entries) > 1:
        ways = ", ".join(f"mcp:{source.server}/{entry.uri}" for entry in entries)
        raise SkillRejected(
            f"Server {source.server!r} serves {len(entries)} skills {source.skill!r}", hint=f"Name one: {ways}"
        )
    return entries[0]


def _is_called(entry: JsonValue, name: str) -> bool:
    front = entry.get("frontmatter") if isinstance(entry, dict) else None
    return isinstance(front, dict) and front.get("name") == name


def _read_entry(entry: JsonValue) -> SkillEntry:
    if isinstance(entry, dict) and entry.get("resources") == "dynamic":
        raise SkillRejected("The skill is generated for each reader: it has no hashes that could be trusted")
    try:
        return SkillEntry.model_validate(entry)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise SkillRejected(f"The manifest of the skill is wrong at {where or 'its start'!r}") from error


def _check_manifest(entry: SkillEntry) -> dict[str, ServedFile]:
    """Return the files by path. Raises `SkillRejected` for an unusable manifest."""
    if not entry.uri.endswith(f"/{FILE_NAME}") or entry.root.rpartition("/")[2] != entry.frontmatter.get("name"):
        raise SkillRejected(f"The address {entry.uri!r} does not end with the name of the skill")
    paths: dict[str, ServedFile] = {}
    for file in entry.resources:
        # Decoded before it is checked, because `%2e%2e` is a parent folder, too.
        path = unquote(file.uri.removeprefix(f"{entry.root}/"))
        if not file.uri.startswith(f"{entry.root}/"):
            raise SkillRejected(f"The manifest lists {file.uri!r}, which is not in the folder of the skill")
        if path in paths:
            raise SkillRejected(f"The manifest lists {path!r} twice")
        paths[path] = file
    check_paths(paths)
    if FILE_NAME not in paths or sum(file.size for file in entry.resources) > MAX_SERVED_BYTES:
        raise SkillRejected(f"The manifest lacks {FILE_NAME}, or lists more than {MAX_SERVED_BYTES} bytes")
    return paths


async def _fetch_file(server: ServerConnection, file: ServedFile) -> bytes:
    result = await server.ask("resources/read", {"uri": file.uri})
    contents = result.get("contents")
    first = contents[0] if isinstance(contents, list) and len(contents) == 1 else None
    text, blob = (first.get("text"), first.get("blob")) if isinstance(first, dict) else (None, None)
    try:
        data = text.encode() if isinstance(text, str) else base64.b64decode(str(blob or ""), validate=True)
    except (binascii.Error, ValueError, UnicodeEncodeError) as error:
        raise SkillRejected(f"{file.uri!r} cannot be read") from error
    if len(data) != file.size:
        raise SkillRejected(f"{file.uri!r} has {len(data)} bytes, and its manifest says {file.size}")
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != file.digest:
        raise SkillRejected(f"{file.uri!r} is not what its manifest says: the hashes differ")
    return data


def _check_front_matter(entry: SkillEntry, data: bytes) -> None:
    """Check that the front matter of `SKILL.md` equals that of the manifest, which the user saw."""
    mapping = read_front_matter(data).mapping
    if mapping is None or read_value(mapping) != entry.frontmatter:
        raise SkillRejected(f"The front matter of {entry.uri!r} is not the one that its manifest shows")
