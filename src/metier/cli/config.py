"""`agent config`: create, change, check and show settings."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, cast

import typer
import yaml
from msgspec import Struct, to_builtins

from metier.cli.shared.command_options import AsJson, Config, build_group
from metier.cli.shared.context import current_file, current_settings, current_workspace, home_folder
from metier.cli.shared.new_file import write_new_file
from metier.cli.shared.output import warn_line, write_json, write_line
from metier.cli.trust import is_trusted_folder, renew_trust, trust_new_folder
from metier.definitions.files.user_folders import get_config_folder
from metier.definitions.nearest import suggest
from metier.definitions.problems import Problem
from metier.definitions.text.yaml_text import Plain
from metier.errors import ConfigError, UsageError
from metier.settings.clone_settings import narrow, set_profile
from metier.settings.discovery import FILE_NAME, find_own_file
from metier.settings.keys import Leaf, all_leaves, build_schema, find_nearest_key, render_template, variables_of
from metier.settings.layers import check_alone, read_file, read_json_list, split_text
from metier.settings.resolution import LoadedSettings
from metier.settings.setting_values import Given, Origin, Shown, get_value, looks_secret, render_value, show_value
from metier.skills.git_clones import find_origin
from metier.skills.workspace_trust import list_agent_files

Mine = Annotated[bool, typer.Option("--user", help="Change your user settings instead of the workspace's.")]

app = build_group("Create, change and show settings.")

type Tree = dict[str, Shown | Tree]


@app.command("init")
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("agent.yaml"),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Create a settings file with all defaults."""
    folder = path.absolute().parent
    # Asked before writing, because the new file would be found too.
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
    report_change(change, as_json=as_json)


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


type YamlTree = dict[str, YamlTree | list[str] | str | None]


class Change(Struct, frozen=True, kw_only=True):
    file: Path
    key: str
    value: str
    """The value as written to the file."""
    overridden_by: str
    """The environment variable that overrides the file; empty if none is set."""


def change_setting(key: str, text: str, *, mine: bool) -> Change:
    """Set `key` to the text that the user typed, in the current settings file or, with `mine`, the user's own.

    A missing file is created.
    Raises `UsageError` for an invalid key or value; then nothing is written.
    """
    leaf = _get_leaf(key)
    # Settings files are committed and shared, so keys come only from the environment.
    if looks_secret(text):
        raise UsageError(
            f"{key} looks like a secret; secrets are read only from environment variables",
            hint="Set the variable instead, such as ANTHROPIC_API_KEY",
        )
    if leaf.takes_list and text.lstrip().startswith("[") and read_json_list(text) is None:
        raise UsageError(f"{key} must be a JSON list of texts, not {text!r}", hint='For example, \'["a", "b"]\' or a,b')
    value = None if leaf.is_optional and text == "null" else split_text(leaf, text)
    problems = check_alone({key: Given(value, Origin(kind="file", file="the new value"))})
    if problems:
        raise UsageError(problems[0].message, hint=problems[0].hint or "Nothing was changed")
    file = find_target(mine=mine)
    if not mine:
        _check_effect(file, key, value)
    rendered = "null" if value is None else render_value(value) if str in leaf.kinds or tuple in leaf.kinds else text
    write_setting(file, key, rendered)
    variable = next((name for name in variables_of(key) if os.environ.get(name, "").strip()), "")
    return Change(file=file, key=key, value=rendered, overridden_by=variable)


def find_target(*, mine: bool) -> Path:
    """Return the file to change: the current settings file or, if there is none, `agent.yaml` in the workspace.

    If the user settings are in use, they are changed: a new `agent.yaml` in the workspace would override all of them.
    """
    own = get_config_folder(os.environ, home_folder()) / FILE_NAME
    if mine:
        return own
    cwd = current_workspace()
    is_no_project = cwd == home_folder() or cwd == Path(cwd.anchor)
    return current_file(None) or (own if is_no_project else cwd / FILE_NAME)


def _check_effect(file: Path, key: str, value: Plain) -> None:
    """Raise `UsageError` for a value that would be ignored: an untrusted clone can only make a setting stricter."""
    workspace = current_workspace()
    is_in_clone = file.absolute() == workspace.absolute() / FILE_NAME and find_origin(workspace)
    if not is_in_clone or next(list_agent_files(workspace), None) is None or is_trusted_folder(workspace):
        return
    own = find_own_file(environ=os.environ, cwd=workspace, home=home_folder())
    own_values = set_profile(read_file(own).values if own else {})
    if narrow({key: Given(value, Origin(kind="file"))}, own_values).withheld:
        raise UsageError(
            f"{key} would be ignored in '{file}': this folder came from elsewhere and is not trusted",
            hint="Review its files and run `agent trust`, or change your own settings with --user",
        )


def write_setting(file: Path, key: str, rendered: str) -> None:
    try:
        # Some editors on Windows start a file with a byte order mark.
        text = file.read_text(encoding="utf-8-sig") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"'{file}' cannot be read: {error}", hint="Run `agent check settings`") from error
    folder = file.absolute().parent
    # In a clone without agent files, the user will have written all of them.
    was_empty = next(list_agent_files(folder), None) is None
    is_own = was_empty or is_trusted_folder(folder)
    write_new_file(file, set_in_text(text, key, rendered), overwrite=True)
    if is_own:
        renew_trust(folder)


def report_change(change: Change, *, as_json: bool = False) -> None:
    warn_line(f"{change.file}: {change.key} is now {change.value}")
    if change.overridden_by:
        warn_line(f"warning: {change.overridden_by} is set in the environment and overrides the file")
    if as_json:
        write_json({"file": str(change.file), "key": change.key, "value": change.value})


def _get_leaf(key: str) -> Leaf:
    leaf = all_leaves().get(key)
    if leaf is None:
        hint = suggest(find_nearest_key(key, (), all_leaves())) or "Run `agent config show` to list all keys"
        raise UsageError(f"No setting is called {key!r}", hint=hint)
    return leaf


def set_in_text(text: str, key: str, rendered: str) -> str:
    """Return the YAML text with the dotted `key` set to `rendered`, one line of YAML. Comments are kept.

    Raises `UsageError` if the file's form does not allow it.
    """
    path = key.split(".")
    before = _read(text)
    changed = _change(text, path, rendered)
    # YAML has too many forms to edit all of them correctly, so the result is verified: only this key may differ.
    value = cast("list[str] | str | None", _read(f"value: {rendered}")["value"])
    if _read(changed) != _set(before, path, value):
        raise UsageError(
            f"{key} cannot be changed in this file without changing other lines", hint="Change it in an editor"
        )
    return changed


def _change(text: str, path: list[str], rendered: str) -> str:
    # PyYAML's stubs leave the loader's types open.
    root = cast("yaml.Node | None", yaml.compose(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType]
    if not isinstance(root, yaml.MappingNode):
        return f"{_end_line(text)}{_render_block(path, rendered, indent=0)}"
    node, rest = root, list(path)
    while True:
        found = _find(node, rest[0])
        if found is None:
            return _insert(text, node, _render(node, rest, rendered))
        name, value = found
        if len(rest) == 1:
            return f"{text[: name.end_mark.index]}: {rendered}{text[_get_end(value) :]}"
        rest.pop(0)
        if not isinstance(value, yaml.MappingNode):
            # An empty section.
            block = _render_block(rest, rendered, indent=name.start_mark.column + 2)
            end = text.find("\n", value.end_mark.index)
            return f"{text}\n{block}" if end < 0 else f"{text[: end + 1]}{block}{text[end + 1 :]}"
        node = value


def _find(node: yaml.MappingNode, name: str) -> tuple[yaml.Node, yaml.Node] | None:
    return next((pair for pair in node.value if pair[0].value == name), None)


def _get_end(node: yaml.Node) -> int:
    """Return the end of the value; a block collection would otherwise include comments up to the next key."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = cast("yaml.Node | tuple[yaml.Node, yaml.Node]", node.value[-1])
        return _get_end(last[1] if isinstance(last, tuple) else last)
    return node.end_mark.index


def _render(node: yaml.MappingNode, path: list[str], rendered: str) -> str:
    if not node.flow_style:
        return _render_block(path, rendered, indent=node.start_mark.column)
    *sections, name = path
    opening = "".join(f'"{section}": {{' for section in sections)
    return f'{opening}"{name}": {rendered}{"}" * len(sections)}'


def _insert(text: str, node: yaml.MappingNode, new: str) -> str:
    if node.flow_style:
        # Right after the opening brace: no comma is needed before the new key.
        start = node.start_mark.index + 1
        return f"{text[:start]}{new}{', ' if node.value else ''}{text[start:]}"
    end = text.find("\n", _get_end(node))
    return f"{_end_line(text)}{new}" if end < 0 else f"{text[: end + 1]}{new}{text[end + 1 :]}"


def _render_block(path: list[str], rendered: str, *, indent: int) -> str:
    *sections, name = path
    lines = [f"{' ' * (indent + 2 * depth)}{section}:" for depth, section in enumerate(sections)]
    return "\n".join([*lines, f"{' ' * (indent + 2 * len(sections))}{name}: {rendered}"]) + "\n"


def _end_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"


def _read(text: str) -> YamlTree:
    try:
        # This loader leaves scalars as text, so the comparison also sees a change from 1.0 to 1.00.
        value = cast("object", yaml.load(text, Loader=yaml.BaseLoader))  # noqa: S506 - constructs strings only
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        line = f" in line {mark.line + 1}" if mark is not None else ""
        hint = "Run `agent check settings` for details; nothing was changed"
        raise UsageError(f"The settings file has a YAML syntax error{line}", hint=hint) from error
    return cast("YamlTree", value) if isinstance(value, dict) else {}


def _set(tree: YamlTree, path: list[str], value: list[str] | str | None) -> YamlTree:
    name, *rest = path
    if not rest:
        return {**tree, name: value}
    section = tree.get(name)
    return {**tree, name: _set(section if isinstance(section, dict) else {}, rest, value)}
