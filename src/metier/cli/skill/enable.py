"""`agent skills enable` and `disable`: change the enabled packages in the settings file."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from metier.cli.setting_change import Change, Mine, change_setting, report_change
from metier.cli.shared.context import current_workspace, home_folder
from metier.cli.shared.options import AsJson
from metier.cli.shared.output import warn_line, write_json
from metier.cli.skill.workspace_skills import open_places
from metier.definitions.names import canonical_name
from metier.definitions.nearest import hint_nearest
from metier.errors import SkillNotFound, UsageError
from metier.settings.keys import variables_of
from metier.settings.resolution import load_settings
from metier.skills.activation import OPT_IN, FoundSkills, Selection, get_packages, parse_selection
from metier.skills.package import SkillPackage
from metier.skills.trust.judgement import is_trusted

KEY = "skills.enabled"

Names = Annotated[list[str], typer.Argument(help="Skill names.")]


def attach(app: typer.Typer) -> None:
    app.command("enable")(enable)
    app.command("disable")(disable)


def enable(names: Names, *, mine: Mine = False, as_json: AsJson = False) -> None:
    """Enable bundled or installed skills."""
    skills = get_packages(open_places(None).roots)
    found = [_get_package(name, skills) for name in names]
    own = [package for package in found if package.source not in OPT_IN]
    if own:
        name = own[0].definition.name
        raise UsageError(f"Skill {name!r} is a workspace skill", hint="Workspace skills are always enabled")
    selection = _read_enabled()
    if isinstance(selection, str) and selection != "none":
        raise UsageError(
            f"{KEY} is already {selection!r}", hint="All skills are enabled; run `agent skills` to list them"
        )
    wanted = [canonical_name(package.definition.name) for package in found]
    change = _write((*(() if isinstance(selection, str) else selection), *wanted), mine=mine)
    _report(change, as_json=as_json)
    for package in found:
        if not is_trusted(package):
            name = canonical_name(package.definition.name)
            warn_line(f"warning: {name} is not trusted and not used; to trust it, run `agent skills trust {name}`")


def disable(names: Names, *, mine: Mine = False, as_json: AsJson = False) -> None:
    """Disable skills."""
    skills = get_packages(open_places(None).roots)
    selection = _read_enabled()
    if isinstance(selection, str):
        # `all` without one of them is a list.
        packages = [package for package in skills.packages if package.source in OPT_IN]
        enabled = [] if selection == "none" else [canonical_name(package.definition.name) for package in packages]
    else:
        enabled = [canonical_name(name) for name in selection]
    dropped = [canonical_name(name) for name in names]
    for name in dropped:
        if name not in enabled:
            if name not in _list_names(skills):
                raise _not_found(name, skills)
            warn_line(f"{name} was not enabled")
    change = _write([name for name in enabled if name not in dropped], mine=mine)
    _report(change, as_json=as_json)


def _read_enabled() -> Selection:
    """Return the selection of the settings file, without the environment's."""
    without = {name: value for name, value in os.environ.items() if name not in variables_of(KEY)}
    loaded = load_settings(flags={}, environ=without, cwd=current_workspace(), home=home_folder(), config=None)
    enabled = loaded.settings.skills.enabled
    return parse_selection(enabled if isinstance(enabled, str) else ",".join(enabled))


def _write(names: Sequence[str], *, mine: bool) -> Change:
    listed = ",".join(dict.fromkeys(canonical_name(name) for name in names))
    return change_setting(KEY, listed or "none", mine=mine)


def _report(change: Change, *, as_json: bool) -> None:
    report_change(change)
    if as_json:
        write_json({"file": str(change.file), "key": change.key, "value": change.value})


def _get_package(name: str, skills: FoundSkills) -> SkillPackage:
    package = skills.find(name)
    if package is None:
        raise _not_found(name, skills)
    return package


def _list_names(skills: FoundSkills) -> set[str]:
    return {canonical_name(package.definition.name) for package in skills.packages}


def _not_found(name: str, skills: FoundSkills) -> SkillNotFound:
    hint = (
        hint_nearest(canonical_name(name), _list_names(skills))
        or "Run `agent skills` to list them, or `agent skills add` to install one"
    )
    return SkillNotFound(f"No skill is called {name!r}", hint=hint)
