"""Settings from environment variables: `AGENT_<SECTION>_<KEY>` for each, and the older names some have."""

import json
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct
from pydantic import JsonValue

from metier.definitions.nearest import find_nearest, suggest
from metier.definitions.problems import Problem
from metier.settings.fields import Leaf, all_leaves
from metier.settings.values import Given, Layer, Origin, quote

OLDER_NAMES: Mapping[str, str] = {
    "skills.enabled": "AGENT_SKILLS",
    "skills.script_timeout_seconds": "SCRIPT_TIMEOUT",
    "skills.max_script_output_bytes": "MAX_SCRIPT_OUTPUT",
    "shell.enabled": "SHELL_TOOL_ENABLED",
    "shell.mode": "SHELL_TOOL_MODE",
    "shell.timeout_ms": "SHELL_TOOL_TIMEOUT_MS",
    "shell.max_output_chars": "SHELL_TOOL_MAX_OUTPUT_CHARS",
    "shell.allowed_prefixes": "SHELL_TOOL_ALLOWED_PREFIXES",
    "store.backend": "STATE_STORE_BACKEND",
}

NOT_SETTINGS = frozenset(
    {"AGENT_PYTHON", "AGENT_IDEMPOTENCY_KEY", "AGENT_RESUME_SECRET", "AGENT_WORKER_BROKER_URL", "AGENT_TRUST"}
)
"""Variables that begin like settings and mean something else."""


class EnvironmentLayer(Struct, frozen=True):
    values: Layer
    warnings: tuple[Problem, ...]


def variables_of(key: str) -> tuple[str, ...]:
    """The variables that set `key`; the first wins."""
    older = OLDER_NAMES.get(key)
    own = f"AGENT_{key.replace('.', '_').upper()}"
    return (own, older) if older else (own,)


def read_environment(environ: Mapping[str, str]) -> EnvironmentLayer:
    """What the environment says. An empty variable counts as unset."""
    values: Layer = {}
    warnings: list[Problem] = []
    for leaf in all_leaves().values():
        present = [name for name in variables_of(leaf.key) if environ.get(name, "").strip()]
        if not present:
            continue
        origin = Origin(kind="environment", variable=present[0])
        values[leaf.key] = Given(split_text(leaf, environ[present[0]]), origin)
        warnings.extend(_outvoted(present, environ))
    return EnvironmentLayer(values, tuple(warnings))


def split_text(leaf: Leaf, text: str) -> str | tuple[str, ...]:
    """A list on one line: a JSON list of texts, else items separated by commas."""
    if not leaf.takes_list or text.strip() in leaf.words:
        return text.strip()
    items = _read_json_list(text)
    if items is not None:
        return items
    return tuple(item.strip() for item in text.split(",") if item.strip())


def _read_json_list(text: str) -> tuple[str, ...] | None:
    """None for a text that is no JSON list of texts."""
    if not text.lstrip().startswith("["):
        return None
    try:
        items: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(items, list):
        return None
    texts = tuple(item for item in items if isinstance(item, str))
    return texts if len(texts) == len(items) else None


def list_unknown_variables(environ: Mapping[str, str], *, used: Collection[str]) -> Iterator[Problem]:
    """A warning for each variable that begins like a setting, is none, and is not `used` for something else."""
    known = {name for key in all_leaves() for name in variables_of(key)}
    for name in sorted(environ):
        if name.startswith("AGENT_") and name not in known | NOT_SETTINGS and name not in used:
            nearest = _nearest_variable(name, known)
            message = f"Environment variable {name if name.isidentifier() else quote(name)} is not a setting"
            yield Problem(severity="warning", code="unknown_variable", message=message, hint=suggest(nearest))


def _outvoted(present: list[str], environ: Mapping[str, str]) -> Iterator[Problem]:
    for name in present[1:]:
        if environ[name].strip() != environ[present[0]].strip():
            message = f"Environment variable {name} is not used, because {present[0]} is set to something else"
            yield Problem(severity="warning", code="variable_outvoted", message=message, hint=f"Unset {name}")


def _nearest_variable(name: str, known: set[str]) -> str | None:
    """Compared without the common beginning, which would make everything look alike; case matters nowhere."""
    endings = {variable.removeprefix("AGENT_").lower(): variable for variable in sorted(known)}
    nearest = find_nearest(name.removeprefix("AGENT_").lower(), endings)
    return endings[nearest] if nearest else None
