"""A skill, loaded from the `SKILL.md` of its folder. Reads only that file and runs nothing."""

import html
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from metier.definitions.problems import Problem, has_errors
from metier.definitions.reader import Context, list_problems, read_model
from metier.definitions.references import Permits, Reference, read_permits, read_references
from metier.definitions.skills.skill_file import MAX_FILE_BYTES, find_stored_link, get_skill_file, read_skill_file
from metier.definitions.skills.skill_rules import CONTRACT_FIELDS, Entrypoint, FieldChecks, SkillFields, lift_metadata
from metier.definitions.text.front_matter import FrontMatter, read_front_matter
from metier.definitions.text.headings import first_paragraph
from metier.definitions.text.yaml_text import Mapping, Node, is_nothing
from metier.version import __version__

_NO_ENTRIES = Mapping((), 1)


# A dataclass, because a Struct can't leave `data` out of its `repr` and of comparisons.
@dataclass(frozen=True, slots=True, kw_only=True)
class SkillDefinition:
    id: str
    """Path of the folder in its collection, e.g. `foo/bar`."""
    name: str
    description: str
    folder: Path
    file: Path
    data: bytes = field(default=b"", repr=False, compare=False)
    """The bytes it was parsed from, so that the displayed, hashed and stored content is the same."""
    body: str = ""
    body_line: int = 1
    """Line of the file in which `body` starts."""
    header: str = ""
    """Text of the front matter, without its markers."""
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
    """Toolset classes, each as `module:Class`."""
    scripts: tuple[str, ...] | None = None
    """Listed scripts. None for all in `scripts/`."""
    scripts_ignore: tuple[str, ...] = ()
    permissions_env: tuple[str, ...] = ()
    timeout_seconds: float | None = None
    """Time limit of a script. The host's limit is an upper bound."""
    max_output_bytes: int | None = None
    """Output limit of a script. The host's limit is an upper bound."""
    tags: tuple[str, ...] = ()
    entrypoint: Entrypoint | None = None
    tools: tuple[str, ...] | None = None
    """Without a list or with `inherit`, the skill has the tools of the run; see `references.resolve_list`."""
    skills: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    tool_approvals: Node | None = None
    """The unparsed node, which `approval` interprets."""
    task_approvals: Node | None = None
    contract: Mapping = _NO_ENTRIES
    """The unparsed fields of `CONTRACT_FIELDS`, which `capabilities` interprets."""


class SkillReading(Struct, frozen=True):
    skill: SkillDefinition | None
    """None if any problem is an error."""
    problems: tuple[Problem, ...] = ()
    references: tuple[Reference, ...] = ()
    """References of the file, even if the skill could not be loaded."""
    permits: tuple[Permits, ...] = ()
    """Permissions in the file, even if the skill could not be loaded."""


def load_skill(
    folder: Path,
    *,
    strict: bool = False,
    own: bool = False,
    id: str = "",  # noqa: A002 - the word of the format
    within: Path | None = None,
) -> SkillReading:
    """Load the skill of a folder. `strict` enforces the Agent Skills specification; otherwise deviations are warnings.

    With `own`, for the workspace's own skills, the front matter must be valid and have a description. Links must not
    lead out of `within`, by default the folder.
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
    """Parse the bytes of a `SKILL.md` at `file`, existing or planned.

    Cached, because most runs of a process use the same skills.
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
    """Parse like `parse_skill`, but without the cache, for a reader of many files."""
    if (link := find_stored_link(data, file)) is not None:
        return SkillReading(None, (link,))
    front = read_front_matter(data, file=str(file), strict=strict or own)
    root = Mapping(front.mapping.entries if front.mapping else (), 1)
    if not root.entries and has_errors(front.problems):
        return SkillReading(None, front.problems)
    context = Context(strict=strict, unknown_keys="ignore")
    reading = read_model(SkillFields, lift_metadata(root), file=str(file), context=context)
    fields = reading.draft or SkillFields.model_construct()
    # `read_model` has reported these; from here on, only those of `_build` are new.
    context.findings.clear()
    skill = _build(fields, root, front, context=context, file=file, id=id, data=data, own=own)
    found = [*reading.problems, *list_problems(context, root, file=str(file))]
    problems = (*front.problems, *sorted(found, key=lambda problem: problem.line or 0))
    return SkillReading(
        None if has_errors(problems) else skill,
        problems,
        read_references(root, file=str(file)),
        read_permits(root, file=str(file)),
    )


def get_field_line(skill: SkillDefinition, key: str) -> int:
    """Return the line of a front matter field, at the top or below `metadata`."""
    root = read_front_matter(skill.data).mapping or _NO_ENTRIES
    entry, metadata = root.find(key), root.find("metadata")
    if entry is None and metadata is not None and isinstance(metadata.value, Mapping):
        entry = metadata.value.find(key)
    return entry.line if entry is not None else 1


def _build(  # noqa: PLR0913 - what a skill is made of
    fields: SkillFields,
    root: Mapping,
    front: FrontMatter,
    *,
    context: Context,
    file: Path,
    id: str,  # noqa: A002
    data: bytes,
    own: bool,
) -> SkillDefinition:
    folder = file.parent
    checks = FieldChecks(fields, root, context)
    name = checks.read_name(folder.name)
    description = checks.read_description(None if context.strict or own else lambda: first_paragraph(front.body))
    checks.check_fields()
    checks.check_body(front.body, first_line=front.body_line, folder=folder)
    bytes_limit = fields.max_output_bytes
    contract = tuple(entry for key in CONTRACT_FIELDS if (entry := root.find(key)) and not is_nothing(entry.value))
    return SkillDefinition(
        id=id or folder.name,
        name=name,
        description=description,
        folder=folder,
        file=file,
        data=data,
        body=front.body,
        body_line=front.body_line,
        header=front.header,
        license=fields.license,
        compatibility=fields.compatibility or None,
        metadata=fields.metadata,
        allowed_tools=fields.allowed_tools,
        version=fields.version or None,
        author=fields.author or None,
        repository=fields.repository or None,
        min_agent_base_version=fields.min_agent_base_version or None,
        max_agent_base_version=fields.max_agent_base_version or None,
        toolsets=fields.toolsets,
        scripts=fields.scripts,
        scripts_ignore=fields.scripts_ignore,
        permissions_env=fields.permissions.env if root.find_value("permissions") else fields.permissions_env,
        timeout_seconds=fields.timeout_seconds,
        max_output_bytes=None if bytes_limit is None else int(bytes_limit),
        tags=fields.tags,
        entrypoint=fields.entrypoint,
        tools=fields.tools,
        skills=fields.skills,
        tasks=fields.tasks,
        tool_approvals=fields.tool_approvals,
        task_approvals=fields.task_approvals,
        contract=Mapping(contract, contract[0].line) if contract else _NO_ENTRIES,
    )


def find_version_problem(skill: SkillDefinition) -> Problem | None:
    """Find the reason why the skill doesn't support this version of Metier."""
    bounds = (
        ("min_agent_base_version", skill.min_agent_base_version),
        ("max_agent_base_version", skill.max_agent_base_version),
    )
    for key, bound in bounds:
        if bound and (fault := _get_fault(skill.name, bound, is_minimum=key.startswith("min"))):
            line = get_field_line(skill, key)
            return Problem(severity="error", code="needs_version", message=fault, file=str(skill.file), line=line)
    return None


def _get_fault(name: str, bound: str, *, is_minimum: bool) -> str:
    try:
        wanted, own = Version(bound), Version(__version__)
    except InvalidVersion:
        return f"Skill {name!r} asks for version {bound!r}, which is none"
    if (own < wanted) if is_minimum else (own > wanted):
        word = "at least" if is_minimum else "at most"
        return f"Skill {name!r} needs {word} version {bound}, this is {__version__}"
    return ""


def render_available_skills(skills: Iterable[SkillDefinition]) -> str:
    lines = ["<available_skills>"]
    for skill in skills:
        lines += ["<skill>"]
        lines += ["<name>", html.escape(skill.name), "</name>"]
        # A description of a foreign skill must not close its element.
        lines += ["<description>", html.escape(skill.description), "</description>"]
        lines += ["<location>", str(skill.file), "</location>"]
        lines += ["</skill>"]
    return "\n".join([*lines, "</available_skills>"])
