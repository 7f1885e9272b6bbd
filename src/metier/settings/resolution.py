"""Resolves the settings. Flags override the environment, the file and the defaults, in this order.

The problems of all sources are reported together.
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from metier.definitions.policy_file import read_policy_file
from metier.definitions.problems import Problem, has_errors
from metier.errors import ConfigError
from metier.providers.model_names import DEFAULT_MODELS, parse_model_name, qualify_model_name
from metier.providers.options import KEY_VARIABLES, ModelOptions, find_key_variable
from metier.settings.clone_settings import FREE, PROFILE, describe_withheld, digest_words, narrow, set_profile
from metier.settings.discovery import RUNS_KEY, SettingsFile, find_default_runs, find_file, find_own_file
from metier.settings.keys import PATH_KEYS, all_leaves
from metier.settings.layers import (
    SourceLayer,
    build_settings,
    check_alone,
    check_together,
    list_unknown_variables,
    read_environment,
    read_file,
    read_flags,
)
from metier.settings.sections import Settings
from metier.settings.setting_values import Given, Layer, Origin
from metier.skills.workspace_trust import WorkspaceTrust, digest_bytes, get_trust

HOOKS_KEY = "hooks"
_NAME, _PROVIDER = "model.name", "model.provider"
_BY_USER = ("flag", "environment")


class LoadedSettings(Struct, frozen=True, kw_only=True):
    settings: Settings
    origins: Mapping[str, Origin]
    """Source of every setting's value, by dotted key."""
    file: Path | None
    """The settings file, if one was found."""
    warnings: tuple[Problem, ...]
    trust: WorkspaceTrust
    """Trust in this folder."""
    words: str
    """Digest of the settings that need trust; see `clone_settings.digest_words`."""
    carried: tuple[str, ...]
    """Keys in the folder's file that need trust."""


def load_settings(
    *, flags: Mapping[str, str], environ: Mapping[str, str], cwd: Path, home: Path, config: Path | None
) -> LoadedSettings:
    """Read and merge all sources. `flags` maps dotted keys to text. Writes and starts nothing.

    The file of an untrusted clone can only restrict the settings. Raises `ConfigError` with every problem.
    """
    file = find_file(config=config, environ=environ, cwd=cwd, home=home)
    trust = get_trust(cwd, home=home, environ=environ)
    own = find_own_file(environ=environ, cwd=cwd, home=home)
    from_file = _read_effective(file, trust, own=own, is_policy_changed=_is_policy_changed(cwd, trust))
    from_environment = read_environment(environ)
    from_flags = read_flags(flags)
    merged = _merge(from_file.values, from_environment.values, from_flags.values)
    merged = _expand_home(_add_default_model(merged, environ), home)
    elsewhere = find_default_runs(cwd=cwd, home=home, environ=environ)
    if elsewhere is not None:
        merged.setdefault(RUNS_KEY, Given(str(elsewhere), Origin(kind="default")))
    problems = [
        *sorted(from_file.problems, key=lambda problem: problem.line or 0),
        *check_alone(from_environment.values),
        *from_flags.problems,
        *check_alone(from_flags.values),
        *check_together(merged),
    ]
    problems += [
        *_describe_folder(trust),
        *from_file.withheld,
        *from_environment.problems,
        *list_unknown_variables(environ, used=_named_variables(merged)),
    ]
    if has_errors(problems):
        raise _refusal(problems)
    return LoadedSettings(
        settings=build_settings(merged),
        origins={key: merged[key].origin if key in merged else Origin(kind="default") for key in all_leaves()},
        file=file.path if file else None,
        warnings=tuple(problems),
        trust=_note_origins(trust, merged, carried_hooks=from_file.hooks),
        words=from_file.words,
        carried=from_file.carried,
    )


class _EffectiveFile(Struct, frozen=True, kw_only=True):
    """The effective part of a settings file."""

    values: Layer
    problems: tuple[Problem, ...]
    withheld: tuple[Problem, ...] = ()
    words: str
    carried: tuple[str, ...] = ()
    hooks: Given | None = None
    """Hooks in the folder's own file, effective or not."""


def _is_policy_changed(workspace: Path, trust: WorkspaceTrust) -> bool:
    """Return True if the rules of a trusted folder changed. They may lack a rule that required approval."""
    if trust.record is None:
        return False
    try:
        return not trust.counts("policy", digest_bytes(read_policy_file(workspace)))
    # Rules that cannot be read count as changed, so that damage never permits more.
    except ConfigError:
        return True


def _read_effective(
    file: SettingsFile | None, trust: WorkspaceTrust, *, own: SettingsFile | None, is_policy_changed: bool
) -> _EffectiveFile:
    """Read the file. In an untrusted folder, its allowed part is merged with the user's own file."""
    read = read_file(file) if file else SourceLayer()
    problems = (*read.problems, *check_alone(read.values))
    is_carried = file is not None and file.is_carried
    words = digest_words(read.values if is_carried else {})
    carried = tuple(key for key in read.values if key not in FREE) if is_carried else ()
    hooks = read.values.get(HOOKS_KEY) if is_carried else None
    is_changed = trust.record is not None and not trust.counts("settings", words)
    is_careful = trust.is_withheld or is_changed or is_policy_changed
    if not is_carried:
        # The settings are the user's, but the folder's files are not trusted: without a chosen profile, runs must ask.
        values = set_profile(read.values) if is_careful else read.values
        return _EffectiveFile(values=values, problems=problems, withheld=_describe_change(is_changed), words=words)
    if trust.counts("settings", words):
        inherited = _inherit_profile(read.values, own)
        values = set_profile(inherited) if is_careful else inherited
        return _EffectiveFile(values=values, problems=problems, words=words, carried=carried, hooks=hooks)
    mine = read_file(own) if own else SourceLayer()
    base = set_profile(mine.values) if is_careful else mine.values
    narrowed = narrow(read.values, base)
    return _EffectiveFile(
        values=narrowed.values,
        problems=(*problems, *mine.problems, *check_alone(mine.values)),
        withheld=(*_describe_change(is_changed), *describe_withheld(read.values, narrowed.withheld)),
        words=words,
        carried=carried,
        hooks=hooks,
    )


def _inherit_profile(values: Layer, own: SettingsFile | None) -> Layer:
    """Add the profile of the user's own file if the folder's file has none.

    Otherwise a user who chose `guarded` for all folders would silently lose it in every folder with an `agent.yaml`.
    """
    if own is None or PROFILE in values:
        return values
    chosen = read_file(own).values.get(PROFILE)
    return values if chosen is None else {**values, PROFILE: chosen}


def _describe_folder(trust: WorkspaceTrust) -> list[Problem]:
    if not trust.is_withheld:
        return []
    message = (
        f"This folder came from elsewhere ({trust.origin}) and you have not trusted it: what its rules allow does not "
        "count, and the code of its skills does not run"
    )
    hint = "Review its files, then run `agent trust`"
    return [Problem(severity="warning", code="folder_not_trusted", message=message, hint=hint)]


def _describe_change(is_changed: bool) -> tuple[Problem, ...]:  # noqa: FBT001  one question, one answer
    if not is_changed:
        return ()
    message = (
        "The settings changed since you trusted this folder, so they are limited like those of an untrusted folder"
    )
    return (
        Problem(
            severity="warning", code="settings_changed", message=message, hint="Review them, then run `agent trust`"
        ),
    )


def _note_origins(trust: WorkspaceTrust, merged: Layer, *, carried_hooks: Given | None) -> WorkspaceTrust:
    """Record if the user or the folder's author set the values that trust depends on."""
    directory, hooks = merged.get("skills.dir"), merged.get(HOOKS_KEY)
    is_overridden = hooks is not None and hooks.origin.kind in _BY_USER
    text = "" if carried_hooks is None or is_overridden else str(carried_hooks.value or "")
    return replace(
        trust,
        is_directory_named=directory is not None and directory.origin.kind in _BY_USER,
        settings_hooks=text,
        are_hooks_own=hooks is None or hooks is not carried_hooks,
    )


def _merge(*layers: Layer) -> Layer:
    """Merge the layers, in ascending precedence.

    `model.name` can contain its provider; otherwise the provider of the same layer applies.
    """
    merged: Layer = {}
    for layer in layers:
        before, merged = merged, merged | layer
        name, provider = layer.get(_NAME), layer.get(_PROVIDER)
        if name is not None:
            merged |= _route(name, provider, before.get(_PROVIDER))
        elif provider is not None and _PROVIDER in before and before[_PROVIDER].value != provider.value:
            # The name is a model of the provider that this layer replaces.
            merged.pop(_NAME, None)
    return merged


def _add_default_model(merged: Layer, environ: Mapping[str, str]) -> Layer:
    """Add the provider's default model. The default provider is the one whose key is set, if there is only one."""
    if _PROVIDER not in merged:
        keys = _list_keys(merged, environ)
        if len(keys) == 1:
            merged = {**merged, _PROVIDER: keys[0]}
    provider = merged.get(_PROVIDER)
    default = DEFAULT_MODELS.get(str(provider.value)) if provider else None
    return merged if default is None else {_NAME: Given(default, Origin(kind="default"))} | merged


def _list_keys(merged: Layer, environ: Mapping[str, str]) -> list[Given]:
    """List the providers whose key is set, with the variable as their origin."""
    found: list[Given] = []
    for name, usual in KEY_VARIABLES.items():
        own = merged.get(f"model.providers.{name}.api_key_env")
        variable = find_key_variable(usual, environ, configured=str(own.value) if own is not None else "")
        if variable is not None:
            found.append(Given(name, Origin(kind="environment", variable=variable)))
    return found


def _route(name: Given, provider: Given | None, before: Given | None) -> Layer:
    """Split the name of a layer into provider and model."""
    if not isinstance(name.value, str):
        return {}
    if provider is not None:
        stated = str(provider.value)
        parsed = parse_model_name(qualify_model_name(name.value, provider=stated), provider=stated)
        return {_NAME: replace(name, value=parsed.model)}
    current = str(before.value) if before else ModelOptions().provider
    parsed = parse_model_name(name.value, provider=current)
    chosen: Layer = {_NAME: replace(name, value=parsed.model)}
    return chosen if parsed.provider == current else {**chosen, _PROVIDER: Given(parsed.provider, name.origin)}


def _refusal(problems: list[Problem]) -> ConfigError:
    errors = sum(problem.severity == "error" for problem in problems)
    count = "a problem" if errors == 1 else f"{errors} problems"
    hint = "Nothing was started or changed; `agent config init PATH` creates a file that explains every setting"
    return ConfigError(f"The settings have {count}", hint=hint, problems=problems)


def _named_variables(layer: Layer) -> set[str]:
    """Return the variables that settings refer to, such as those for keys."""
    keys = [key for key in all_leaves() if key.endswith("_env")]
    return {str(layer[key].value if key in layer else all_leaves()[key].default) for key in keys}


def _expand_home(layer: Layer, home: Path) -> Layer:
    expanded = dict(layer)
    for key in PATH_KEYS & layer.keys():
        given = layer[key]
        if isinstance(given.value, str) and (given.value == "~" or given.value.startswith("~/")):
            expanded[key] = replace(given, value=str(home / given.value[2:]))
    return expanded
