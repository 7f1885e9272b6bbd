"""The front matter of a skill, with the rules of the Agent Skills specification and Metier's additions.

`SkillFields` reads the front matter; `FieldChecks` applies the rules that need the folder and the body. A lenient
reader reports a deviation as a warning and uses the rest.
"""

import math
import posixpath
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from msgspec import Struct
from pydantic import BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticUseDefault

from metier.definitions.names import MAX_NAME, is_usable_name
from metier.definitions.nearest import hint_nearest
from metier.definitions.reader import Context, FileModel, Raw, Text, Texts, context_of, get_line
from metier.definitions.references import INHERIT
from metier.definitions.text.yaml_text import Mapping, Scalar, Sequence, flat_texts, is_nothing
from metier.telemetry.excerpt import cut_end
from metier.telemetry.sanitize import sanitize

_EXTENSIONS = r"\.(?:py|sh|bash|zsh|js|mjs|ts|rb|pl|ps1|bat|cmd)\b"
_ABOVE = re.compile(
    rf"(?<![\w./-])(?:[\w.-]+/)*\.\./(?:[\w.-]+/)*[\w.-]+{_EXTENSIONS}"
    r"|(?<![\w./-])(?:[\w.-]+/)*\.\./(?:[\w.-]+/)*scripts/[\w.-]+"
)
_ABSOLUTE = re.compile(rf"(?<![\w./:~-])~?/(?:[\w.-]+/)*[\w.-]+{_EXTENSIONS}")
_ABSOLUTE_STARTS = (" /", "`/", '"/', "'/", "(/", "\n/", "~/")
"""A fast filter: without one of these, a text has no match for `_ABSOLUTE`."""
_SCRATCH = ("/tmp/", "/var/tmp/")  # noqa: S108 - where a skill has the model write scripts of its own

MAX_DESCRIPTION = 1024
MAX_COMPATIBILITY = 500
SPECIFIED_FIELDS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
CONTRACT_FIELDS = (
    "contract",
    "interaction_outcomes",
    "state_persistence",
    "input_request_jsonschema",
    "input_schema",
    "output_schema",
    "execution_mode",
    "autonomy_level",
    "side_effects",
    "timeout_seconds",
    "max_fix_iterations",
    "required_artifacts",
    "failure_modes",
    "depends_on",
    "sync_celery",
)
"""Fields of a callable skill's contract, at the top level or nested under `contract`."""
OWN_FIELDS = frozenset(
    (
        "version",
        "author",
        "repository",
        "min_agent_base_version",
        "max_agent_base_version",
        "toolsets",
        "scripts",
        "scripts_ignore",
        "permissions",
        "max_output_bytes",
        "tags",
        "entrypoint",
        "tools",
        "skills",
        "tasks",
        "tool_approvals",
        "task_approvals",
        *CONTRACT_FIELDS,
    )
)
_LIFTED = frozenset(
    (
        "version",
        "author",
        "repository",
        "min_agent_base_version",
        "max_agent_base_version",
        "toolsets",
        "scripts",
        "scripts_ignore",
        "permissions_env",
        "timeout_seconds",
        "max_output_bytes",
        "tags",
        "entrypoint",
    )
)
NAME_NOT_USED = "name_not_used"
MIN_ENV_PREFIX = 3
"""Minimum number of letters before a wildcard in `permissions.env`."""
_SEMANTIC = re.compile(r"v?\d+(?:\.\d+){0,2}(?:[-+][0-9A-Za-z.+-]+)?", re.ASCII)
_TOOL = re.compile(r"[^\s,(]+(?:\([^)]*\))?[^\s,(]*|\([^)]*\)")


class Entrypoint(Struct, frozen=True):
    """The script that the offline provider runs for this skill."""

    script: str
    args: tuple[str, ...] = ()
    """May contain `{placeholders}`."""


def _read_metadata(value: object, info: ValidationInfo) -> dict[str, str]:
    """Read the metadata, whose values must be text. A lenient reader joins nested values."""
    context = context_of(info)
    if not isinstance(value, Mapping):
        _deviate(info, "metadata_not_mapping", "must be a mapping", "Write 'key: value' lines below it", value=value)
        return {}
    values: dict[str, str] = {}
    for item in value.entries:
        if isinstance(item.value, Scalar):
            values[item.key] = item.value.value
        else:
            message = f"Metadata {item.key!r} is nested; other readers of skills take text only"
            hint = "Nothing to do here; write it as one text if the skill is shared"
            context.report("warning", item.value, "metadata_not_text", message, hint)
            values[item.key] = ", ".join(flat_texts(item.value))
    return values


def _read_allowed_tools(value: object, info: ValidationInfo) -> tuple[str, ...]:
    """Read a list separated by spaces, such as `Bash(git:*) Read`. A lenient reader also accepts commas and lists."""
    if isinstance(value, Scalar):
        return tuple(_TOOL.findall(value.value))
    hint = "Write the tools in one line, separated by spaces"
    _deviate(info, "allowed_tools_list", "must be text", hint, value=value)
    return tuple(flat_texts(value)) if isinstance(value, Sequence | Mapping) else ()


def _read_permissions(value: object, info: ValidationInfo) -> object:
    if isinstance(value, Mapping):
        return value
    hint = "Write the names under 'permissions: env:'"
    _deviate(info, "permissions", "must have the key 'env'", hint, value=value)
    raise PydanticUseDefault


def _read_entrypoint(value: object, info: ValidationInfo) -> Entrypoint | None:
    words: tuple[str, ...] = ()
    match value:
        case Scalar(value=text):
            words = _split_words(text)
        case Mapping():
            inner = _EntrypointFields.model_validate(value, context=info.context)
            words = (inner.script, *inner.args) if inner.script else ()
        case _:
            hint = "Write 'entrypoint: script argument …', or 'script:' and 'args:' below it"
            _deviate(info, "entrypoint", "must name a script", hint, value=value)
    return Entrypoint(words[0], words[1:]) if words else None


def _read_arguments(value: object) -> object:
    return _split_words(value.value) if isinstance(value, Scalar) else value


def _split_words(text: str) -> tuple[str, ...]:
    """Split like a shell. If a quote isn't closed, split at spaces."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


def _read_limit(value: object, info: ValidationInfo) -> float:
    """Read a number above zero."""
    text = value.value.strip() if isinstance(value, Scalar) else ""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if 0 < number < math.inf:
        return number
    # The contract reader reports an invalid `timeout_seconds`.
    if info.field_name not in CONTRACT_FIELDS:
        hint = "Leave it out to have the host's limit"
        _deviate(info, "bad_limit", f"must be a number above 0, not {text!r}", hint, value=value)
    raise PydanticUseDefault


def _deviate(info: ValidationInfo, *finding: str, value: object) -> None:
    """Report code, message and hint."""
    assert isinstance(value, Scalar | Sequence | Mapping)  # `FileModel` passes nodes
    context_of(info).deviate(value, *finding)


class _EntrypointFields(FileModel):
    script: Text = ""
    args: Annotated[Texts, BeforeValidator(_read_arguments)] = ()


class _Permissions(FileModel):
    env: Texts = ()


_Limit = Annotated[float, BeforeValidator(_read_limit)]


class SkillFields(FileModel):
    """The front matter of a `SKILL.md`."""

    name: Text = ""
    description: Text = ""
    license: Text | None = None
    compatibility: Text | None = None
    metadata: Annotated[dict[str, str], BeforeValidator(_read_metadata)] = Field(default_factory=dict[str, str])
    allowed_tools: Annotated[tuple[str, ...], BeforeValidator(_read_allowed_tools)] = Field(
        default=(), alias="allowed-tools"
    )
    version: Text | None = None
    author: Text | None = None
    repository: Text | None = None
    min_agent_base_version: Text | None = None
    max_agent_base_version: Text | None = None
    toolsets: Texts = ()
    scripts: Texts | None = None
    scripts_ignore: Texts = ()
    permissions: Annotated[_Permissions, BeforeValidator(_read_permissions)] = _Permissions.model_construct()
    permissions_env: Texts = ()
    """Alternative to `permissions` below `metadata`, whose values are text."""
    timeout_seconds: _Limit | None = None
    max_output_bytes: _Limit | None = None
    tags: Texts = ()
    entrypoint: Annotated[Entrypoint | None, BeforeValidator(_read_entrypoint)] = None
    tools: Texts | None = None
    skills: Texts | None = None
    tasks: Texts | None = None
    tool_approvals: Raw | None = None
    task_approvals: Raw | None = None


def lift_metadata(root: Mapping) -> Mapping:
    """Return the front matter with Metier's fields from `metadata`, which the specification reserves for them."""
    metadata = root.find_value("metadata")
    if not isinstance(metadata, Mapping):
        return root
    lifted = (
        entry
        for entry in metadata.entries
        if entry.key in _LIFTED and root.find_value(entry.key) is None and not is_nothing(entry.value)
    )
    # It counts only below `metadata`; at the top level it would be a second spelling of `permissions: env:`.
    own = (entry for entry in root.entries if entry.key != "permissions_env")
    return Mapping((*own, *lifted), root.line)


class OutsideScript(NamedTuple):
    written: str
    """Path as written in the text."""
    path: str
    """Absolute; a path in the home folder starts with `~/`."""
    at: int
    """Line of the text."""


# A skill is reviewed and trusted as one folder. That trust doesn't cover scripts elsewhere, so they are reported, and
# they are not run while the skill is active.
def scan_outside_scripts(body: str, folder: Path) -> Iterator[OutsideScript]:
    """Find paths of scripts outside the folder in a text."""
    if "../" in body:
        for match in _ABOVE.finditer(body):
            if _leaves(match[0]):
                path = posixpath.normpath(posixpath.join(folder.as_posix(), match[0]))
                yield OutsideScript(match[0], path, match.start())
    if any(start in body for start in _ABSOLUTE_STARTS) or body.startswith("/"):
        inside = f"{folder.as_posix()}/"
        for match in _ABSOLUTE.finditer(body):
            path = posixpath.normpath(match[0])
            if not path.startswith((inside, *_SCRATCH)):
                yield OutsideScript(match[0], path, match.start())


def _leaves(path: str) -> bool:
    depth = 0
    for part in path.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return False


class FieldChecks:
    """Checks the fields of one skill. Problems are added to the context, with the line of the field."""

    def __init__(self, fields: SkillFields, root: Mapping, context: Context) -> None:
        self._fields = fields
        self._root = root
        self._context = context

    def _warn(self, *finding: str, key: str) -> None:
        """Report code, message and hint."""
        self._context.report("warning", self._root, *finding, line=get_line(self._root, (key,)))

    def _deviate(self, *finding: str, key: str) -> None:
        self._context.deviate(self._root, *finding, line=get_line(self._root, (key,)))

    def read_name(self, folder_name: str) -> str:
        """Return the name; the folder's if there is none or it is invalid."""
        if not self._fields.name:
            self._deviate("missing_name", "Field 'name' is missing", f"Add 'name: {folder_name}'", key="name")
            return folder_name
        name = unicodedata.normalize("NFKC", self._fields.name)
        for code, message in _name_faults(name, folder_name):
            self._deviate(code, message, key="name")
        if is_usable_name(name):
            return name
        if not self._context.strict:
            shown = cut_end(name, MAX_NAME)
            message = f"Name {shown!r} is not allowed; the skill is called {folder_name!r}, like its folder"
            hint = f"Use 1 to {MAX_NAME} letters, digits, hyphens or underscores"
            self._warn(NAME_NOT_USED, message, hint, key="name")
        return folder_name

    def read_description(self, fallback: Callable[[], str] | None) -> str:
        """Return the description, or the `fallback`."""
        text = self._fields.description
        if text:
            if len(text) > MAX_DESCRIPTION:
                message = f"Field 'description' has {len(text)} characters, {MAX_DESCRIPTION} are allowed"
                self._deviate("description_too_long", message, key="description")
            return text
        found = sanitize(fallback()) if fallback is not None else ""
        if found:
            message = "Field 'description' is missing; the first paragraph is used"
            self._warn("missing_description", message, "Say what the skill does and when", key="description")
        else:
            line = get_line(self._root, ("description",))
            message = "Field 'description' is missing"
            self._context.report("error", self._root, "missing_description", message, line=line)
        return found[:MAX_DESCRIPTION]

    def check_fields(self) -> None:
        if self._root.find("compatibility") is not None:
            length = len(self._fields.compatibility or "")
            if not 1 <= length <= MAX_COMPATIBILITY:
                message = f"Field 'compatibility' has {length} characters, 1 to {MAX_COMPATIBILITY} are allowed"
                self._deviate("compatibility_length", message, key="compatibility")
        version = self._fields.version
        if version and not _SEMANTIC.fullmatch(version):
            message = f"Version {version!r} is not of the form 1.2.3"
            self._warn("version_format", message, "Updates compare versions; see semver.org", key="version")
        self._check_additions()
        self._check_patterns()
        if self._context.strict:
            self._check_specified()

    def _check_additions(self) -> None:
        """Report additions to `inherit`, which have no effect because a skill only narrows a run."""
        fields = self._fields
        for key, names in (("tools", fields.tools), ("skills", fields.skills), ("tasks", fields.tasks)):
            added = [name for name in names or () if name != INHERIT]
            if names and added and len(added) < len(names):
                message = f"Field {key!r} adds {', '.join(map(repr, added))} to 'inherit', which has no effect"
                hint = f"A skill cannot give a run more {key}; write 'inherit' alone, or list all {key} that it leaves"
                self._warn("idle_addition", message, hint, key=key)

    def _check_patterns(self) -> None:
        """Report wildcards such as `*` and `AB*`. They match nothing, because they would expose unrelated variables."""
        for name in self._fields.permissions.env:
            prefix = re.split(r"[*?\[]", name, maxsplit=1)[0]
            if prefix != name and len(prefix) < MIN_ENV_PREFIX:
                message = f"Pattern {name!r} of 'permissions.env' matches no variable"
                hint = f"Write the name of each variable, or {MIN_ENV_PREFIX} letters in front of the wildcard"
                line = get_line(self._root, ("permissions", "env"))
                self._context.report("warning", self._root, "broad_pattern", message, hint, line=line)

    def check_body(self, body: str, *, first_line: int, folder: Path) -> None:
        """Report scripts outside the skill's folder that its text names, because they are not run for it."""
        found = {
            (script.written, first_line + body.count("\n", 0, script.at))
            for script in scan_outside_scripts(body, folder)
        }
        for written, line in sorted(found, key=lambda each: each[1]):
            message = f"The text names the script {written!r}, which lies outside of the skill's folder"
            hint = "Put the script into 'scripts/' of this skill; one outside is not run"
            self._context.report("warning", self._root, "script_outside", message, hint, line=line)

    def _check_specified(self) -> None:
        """Report Metier's own fields and unknown ones."""
        # Only warnings: the specification defines six fields and reserves 'metadata' for clients, but allows others.
        for entry in self._root.entries:
            if entry.key in SPECIFIED_FIELDS:
                continue
            known = entry.key in OWN_FIELDS
            nearest = "" if known else hint_nearest(entry.key, SPECIFIED_FIELDS)
            self._warn(
                "extension_field" if known else "unknown_field",
                f"Field {entry.key!r} is not part of the Agent Skills specification",
                nearest or "Other tools look for it below 'metadata'",
                key=entry.key,
            )


def _name_faults(name: str, folder_name: str) -> list[tuple[str, str]]:
    faults: list[tuple[str, str]] = []
    if len(name) > MAX_NAME:
        faults.append(("name_too_long", f"Name has {len(name)} characters, {MAX_NAME} are allowed"))
    if name != name.lower():
        faults.append(("name_case", f"Name {name!r} must be lower case"))
    if name.startswith("-") or name.endswith("-"):
        faults.append(("name_hyphen", f"Name {name!r} must not begin or end with a hyphen"))
    if "--" in name:
        faults.append(("name_double_hyphen", f"Name {name!r} must not have two hyphens in a row"))
    if not name.replace("-", "").isalnum():
        faults.append(("name_characters", f"Name {name!r} may only have letters, digits and hyphens"))
    if unicodedata.normalize("NFKC", folder_name) != name:
        faults.append(("name_folder", f"Name {name!r} differs from the folder {folder_name!r}"))
    return faults
