"""Every setting by dotted key: its type, bounds and variables, and what is generated from them.

That is a new `agent.yaml`, the rows of reference pages, and the JSON Schema.
"""

import functools
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Literal, TypeAliasType, Union, get_args, get_origin

import annotated_types
from msgspec import Struct
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from metier.definitions.nearest import find_nearest, list_nearest
from metier.settings.sections import STRUCTURED, Settings
from metier.settings.setting_values import render_value

PATH_KEYS = frozenset({"skills.dir", "logging.jsonl_dir", "model.facts_file", "routing.embeddings.folder"})
"""Paths relative to the current directory. A leading `~` is the home folder."""

# Deployments may still set these. The page on configuration promises that they work.
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
"""Variables that have the prefix of settings but are not settings."""


_TYPE_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple: "list of text",
    Literal: "word",
    NoneType: "null",
}

_FORMS = {"_env": "name of a variable", "_url": "address", "dir": "path", "folder": "path", "_file": "path"}
"""Descriptions of text values, by the suffix of their key."""

_BOUNDS: tuple[tuple[type[object], str, str], ...] = (
    (annotated_types.Ge, "ge", "at least"),
    (annotated_types.Gt, "gt", "more than"),
    (annotated_types.Le, "le", "at most"),
    (annotated_types.Lt, "lt", "less than"),
)


class Leaf(Struct, frozen=True, kw_only=True):
    """One setting."""

    key: str
    kinds: tuple[object, ...]
    """Types of its value: `bool`, `int`, `float`, `str`, `tuple`, `Literal`, `NoneType`."""
    words: tuple[str, ...]
    """Allowed words, for a setting that takes words."""
    bounds: tuple[str, ...]
    default: object
    description: str
    is_structured: bool = False
    """True if files can contain lists and mappings here. The value is their JSON."""

    @property
    def is_bool(self) -> bool:
        return self.kinds == (bool,)

    @property
    def takes_list(self) -> bool:
        return tuple in self.kinds

    @property
    def is_optional(self) -> bool:
        return NoneType in self.kinds

    @property
    def type(self) -> str:
        words = " or ".join(_TYPE_WORDS[kind] for kind in self.kinds)
        form = next((form for ending, form in _FORMS.items() if self.key.endswith(ending)), "text")
        return words.replace("text", form) if self.kinds[0] is str else words

    @property
    def allowed(self) -> tuple[str, ...]:
        """Return the allowed words, or the bounds; empty if any value of the type is valid."""
        return ("true", "false") if self.is_bool else self.words or self.bounds

    @property
    def shown_default(self) -> str:
        """Return the default value as YAML."""
        return render_value(self.default)

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the environment variables; the first takes precedence."""
        return variables_of(self.key)


@functools.cache
def all_leaves() -> dict[str, Leaf]:
    """Return every setting by dotted key, in the order of the file."""
    return {leaf.key: leaf for leaf in _leaves_of(Settings, "")}


def variables_of(key: str) -> tuple[str, ...]:
    """Return the variables that set `key`; the first takes precedence."""
    older = OLDER_NAMES.get(key)
    own = f"AGENT_{key.replace('.', '_').upper()}"
    return (own, older) if older else (own,)


def find_section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field that is a section."""
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _leaves_of(model: type[BaseModel], prefix: str) -> Iterator[Leaf]:
    for name, field in model.model_fields.items():
        section = find_section(field)
        if section is not None:
            yield from _leaves_of(section, f"{prefix}{name}.")
            continue
        members = list(_members(field.annotation))
        yield Leaf(
            key=f"{prefix}{name}",
            kinds=tuple(dict.fromkeys(_kind(member) for member in members)),
            words=tuple(word for member in members if _kind(member) is Literal for word in get_args(member)),
            bounds=tuple(_bounds_of(field)),
            default=field.default,
            description=field.description or "",
            is_structured=STRUCTURED in field.metadata,
        )


def _members(annotation: object) -> Iterator[object]:
    """Yield the types in an annotation. Aliases, constraints and unions are expanded."""
    if isinstance(annotation, TypeAliasType):
        yield from _members(annotation.__value__)
    elif get_origin(annotation) is Annotated:
        yield from _members(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _kind(member: object) -> object:
    return get_origin(member) or member


def _bounds_of(field: FieldInfo) -> Iterator[str]:
    for constraint in field.metadata:
        for kind, attribute, phrase in _BOUNDS:
            if isinstance(constraint, kind):
                yield f"{phrase} {getattr(constraint, attribute)}"


def find_nearest_key(key: str, siblings: Iterable[str], keys: Iterable[str]) -> str | None:
    """Find the setting that a misspelled `key` may mean: the same key in another section, or a similar one."""
    name = key.rpartition(".")[2]
    known = list(keys)
    moved = [other for other in known if other.rpartition(".")[2] == name]
    if moved:
        return list_nearest(key, moved, most=1)[0]
    sibling = find_nearest(name, siblings)
    if sibling:
        return sibling
    alike = find_nearest(name, {other.rpartition(".")[2] for other in known})
    return list_nearest(key, [other for other in known if other.endswith(f".{alike}")], most=1)[0] if alike else None


_WIDTH = 110
_HEAD = """\
# Settings of `agent`. Every line shows the default: change what you need, and delete the rest.
#
# Precedence: flags, environment variables, this file, defaults. Relative paths start at the current
# directory. Don't put keys or passwords here: set them in environment variables.
#
# For completion and validation in your editor, run `agent config schema > agent.schema.json` and add this
# line (without the first `#   `) at the top of this file:
#   # yaml-language-server: $schema=agent.schema.json
"""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render_template() -> str:
    """Render an `agent.yaml` with all defaults."""
    return "\n".join([_HEAD, *_section(Settings, prefix="")]).rstrip() + "\n"


def _section(model: type[BaseModel], *, prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in model.model_fields.items():
        section = find_section(field)
        if section is None:
            yield from _leaf(all_leaves()[f"{prefix}{name}"], name, indent)
            continue
        yield from _comment(field.description or "", indent)
        yield f"{indent}{name}:"
        yield from _section(section, prefix=f"{prefix}{name}.")
        if not prefix:
            yield ""


def _leaf(leaf: Leaf, name: str, indent: str) -> Iterator[str]:
    yield from _comment(leaf.description, indent)
    yield from _comment(f"{_allowed(leaf)}; {' or '.join(leaf.variables)}", indent)
    yield f"{indent}{name}: {leaf.shown_default}"


def _allowed(leaf: Leaf) -> str:
    if leaf.type in {"word", "true or false"}:
        return " | ".join(leaf.allowed)
    if leaf.type.startswith("word or "):
        return f"{leaf.type.removeprefix('word or ').capitalize()}, or {' | '.join(leaf.allowed)}"
    name = leaf.type.removesuffix(" or null")
    parts = [name.capitalize(), " and ".join(leaf.allowed), "or null" if name != leaf.type else ""]
    return ", ".join(part for part in parts if part)


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ", break_on_hyphens=False
    )


def build_schema() -> dict[str, object]:
    """Build a JSON Schema 2020-12 with descriptions, defaults, allowed words and bounds of all settings."""
    schema: dict[str, object] = Settings.model_json_schema(mode="validation")
    return {"$schema": DIALECT, **schema, "title": "agent.yaml"}
