"""Every setting as a row of facts, for reference pages and for the file that `agent config init` writes."""

from typing import NamedTuple

from metier.settings.environment import variables_of
from metier.settings.fields import all_leaves
from metier.settings.values import render_value


class SettingRow(NamedTuple):
    key: str
    """Dotted, such as `model.providers.anthropic.base_url`."""
    type: str
    default: str
    """As `agent.yaml` would have it."""
    allowed: tuple[str, ...]
    """The allowed words, or the bounds; empty where anything of the type goes."""
    variables: tuple[str, ...]
    """The environment variables; the first wins."""
    description: str


def setting_rows() -> list[SettingRow]:
    """Every setting, in the order of the file."""
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
