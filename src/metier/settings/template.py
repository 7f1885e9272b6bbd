"""Generates a new `agent.yaml`, the rows of reference pages, and the JSON Schema from the models."""

import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel

from metier.settings.keys import all_leaves, find_section, variables_of
from metier.settings.sections import Settings
from metier.settings.setting_values import render_value

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


class SettingRow(NamedTuple):
    key: str
    """Dotted key, such as `model.providers.anthropic.base_url`."""
    type: str
    default: str
    """Default value as YAML."""
    allowed: tuple[str, ...]
    """Allowed words, or bounds; empty if any value of the type is valid."""
    variables: tuple[str, ...]
    """Environment variables; the first takes precedence."""
    description: str


def setting_rows() -> list[SettingRow]:
    """Return every setting, in the order of the file."""
    return [
        SettingRow(
            key=leaf.key,
            type=leaf.type,
            default=render_value(leaf.default),
            allowed=leaf.allowed,
            variables=variables_of(leaf.key),
            description=leaf.description,
        )
        for leaf in all_leaves().values()
    ]


def render_template() -> str:
    """Render an `agent.yaml` with all defaults."""
    rows = {row.key: row for row in setting_rows()}
    return "\n".join([_HEAD, *_section(Settings, rows, prefix="")]).rstrip() + "\n"


def _section(model: type[BaseModel], rows: dict[str, SettingRow], *, prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in model.model_fields.items():
        section = find_section(field)
        if section is None:
            yield from _leaf(rows[f"{prefix}{name}"], name, indent)
            continue
        yield from _comment(field.description or "", indent)
        yield f"{indent}{name}:"
        yield from _section(section, rows, prefix=f"{prefix}{name}.")
        if not prefix:
            yield ""


def _leaf(row: SettingRow, name: str, indent: str) -> Iterator[str]:
    yield from _comment(row.description, indent)
    yield from _comment(f"{_allowed(row)}; {' or '.join(row.variables)}", indent)
    yield f"{indent}{name}: {row.default}"


def _allowed(row: SettingRow) -> str:
    if row.type in {"word", "true or false"}:
        return " | ".join(row.allowed)
    if row.type.startswith("word or "):
        return f"{row.type.removeprefix('word or ').capitalize()}, or {' | '.join(row.allowed)}"
    name = row.type.removesuffix(" or null")
    parts = [name.capitalize(), " and ".join(row.allowed), "or null" if name != row.type else ""]
    return ", ".join(part for part in parts if part)


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ", break_on_hyphens=False
    )


def build_schema() -> dict[str, object]:
    """Build a JSON Schema 2020-12 with descriptions, defaults, allowed words and bounds of all settings."""
    schema: dict[str, object] = Settings.model_json_schema(mode="validation")
    return {"$schema": DIALECT, **schema, "title": "agent.yaml"}
