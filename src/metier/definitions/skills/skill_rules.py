"""The rules of the Agent Skills specification for the fields of a skill, and what a lenient reader makes of others."""

import re
import unicodedata
from collections.abc import Callable, Iterable

from metier.definitions.names import MAX_NAME
from metier.definitions.nearest import hint_nearest
from metier.definitions.text.fields import Fields, flat_texts
from metier.definitions.text.yaml_text import Mapping, Scalar, Sequence
from metier.lazy_regex import lazy_regex
from metier.telemetry.sanitize import sanitize

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
"""What a skill promises to the callers of its `impl.py`; `contract` may hold the others."""
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
MIN_ENV_PREFIX = 3
"""Letters in front of a wildcard in `permissions.env`."""
_SEMANTIC = lazy_regex(r"v?\d+(?:\.\d+){0,2}(?:[-+][0-9A-Za-z.+-]+)?", re.ASCII)
_SPACES = lazy_regex(r"\s+")
_OUTSIDE_SCRIPT = lazy_regex(
    r"(?<![\w./-])(?:[\w.-]+/)*\.\./(?:[\w.-]+/)*[\w.-]+\.(?:py|sh|bash|zsh|js|mjs|ts|rb|pl|ps1|bat|cmd)\b"
    r"|(?<![\w./-])(?:[\w.-]+/)*\.\./(?:[\w.-]+/)*scripts/[\w.-]+"
)
_TOOL = lazy_regex(r"[^\s,(]+(?:\([^)]*\))?[^\s,(]*|\([^)]*\)")


def read_name(fields: Fields, *, folder_name: str) -> str:
    """The name as written; the folder's where there is none."""
    entry = fields.find("name")
    written = (fields.text("name") or "").strip()
    if entry is None or not written:
        line = fields.line_of("name")
        hint = f"Add 'name: {folder_name}'"
        fields.deviate("missing_name", "Field 'name' is missing", line=line, hint=hint)
        return folder_name
    name = unicodedata.normalize("NFKC", written)
    for code, message in _name_faults(name, folder_name):
        fields.deviate(code, message, line=entry.line)
    return _SPACES.sub(" ", name)


def read_description(fields: Fields, *, fallback: Callable[[], str]) -> str:
    entry = fields.find("description")
    text = (fields.text("description") or "").strip()
    if entry is None or not text:
        line = fields.line_of("description")
        found = "" if fields.strict else sanitize(fallback())
        if found:
            message = "Field 'description' is missing; the first paragraph is used"
            fields.report("warning", "missing_description", message, line=line, hint="Say what the skill does and when")
        else:
            fields.report("error", "missing_description", "Field 'description' is missing", line=line)
        return found[:MAX_DESCRIPTION]
    if len(text) > MAX_DESCRIPTION:
        message = f"Field 'description' has {len(text)} characters, {MAX_DESCRIPTION} are allowed"
        fields.deviate("description_too_long", message, line=entry.line)
    return text


def read_metadata(fields: Fields) -> dict[str, str]:
    """Text to text, as the specification has it; nested values are joined, and other readers may not take them."""
    entry = fields.find("metadata")
    if entry is None:
        return {}
    if not isinstance(entry.value, Mapping):
        hint = "Write 'key: value' lines below it"
        fields.deviate("metadata_not_mapping", "Field 'metadata' must be a mapping", line=entry.line, hint=hint)
        return {}
    values: dict[str, str] = {}
    for item in entry.value.entries:
        match item.value:
            case Scalar(value=value):
                values[item.key] = value
            case Sequence() | Mapping():
                message = f"Metadata {item.key!r} is nested; other readers of skills take text only"
                hint = "Nothing to do here; write it as one text if the skill is shared"
                fields.report("warning", "metadata_not_text", message, line=item.line, hint=hint)
                values[item.key] = ", ".join(flat_texts(item.value))
    return values


def report_version(fields: Fields, version: str | None) -> None:
    if version and not _SEMANTIC.fullmatch(version):
        message = f"Version {version!r} is not of the form 1.2.3"
        hint = "Updates compare versions; see semver.org"
        fields.report("warning", "version_format", message, line=fields.line_of("version"), hint=hint)


def report_broad_patterns(fields: Fields, names: Iterable[str]) -> None:
    """`*` and `AB*` match nothing: they would pass on variables that the author did not think of."""
    for name in names:
        prefix = re.split(r"[*?\[]", name, maxsplit=1)[0]
        if prefix != name and len(prefix) < MIN_ENV_PREFIX:
            message = f"Pattern {name!r} of 'permissions.env' matches no variable"
            hint = f"Write the name of each variable, or {MIN_ENV_PREFIX} letters in front of the wildcard"
            fields.report("warning", "broad_pattern", message, line=fields.line_of("env"), hint=hint)


def report_outside_scripts(fields: Fields, body: str, *, first_line: int) -> None:
    """Say which scripts outside of the skill's own folder its text names: they are never run for it."""
    if "../" not in body:
        return
    for match in _OUTSIDE_SCRIPT.finditer(body):
        depth = 0
        for part in match[0].split("/"):
            depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
            if depth < 0:
                line = first_line + body.count("\n", 0, match.start())
                message = f"The text names the script {match[0]!r}, which lies outside of the skill's folder"
                hint = "Put the script into 'scripts/' of this skill; one outside is not run"
                fields.report("warning", "script_outside", message, line=line, hint=hint)
                break


def read_allowed_tools(fields: Fields) -> tuple[str, ...]:
    """`Bash(git:*) Read`: separated by spaces; by commas or as a list where a lenient reader allows it."""
    entry = fields.find("allowed-tools")
    if entry is None:
        return ()
    match entry.value:
        case Scalar(value=value):
            return tuple(_TOOL.findall(value))
        case Sequence() | Mapping():
            hint = "Write the tools in one line, separated by spaces"
            fields.deviate("allowed_tools_list", "Field 'allowed-tools' must be text", line=entry.line, hint=hint)
            return tuple(flat_texts(entry.value))


def read_compatibility(fields: Fields) -> str | None:
    entry = fields.mapping.find("compatibility")
    if entry is None:
        return None
    text = (fields.text("compatibility") or "").strip()
    if not 1 <= len(text) <= MAX_COMPATIBILITY:
        message = f"Field 'compatibility' has {len(text)} characters, 1 to {MAX_COMPATIBILITY} are allowed"
        fields.deviate("compatibility_length", message, line=entry.line)
    return text or None


def report_unspecified(fields: Fields) -> None:
    """Name the fields that only Metier knows, and the unknown ones."""
    # The specification names six fields and gives 'metadata' to clients, but forbids no other: warnings, not errors.
    for entry in fields.mapping.entries:
        if entry.key in SPECIFIED_FIELDS:
            continue
        known = entry.key in OWN_FIELDS
        nearest = "" if known else hint_nearest(entry.key, SPECIFIED_FIELDS)
        fields.report(
            "warning",
            "extension_field" if known else "unknown_field",
            f"Field {entry.key!r} is not part of the Agent Skills specification",
            line=entry.line,
            hint=nearest or "Other tools look for it below 'metadata'",
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
