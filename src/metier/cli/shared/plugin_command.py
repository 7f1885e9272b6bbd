"""A command that a plugin brings, looked for only when Metier has none of that name."""

import typer

from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import warn_line
from metier.plugins.lifecycle import list_entry_points
from metier.runtime.workspace.plugins import get_plugins


def find_app(name: str) -> typer.Typer | None:
    """Says which plugins are off when none that works has the command: it may be one of theirs."""
    if not list_entry_points():
        return None
    plugins = get_plugins(open_host(None))
    for registry in plugins.registries:
        if name in registry.commands:
            return registry.commands[name].app
    for problem in plugins.problems:
        warn_line(problem.render())
    return None
