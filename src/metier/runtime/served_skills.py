"""Skills that an MCP server serves (SEP-2640): the manifest is checked first, then every file against it.

Nothing is fetched before the user asks for the skill, and nothing that the manifest does not list.
"""

import base64
import binascii
import hashlib
from urllib.parse import unquote

from pydantic import BaseModel, Field, JsonValue, ValidationError

from metier.approval.matchers import read_value
from metier.definitions.skills.skill_file import FILE_NAME
from metier.definitions.text.front_matter import read_front_matter
from metier.errors import SkillError, SkillNotFound, SkillRejected, ToolFailed
from metier.runtime.host import Host
from metier.runtime.mcp import open_server
from metier.skills.install.operations import ServedSkill
from metier.skills.layout import check_paths
from metier.skills.source import McpSource
from metier.tools.mcp.server_connection import ServerConnection

MAX_FILES = 512
MAX_BYTES = 16 * 1024 * 1024
_MAX_PAGES = 100


class ServedFile(BaseModel):
    uri: str = Field(max_length=2_000)
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    size: int = Field(ge=0, le=MAX_BYTES)


class SkillEntry(BaseModel):
    uri: str = Field(max_length=2_000)
    frontmatter: dict[str, JsonValue]
    resources: list[ServedFile] = Field(min_length=1, max_length=MAX_FILES)
    """Files of the skill; one that is generated for each reader has no list and can't be pinned."""

    @property
    def root(self) -> str:
        return self.uri.removesuffix(f"/{FILE_NAME}")


async def fetch_served(host: Host, source: McpSource) -> ServedSkill:
    """Fetch a skill. Raises `SkillRejected` if it doesn't match its manifest, `SkillNotFound`, `SkillError`,
    `UsageError`.
    """
    try:
        async with open_server(host, source.server) as server:
            entry = await _find_entry(server, source)
            paths = _check_manifest(entry)
            # What the skill says of itself first: of one that lies, nothing more is fetched.
            first = await _read(server, paths.pop(FILE_NAME))
            _check_front_matter(entry, first)
            files = {FILE_NAME: first, **{path: await _read(server, file) for path, file in paths.items()}}
    except ToolFailed as error:
        raise SkillError(f"{source.describe()!r} cannot be fetched: {error.message}") from error
    return ServedSkill(uri=entry.uri, files=files)


async def _find_entry(server: ServerConnection, source: McpSource) -> SkillEntry:
    """Return the entry by address or name; several of one name must be chosen by address."""
    if source.skill.endswith(f"/{FILE_NAME}"):
        return _read_entry((await server.ask("skills/get", {"uri": source.skill})).get("skill"))
    found: list[JsonValue] = []
    cursor: JsonValue = None
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
        path = unquote(file.uri.removeprefix(f"{entry.root}/"))
        if not file.uri.startswith(f"{entry.root}/"):
            raise SkillRejected(f"The manifest lists {file.uri!r}, which is not in the folder of the skill")
        if path in paths:
            raise SkillRejected(f"The manifest lists {path!r} twice")
        paths[path] = file
    check_paths(paths)
    if FILE_NAME not in paths or sum(file.size for file in entry.resources) > MAX_BYTES:
        raise SkillRejected(f"The manifest lacks {FILE_NAME}, or lists more than {MAX_BYTES} bytes")
    return paths


async def _read(server: ServerConnection, file: ServedFile) -> bytes:
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
    """Check that the skill's files match what was shown of it."""
    mapping = read_front_matter(data).mapping
    if mapping is None or read_value(mapping) != entry.frontmatter:
        raise SkillRejected(f"The front matter of {entry.uri!r} is not the one that its manifest shows")
