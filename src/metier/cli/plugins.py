"""`agent plugins` lists installed plugins. Commands of plugins are found here too."""

from importlib.metadata import EntryPoint
from typing import Literal

import typer
from msgspec import Struct, to_builtins

from metier.cli.shared.command_options import AsJson, Config, build_group
from metier.cli.shared.open_host import open_host
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.definitions.names import PLUGIN
from metier.plugins.lifecycle import Plugins, list_entry_points
from metier.runtime.workspace.plugins import get_plugins

app = build_group("List installed plugins.")


class Row(Struct, frozen=True, kw_only=True):
    name: str
    distribution: str = ""
    version: str = ""
    state: Literal["on", "off"] = "off"
    why: str = ""
    """Why it is off."""
    tools: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    prompt_layers: tuple[str, ...] = ()
    subscribers: int = 0


@app.command("list")
def list_plugins(
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List plugins, their contributions and problems."""
    found = get_plugins(open_host(config))
    rows = [_describe(point, found) for point in list_entry_points()]
    installed = {row.name for row in rows}
    rows += [Row(name=each.plugin, why=each.sentence) for each in found.problems if each.plugin not in installed]
    if as_json:
        write_json({"plugins": [to_builtins(row) for row in rows]})
        return
    if not rows:
        write_line("No plugins installed")
    for row in rows:
        write_line(_render(row))


def _describe(point: EntryPoint, found: Plugins) -> Row:
    name, distribution = point.name, point.dist.name if point.dist else ""
    version = point.dist.version if point.dist else ""
    registry = next((each for each in found.registries if each.plugin == name), None)
    if registry is None:
        why = next((each.sentence for each in found.problems if each.plugin == name), "not in plugins.enabled")
        return Row(name=name, distribution=distribution, version=version, why=why)
    return Row(
        name=name,
        distribution=distribution,
        version=version,
        state="on",
        tools=tuple(tool.info.name for tool in registry.tools),
        providers=tuple(f"{PLUGIN}{each}" for each in sorted(registry.providers)),
        stores=tuple(f"{PLUGIN}{each}" for each in sorted(registry.stores)),
        commands=tuple(f"{each} ({registry.commands[each].summary})" for each in sorted(registry.commands)),
        prompt_layers=tuple(layer.title for layer in registry.prompt_layers),
        subscribers=len(registry.subscribers),
    )


def _render(row: Row) -> str:
    lines = [f"{row.name} ({row.state}) {row.distribution} {row.version}".rstrip()]
    if row.why:
        lines.append(f"  why: {row.why}")
    additions = {
        "tools": row.tools,
        "providers": row.providers,
        "stores": row.stores,
        "commands": row.commands,
        "prompt layers": row.prompt_layers,
    }
    lines += [f"  {kind}: {', '.join(names)}" for kind, names in additions.items() if names]
    if row.subscribers:
        lines.append(f"  subscribers: {row.subscribers}")
    return "\n".join(lines)


def find_app(name: str) -> typer.Typer | None:
    """Find a plugin's command. If there is none, print why plugins are off: one of them may have it."""
    if not list_entry_points():
        return None
    plugins = get_plugins(open_host(None))
    for registry in plugins.registries:
        if name in registry.commands:
            return registry.commands[name].app
    for problem in plugins.problems:
        warn_line(problem.render())
    return None
