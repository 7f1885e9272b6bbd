"""The rules of the Agent Skills specification for the fields of a skill, and what a lenient reader makes of others."""

import posixpath
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from metier.definitions.names import MAX_NAME, is_usable_name
from metier.definitions.nearest import hint_nearest
from metier.definitions.references import INHERIT
from metier.definitions.text.fields import Fields
from metier.definitions.text.yaml_text import Mapping, Scalar, Sequence, flat_texts
from metier.telemetry.excerpt import cut_end
from metier.telemetry.sanitize import sanitize

_EXTENSIONS = r"\.(?:py|sh|bash|zsh|js|mjs|ts|rb|pl|ps1|bat|cmd)\b"
_ABOVE = re.compile(
    rf"(?<![\w./-])(?:[\w.-]+/)*\.\./(?:[\w.-]+/)*[\w.-]+{_EXTENSIONS}"
    r"|(?<![\w./-])(?:[\w.-]+/)*\.\./(?:[\w.-]+/)*scripts/[\w.-]+"
)
_ABSOLUTE = re.compile(rf"(?<![\w./:~-])~?/(?:[\w.-]+/)*[\w.-]+{_EXTENSIONS}")
_ABSOLUTE_STARTS = (" /", "`/", '"/', "'/", "(/", "\n/", "~/")
"""Looking for these first spares most texts the expression."""
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
NAME_NOT_USED = "name_not_used"
MIN_ENV_PREFIX = 3
"""Letters in front of a wildcard in `permissions.env`."""
_SEMANTIC = re.compile(r"v?\d+(?:\.\d+){0,2}(?:[-+][0-9A-Za-z.+-]+)?", re.ASCII)
_TOOL = re.compile(r"[^\s,(]+(?:\([^)]*\))?[^\s,(]*|\([^)]*\)")


class OutsideScript(NamedTuple):
    written: str
    """As the text names it."""
    path: str
    """Absolute; one in the home folder begins with `~/`."""
    at: int
    """Line of the text that names it."""


# A skill is reviewed and trusted as one folder. A script elsewhere is no part of that, so it is reported, and it is
# not run while the skill is active.
def find_outside_scripts(body: str, folder: Path) -> Iterator[OutsideScript]:
    """Each place of the text that names a script outside of the folder."""
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


def read_name(fields: Fields, *, folder_name: str) -> str:
    """The name as written; the folder's if there is none, or if the name cannot be used."""
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
    if is_usable_name(name):
        return name
    if not fields.strict:
        message = (
            f"Name {cut_end(name, MAX_NAME)!r} is not allowed; the skill is called {folder_name!r}, like its folder"
        )
        hint = f"Use 1 to {MAX_NAME} letters, digits, hyphens or underscores"
        fields.report("warning", NAME_NOT_USED, message, line=entry.line, hint=hint)
    return folder_name


def read_description(fields: Fields, *, fallback: Callable[[], str] | None) -> str:
    """The description; without one, the `fallback` if there is any."""
    entry = fields.find("description")
    text = (fields.text("description") or "").strip()
    if entry is None or not text:
        line = fields.line_of("description")
        found = sanitize(fallback()) if fallback is not None else ""
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


def report_additions(fields: Fields) -> None:
    """`[inherit, Bash]` is `inherit`: a skill narrows a run, and names that it adds have no effect."""
    for key in ("tools", "skills", "tasks"):
        names = fields.texts(key) or ()
        added = [name for name in names if name != INHERIT]
        if added and len(added) < len(names):
            message = f"Field {key!r} adds {', '.join(map(repr, added))} to 'inherit', which has no effect"
            hint = f"A skill cannot give a run more {key}; write 'inherit' alone, or list all {key} that it leaves"
            fields.report("warning", "idle_addition", message, line=fields.line_of(key), hint=hint)


def report_broad_patterns(fields: Fields, names: Iterable[str]) -> None:
    """`*` and `AB*` match nothing: they would pass on variables that the author did not think of."""
    for name in names:
        prefix = re.split(r"[*?\[]", name, maxsplit=1)[0]
        if prefix != name and len(prefix) < MIN_ENV_PREFIX:
            message = f"Pattern {name!r} of 'permissions.env' matches no variable"
            hint = f"Write the name of each variable, or {MIN_ENV_PREFIX} letters in front of the wildcard"
            fields.report("warning", "broad_pattern", message, line=fields.line_of("env"), hint=hint)


def report_outside_scripts(fields: Fields, body: str, *, first_line: int, folder: Path) -> None:
    """Name the scripts outside of the skill's own folder that its text names: they are not run for it."""
    found = {
        (script.written, first_line + body.count("\n", 0, script.at)) for script in find_outside_scripts(body, folder)
    }
    for written, line in sorted(found, key=lambda each: each[1]):
        message = f"The text names the script {written!r}, which lies outside of the skill's folder"
        hint = "Put the script into 'scripts/' of this skill; one outside is not run"
        fields.report("warning", "script_outside", message, line=line, hint=hint)


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
