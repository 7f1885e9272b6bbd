"""A skill: the folder with `SKILL.md`. Reads the one file; runs nothing, follows no reference."""

import dataclasses
import html
import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.permits import Permits, read_permits
from metier.definitions.problems import Problem, has_errors
from metier.definitions.references import Reference, read_references
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, find_stored_link, get_skill_file, read_skill_file
from metier.definitions.skills.skill_rules import (
    CONTRACT_FIELDS,
    OWN_FIELDS,
    read_allowed_tools,
    read_compatibility,
    read_description,
    read_metadata,
    read_name,
    report_additions,
    report_broad_patterns,
    report_outside_scripts,
    report_unspecified,
    report_version,
)
from metier.definitions.text.fields import Fields
from metier.definitions.text.front_matter import FrontMatter, read_front_matter
from metier.definitions.text.headings import first_paragraph
from metier.definitions.text.yaml_text import Entry, Mapping, Node, Scalar, Sequence

_NO_ENTRIES = Mapping((), 1)


class Entrypoint(Struct, frozen=True):
    """What the offline backbone runs for this skill."""

    script: str
    args: tuple[str, ...] = ()
    """With `{placeholders}` that the caller fills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillDefinition:
    id: str
    """The folder's path under its collection, e.g. `foo/bar`."""
    name: str
    description: str
    folder: Path
    file: Path
    data: bytes = field(default=b"", repr=False, compare=False)
    """The bytes that it was read from: what is shown, hashed and kept is one and the same."""
    body: str = ""
    body_line: int = 1
    """The line of the file in which `body` begins."""
    header: str = ""
    """The front matter as it was written, without its markers."""
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    allowed_tools: tuple[str, ...] = ()
    version: str | None = None
    author: str | None = None
    repository: str | None = None
    min_agent_base_version: str | None = None
    max_agent_base_version: str | None = None
    toolsets: tuple[str, ...] = ()
    """Each `module:Class`."""
    scripts: tuple[str, ...] | None = None
    """The listed ones; `None` means: look into `scripts/`."""
    scripts_ignore: tuple[str, ...] = ()
    permissions_env: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    """How long one of its scripts may run, within what the host allows."""
    max_output_bytes: int | None = None
    """How much one of its scripts may print, likewise."""
    tags: tuple[str, ...] = ()
    entrypoint: Entrypoint | None = None
    tools: tuple[str, ...] | None = None
    """`None`, like `inherit`, takes what the surrounding run allows; see `inherit.resolve_list`."""
    skills: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    tool_approvals: Node | None = None
    """As written, with lines; the approval room gives it a meaning."""
    task_approvals: Node | None = None
    contract: Mapping = _NO_ENTRIES
    """The fields of `CONTRACT_FIELDS` as written; the capabilities room gives them a meaning."""


class SkillReading(Struct, frozen=True):
    skill: SkillDefinition | None
    """Nothing when one of the problems is an error."""
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()
    """What it names, also where the definition is nothing."""
    permits: tuple[Permits, ...] = ()
    """What it says on what may be used, likewise."""


def load_skill(
    folder: Path,
    *,
    strict: bool = False,
    own: bool = False,
    id: str = "",  # noqa: A002 - the word of the format
    within: Path | None = None,
) -> SkillReading:
    """Read the skill in a folder. `strict` is the Agent Skills specification; else everything usable is taken.

    A skill of the workspace's `own` must have valid front matter with a description. No link leads out of `within`, or
    of the folder itself.
    """
    found = get_skill_file(folder, strict=strict)
    if isinstance(found, Problem):
        return SkillReading(None, (found,))
    data = read_skill_file(found.path, limit=MAX_FILE_BYTES, within=within or folder)
    if isinstance(data, Problem):
        return SkillReading(None, (*found.problems, data))
    reading = parse_skill(data, file=found.path, id=id, strict=strict, own=own)
    return replace(reading, problems=(*found.problems, *reading.problems))


@lru_cache(maxsize=512)
def parse_skill(
    data: bytes,
    *,
    file: Path,
    id: str = "",  # noqa: A002
    strict: bool = False,
    own: bool = False,
) -> SkillReading:
    """Read the bytes of a `SKILL.md` that lies, or will lie, at `file`.

    The runs of a process mostly find the same files: the same bytes are parsed once, however often they are read.
    """
    return parse_once(data, file=file, id=id, strict=strict, own=own)


def parse_once(
    data: bytes,
    *,
    file: Path,
    id: str = "",  # noqa: A002
    strict: bool = False,
    own: bool = False,
) -> SkillReading:
    """Like `parse_skill`, for a reader of many files that keeps none of them."""
    if (link := find_stored_link(data, file)) is not None:
        return SkillReading(None, (link,))
    front = read_front_matter(data, file=str(file), strict=strict or own)
    fields = Fields(front.mapping or _NO_ENTRIES, file=str(file), strict=strict, problems=list(front.problems))
    if fields.is_unreadable:
        return SkillReading(None, tuple(fields.problems))
    skill = _build(fields, front, file=file, id=id, data=data, own=own)
    found = None if has_errors(fields.problems) else skill
    return SkillReading(
        found,
        tuple(fields.problems),
        read_references(fields.mapping, file=str(file)),
        read_permits(fields.mapping, file=str(file)),
    )


def get_field_line(skill: SkillDefinition, key: str) -> int:
    """The line of a field in the front matter of a skill, at the top or below `metadata`."""
    root = read_front_matter(skill.data).mapping or _NO_ENTRIES
    entry, metadata = root.find(key), root.find("metadata")
    if entry is None and metadata is not None and isinstance(metadata.value, Mapping):
        entry = metadata.value.find(key)
    return entry.line if entry is not None else 1


def _build(
    fields: Fields,
    front: FrontMatter,
    *,
    file: Path,
    id: str,  # noqa: A002
    data: bytes,
    own: bool,
) -> SkillDefinition:
    folder = file.parent
    name = read_name(fields, folder_name=folder.name)
    fallback = None if fields.strict or own else lambda: first_paragraph(front.body)
    description = read_description(fields, fallback=fallback)
    metadata = read_metadata(fields)
    report_outside_scripts(fields, front.body, first_line=front.body_line, folder=folder)
    if fields.strict:
        report_unspecified(fields)
    skill = SkillDefinition(
        id=id or folder.name,
        name=name,
        description=description,
        folder=folder,
        file=file,
        data=data,
        body=front.body,
        body_line=front.body_line,
        header=front.header,
        license=fields.text("license"),
        compatibility=read_compatibility(fields),
        metadata=metadata,
        allowed_tools=read_allowed_tools(fields),
    )
    # Most skills have none of the further fields; looking for each of them is half the time of reading a catalog.
    if fields.has_any(OWN_FIELDS) or metadata:
        return _with_own_fields(skill, fields)
    return skill


def _with_own_fields(skill: SkillDefinition, fields: Fields) -> SkillDefinition:
    extra = _Extra(fields, skill.metadata)
    report_version(fields, extra.text("version"))
    report_additions(fields)
    return dataclasses.replace(
        skill,
        version=extra.text("version"),
        author=extra.text("author"),
        repository=extra.text("repository"),
        min_agent_base_version=extra.text("min_agent_base_version"),
        max_agent_base_version=extra.text("max_agent_base_version"),
        toolsets=extra.texts("toolsets") or (),
        scripts=extra.texts("scripts"),
        scripts_ignore=extra.texts("scripts_ignore") or (),
        permissions_env=_permissions_env(fields, extra),
        timeout_seconds=_positive(fields, extra, "timeout_seconds"),
        max_output_bytes=_whole(_positive(fields, extra, "max_output_bytes")),
        tags=extra.texts("tags") or (),
        entrypoint=_entrypoint(fields, skill.metadata),
        tools=fields.texts("tools"),
        skills=fields.texts("skills"),
        tasks=fields.texts("tasks"),
        tool_approvals=fields.node("tool_approvals"),
        task_approvals=fields.node("task_approvals"),
        contract=_contract(fields),
    )


class _Extra(Struct, frozen=True):
    """Our optional fields: at the top, or as text under `metadata`, where the specification has room for them."""

    fields: Fields
    metadata: dict[str, str]

    def text(self, key: str) -> str | None:
        return self.fields.text(key) or self.metadata.get(key) or None

    def texts(self, key: str) -> tuple[str, ...] | None:
        own = self.fields.texts(key)
        if own is not None or key not in self.metadata:
            return own
        return tuple(part.strip() for part in self.metadata[key].split(",") if part.strip())


def _permissions_env(fields: Fields, extra: _Extra) -> tuple[str, ...]:
    entry = fields.find("permissions")
    if entry is None:
        return extra.texts("permissions_env") or ()
    if not isinstance(entry.value, Mapping):
        hint = "Write the names under 'permissions: env:'"
        fields.deviate("permissions", "Field 'permissions' must have the key 'env'", line=entry.line, hint=hint)
        return ()
    inner = Fields(entry.value, file=fields.file, strict=fields.strict, problems=fields.problems)
    names = inner.texts("env") or ()
    report_broad_patterns(inner, names)
    return names


def _positive(fields: Fields, extra: _Extra, key: str) -> float | None:
    """A number above zero; the contract of a skill has a problem of its own for a wrong `timeout_seconds`."""
    text = extra.text(key)
    try:
        value = float(text) if text else None
    except ValueError:
        value = 0
    if value is None or (0 < value < math.inf):
        return value
    if key not in CONTRACT_FIELDS:
        message = f"Field {key!r} must be a number above 0, not {text!r}"
        fields.deviate("bad_limit", message, line=fields.line_of(key), hint="Leave it out to have the host's limit")
    return None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _entrypoint(fields: Fields, metadata: dict[str, str]) -> Entrypoint | None:
    entry = fields.find("entrypoint")
    if entry is None:
        return _entrypoint_of_text(metadata.get("entrypoint", ""))
    match entry.value:
        case Scalar(value=value):
            return _entrypoint_of_text(value)
        case Mapping():
            inner = Fields(entry.value, file=fields.file, strict=fields.strict, problems=fields.problems)
            script = inner.text("script")
            args = inner.node("args")
            words = _split_words(args.value) if isinstance(args, Scalar) else inner.texts("args") or ()
            return Entrypoint(script, tuple(words)) if script else None
        case Sequence():
            hint = "Write 'entrypoint: script argument …', or 'script:' and 'args:' below it"
            fields.deviate("entrypoint", "Field 'entrypoint' must name a script", line=entry.line, hint=hint)
            return None


def _entrypoint_of_text(text: str) -> Entrypoint | None:
    words = _split_words(text) if text else []
    return Entrypoint(words[0], tuple(words[1:])) if words else None


def _split_words(text: str) -> list[str]:
    """As a shell would; by spaces where a quote is never closed."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _contract(fields: Fields) -> Mapping:
    entries: list[Entry] = [entry for key in CONTRACT_FIELDS if (entry := fields.find(key)) is not None]
    return Mapping(tuple(entries), entries[0].line) if entries else _NO_ENTRIES


def render_available_skills(skills: Iterable[SkillDefinition]) -> str:
    lines = ["<available_skills>"]
    for skill in skills:
        lines += ["<skill>"]
        lines += ["<name>", html.escape(skill.name), "</name>"]
        lines += ["<description>", html.escape(skill.description), "</description>"]
        lines += ["<location>", str(skill.file), "</location>"]
        lines += ["</skill>"]
    return "\n".join([*lines, "</available_skills>"])
