"""Skills over MCP (extension `io.modelcontextprotocol/skills`, SEP-2640): manifests, and every file as a resource.

Serves the active skills of the workspace byte for byte, without redaction: their digests must match.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

import mcp_types as types
from mcp.shared.exceptions import MCPError
from msgspec import Struct
from pydantic import Field

from metier.approval.matchers import read_value
from metier.definitions.skills.skill_file import FILE_NAME
from metier.definitions.text.front_matter import read_front_matter
from metier.errors import SkillError
from metier.protocols.mcp.call_results import guess_type
from metier.protocols.mcp.endpoint import Context, McpEndpoint
from metier.runtime.workspace.skill_catalog import get_skills
from metier.skills.package import MAX_READ_BYTES, SkillFile, SkillPackage, list_files, read_file

SCHEME = "skill://"
DIRECTORY = "inode/directory"
# The limits of the extension.
MAX_FILES = 512
MAX_BYTES = 16 * 1024 * 1024
TTL_MS = 0
"""No caching: files may change at any time."""
_PAGE = 50


class UriParams(types.RequestParams):
    uri: str = Field(max_length=2_000)


class DirectoryParams(types.PaginatedRequestParams):
    uri: str = Field(max_length=2_000)


class ServedSkill(Struct, frozen=True, kw_only=True):
    name: str
    package: SkillPackage
    files: tuple[SkillFile, ...]

    @property
    def root(self) -> str:
        return f"{SCHEME}{self.name}"

    def get_uri(self, path: str) -> str:
        return f"{self.root}/{quote(path)}"


def find_served(endpoint: McpEndpoint) -> list[ServedSkill]:
    """List the active skills that the extension can serve: plain name, `SKILL.md`, within its limits."""
    found: list[ServedSkill] = []
    for package in get_skills(endpoint.host).packages:
        files = list_files(package.folder)
        is_small = len(files) <= MAX_FILES and sum(file.bytes for file in files) <= MAX_BYTES
        # `read_file` returns at most this much, and the digest of a part would not be that of the file.
        is_whole = all(file.bytes <= MAX_READ_BYTES for file in files)
        has_file = any(file.path == FILE_NAME for file in files)
        name = package.definition.name
        if is_small and is_whole and has_file and not package.is_withheld and name == quote(name, safe=""):
            found.append(ServedSkill(name=name, package=package, files=files))
    return sorted(found, key=lambda skill: skill.name)


async def list_skills(endpoint: McpEndpoint, ctx: Context, params: types.PaginatedRequestParams) -> dict[str, Any]:
    """Handle `skills/list`. Raises `MCPError` for an unknown cursor."""
    del ctx
    skills, following = _take_page(find_served(endpoint), params.cursor)
    page = {"skills": [describe_skill(each) for each in skills]}
    return {**page, **following, "ttlMs": TTL_MS, "cacheScope": "private", "resultType": "complete"}


async def get_skill(endpoint: McpEndpoint, ctx: Context, params: UriParams) -> dict[str, Any]:
    """Handle `skills/get`, by the address of the `SKILL.md`. Raises `MCPError`."""
    del ctx
    for skill in find_served(endpoint):
        if params.uri == skill.get_uri(FILE_NAME):
            entry = describe_skill(skill)
            return {"skill": entry, "ttlMs": TTL_MS, "cacheScope": "private", "resultType": "complete"}
    raise MCPError(code=types.INVALID_PARAMS, message="No skill is served at this address", data={"uri": params.uri})


async def read_directory(endpoint: McpEndpoint, ctx: Context, params: DirectoryParams) -> dict[str, Any]:
    """Handle `resources/directory/read`: list the direct children of a skill's folder. Raises `MCPError`."""
    del ctx
    for skill in find_served(endpoint):
        if params.uri == skill.root or params.uri.startswith(f"{skill.root}/"):
            inside = unquote(params.uri.removeprefix(skill.root).removeprefix("/"))
            if children := list(_list_children(skill, inside)):
                page, following = _take_page(children, params.cursor)
                dumped = [child.model_dump(by_alias=True, mode="json", exclude_none=True) for child in page]
                return {"resources": dumped, **following, "resultType": "complete"}
    raise MCPError(
        code=types.INVALID_PARAMS, message="This address is no folder that is served", data={"uri": params.uri}
    )


def find_file(endpoint: McpEndpoint, uri: str) -> tuple[bytes, str] | None:
    """Return the bytes and media type of a `skill://` address; None if nothing is served there."""
    for skill in find_served(endpoint):
        if uri.startswith(f"{skill.root}/"):
            path = unquote(uri.removeprefix(f"{skill.root}/"))
            if any(file.path == path for file in skill.files):
                try:
                    return read_file(skill.package.folder, path), guess_type(path)
                except SkillError:
                    return None
    return None


def list_resources(endpoint: McpEndpoint) -> list[types.Resource]:
    """List the `SKILL.md` of every skill; the manifest lists the other files."""
    return [_build_resource(skill, FILE_NAME) for skill in find_served(endpoint)]


def describe_skill(skill: ServedSkill) -> dict[str, Any]:
    """Build the entry of a skill, with digests of the current bytes."""
    data = {file.path: read_file(skill.package.folder, file.path) for file in skill.files}
    return {
        "uri": skill.get_uri(FILE_NAME),
        "frontmatter": read_frontmatter(data[FILE_NAME]),
        "resources": [
            {
                "uri": skill.get_uri(path),
                "digest": f"sha256:{hashlib.sha256(content).hexdigest()}",
                "size": len(content),
            }
            for path, content in data.items()
        ],
    }


def read_frontmatter(data: bytes) -> dict[str, Any]:
    """Return the front matter of a `SKILL.md` as JSON, unchanged; empty if there is none."""
    mapping = read_front_matter(data).mapping
    value = read_value(mapping) if mapping is not None else None
    return value if isinstance(value, dict) else {}


def read_cursor(cursor: str | None, *, most: int) -> int:
    """Return the index of a page's first item. Raises `MCPError`."""
    if cursor is None:
        return 0
    # `isdigit` accepts superscripts, which `int` rejects, and `int` refuses texts of thousands of digits.
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 12 or int(cursor) > most:
        raise MCPError(code=types.INVALID_PARAMS, message="The cursor was not given here")
    return int(cursor)


def _take_page[Item](items: list[Item], cursor: str | None) -> tuple[list[Item], dict[str, str]]:
    """Return a page, and the field with the cursor of the next one. Raises `MCPError`."""
    start = read_cursor(cursor, most=len(items))
    end = start + _PAGE
    return items[start:end], {"nextCursor": str(end)} if end < len(items) else {}


def _list_children(skill: ServedSkill, inside: str) -> Iterator[types.Resource]:
    folder = PurePosixPath(inside)
    seen: set[str] = set()
    for file in skill.files:
        path = PurePosixPath(file.path)
        if inside and folder not in path.parents:
            continue
        parts = path.relative_to(folder).parts if inside else path.parts
        child = f"{inside}/{parts[0]}" if inside else parts[0]
        if child in seen:
            continue
        seen.add(child)
        if len(parts) == 1:
            yield _build_resource(skill, child)
        else:
            yield types.Resource(uri=skill.get_uri(child), name=parts[0], mime_type=DIRECTORY)


def _build_resource(skill: ServedSkill, path: str) -> types.Resource:
    is_skill = path == FILE_NAME
    return types.Resource(
        uri=skill.get_uri(path),
        name=skill.name if is_skill else Path(path).name,
        description=skill.package.definition.description if is_skill else None,
        mime_type=guess_type(path),
        size=next((file.bytes for file in skill.files if file.path == path), None),
    )
