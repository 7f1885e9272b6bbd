"""Write one setting into the settings file that holds here. `agent config set` and `agent skills enable` use it."""

import os
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from metier.cli.shared.context import current_file, current_workspace, home_folder
from metier.cli.shared.new_file import write_new_file
from metier.cli.shared.output import warn_line
from metier.cli.trust import renew_trust, speaks_for_person
from metier.definitions.nearest import suggest
from metier.errors import ConfigError, UsageError
from metier.settings.check import check_alone
from metier.settings.discovery import FILE_NAME, user_folder
from metier.settings.edit import set_in_text
from metier.settings.environment import split_text, variables_of
from metier.settings.fields import Leaf, all_leaves, find_nearest_key
from metier.settings.values import Given, Origin, looks_secret, render_value

Mine = Annotated[bool, typer.Option("--user", help="Change your user settings instead of the workspace's.")]


class Change(Struct, frozen=True, kw_only=True):
    file: Path
    key: str
    value: str
    """As the file has it."""
    outvoted_by: str
    """A variable of the environment that counts before the file; nothing where none is set."""


def change_setting(key: str, text: str, *, mine: bool) -> Change:
    """Set `key` to what a person typed, in the file that holds here or in their own. A missing file is made.

    Raises `UsageError`, and `ConfigError` for a value that cannot be; then nothing is written.
    """
    leaf = _get_leaf(key)
    if looks_secret(text):
        raise UsageError(
            f"{key} looks like a secret; secrets are read only from environment variables",
            hint="Set the variable instead, such as ANTHROPIC_API_KEY",
        )
    value = None if leaf.is_optional and text == "null" else split_text(leaf, text)
    problems = check_alone({key: Given(value, Origin(kind="file", file="the new value"))})
    if problems:
        raise ConfigError(f"{key} cannot have this value; nothing was changed", hint="", problems=problems)
    file = find_target(mine=mine)
    rendered = "null" if value is None else render_value(value) if str in leaf.kinds or tuple in leaf.kinds else text
    write_setting(file, key, rendered)
    outvoted = next((name for name in variables_of(key) if os.environ.get(name, "").strip()), "")
    return Change(file=file, key=key, value=rendered, outvoted_by=outvoted)


def find_target(*, mine: bool) -> Path:
    """The file that a change goes to: the one that holds here; where there is none, `agent.yaml` of this folder.

    A file of this folder would hide the person's own as a whole, so a change does not make one beside it.
    """
    own = user_folder(os.environ, home_folder()) / FILE_NAME
    if mine:
        return own
    cwd = current_workspace()
    is_nobodys_project = cwd == home_folder() or cwd == Path(cwd.anchor)
    return current_file(None) or (own if is_nobodys_project else cwd / FILE_NAME)


def write_setting(file: Path, key: str, rendered: str) -> None:
    try:
        text = file.read_text(encoding="utf-8-sig") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"'{file}' cannot be read: {error}", hint="Run `agent check settings`") from error
    folder = file.absolute().parent
    spoke = speaks_for_person(folder)
    write_new_file(file, set_in_text(text, key, rendered), overwrite=True)
    if spoke:
        renew_trust(folder)


def tell_change(change: Change) -> None:
    warn_line(f"{change.file}: {change.key} is now {change.value}")
    if change.outvoted_by:
        warn_line(f"warning: {change.outvoted_by} is set in the environment and overrides the file")


def _get_leaf(key: str) -> Leaf:
    leaf = all_leaves().get(key)
    if leaf is None:
        hint = suggest(find_nearest_key(key, (), all_leaves())) or "Run `agent config show` to list all keys"
        raise UsageError(f"No setting is called {key!r}", hint=hint)
    return leaf
