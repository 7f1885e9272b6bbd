"""`agent config`: create, change, check and show settings."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, cast

import typer
from msgspec import to_builtins

from metier.cli.setting_change import Mine, change_setting, report_change
from metier.cli.shared.context import current_file, current_settings
from metier.cli.shared.new_file import write_new_file
from metier.cli.shared.options import AsJson, Config, build_group
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.trust import trust_new_folder
from metier.definitions.problems import Problem
from metier.errors import ConfigError
from metier.settings.resolution import LoadedSettings
from metier.settings.setting_values import Shown, get_value, render_value, show_value
from metier.settings.template import build_schema, render_template
from metier.skills.trust.workspace_trust import list_agent_files

app = build_group("Create, change and show settings.")

type Tree = dict[str, Shown | Tree]


@app.command("init")
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("agent.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Create a settings file with all defaults."""
    folder = path.absolute().parent
    was_empty = next(list_agent_files(folder), None) is None
    write_new_file(path, render_template(), overwrite=force)
    if was_empty:
        trust_new_folder(folder)
    warn_line(f"Wrote {path}")


@app.command("set")
def set_(
    key: Annotated[str, typer.Argument(help="Setting, such as `runtime.max_turns`.")],
    value: Annotated[str, typer.Argument(help="Value; lists as JSON or comma-separated, `null` to clear.")],
    *,
    mine: Mine = False,
    as_json: AsJson = False,
) -> None:
    """Change a setting."""
    change = change_setting(key, value, mine=mine)
    report_change(change)
    if as_json:
        write_json({"file": str(change.file), "key": change.key, "value": change.value})


@app.command("validate", hidden=True)
def validate(
    file: Annotated[Path | None, typer.Option("--file", help="Settings file. Default: the one in use.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check the settings file and environment variables."""
    path = current_file(file)
    name = str(path) if path else None
    try:
        loaded = current_settings(file, {})
    except ConfigError as error:
        if not as_json:
            raise
        write_json({"valid": False, "file": name, "problems": _facts(error.problems)})
        return error.exit_code
    if as_json:
        write_json({"valid": True, "file": name, "problems": _facts(loaded.warnings)})
        return 0
    _print_warnings(loaded)
    write_line(f"{name} is valid" if name else "There is no settings file; the defaults are valid")
    return 0


@app.command("show")
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Show the source of each value.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show the effective settings. Secrets are masked."""
    loaded = current_settings(config, {})
    if as_json:
        write_json(_as_json(loaded, with_origin=origin))
        return
    _print_warnings(loaded)
    rows = [
        (key, render_value(get_value(loaded.settings, key)), source.render()) for key, source in loaded.origins.items()
    ]
    key_width, value_width = (max(len(row[column]) for row in rows) for column in (0, 1))
    for key, value, source in rows:
        line = f"{key:<{key_width}}  {value:<{value_width}}  {source}" if origin else f"{key:<{key_width}}  {value}"
        write_line(line)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of the settings file."""
    write_json(build_schema())


def _as_json(loaded: LoadedSettings, *, with_origin: bool) -> dict[str, object]:
    answer: dict[str, object] = {
        "file": str(loaded.file) if loaded.file else None,
        "settings": _tree(loaded),
        "warnings": _facts(loaded.warnings),
    }
    if with_origin:
        answer["origins"] = {
            key: {"kind": each.kind, "detail": each.detail or None} for key, each in loaded.origins.items()
        }
    return answer


def _tree(loaded: LoadedSettings) -> Tree:
    root: Tree = {}
    for key in loaded.origins:
        *sections, name = key.split(".")
        node = root
        for section in sections:
            # A section is never a value: the keys of the models do not overlap.
            node = cast("Tree", node.setdefault(section, {}))
        node[name] = show_value(get_value(loaded.settings, key))
    return root


def _facts(problems: Iterable[object]) -> list[dict[str, object]]:
    return [to_builtins(problem) for problem in problems if isinstance(problem, Problem)]


def _print_warnings(loaded: LoadedSettings) -> None:
    for warning in loaded.warnings:
        warn_line(warning.render())
