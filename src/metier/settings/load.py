"""Load the settings: flag > environment > file > default. All problems of all sources are reported at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from metier.definitions.nearest import suggest
from metier.definitions.problems import Problem, has_errors
from metier.errors import ConfigError
from metier.settings.check import build_settings, check_alone, check_together
from metier.settings.discovery import find_file
from metier.settings.environment import find_unknown_variables, read_environment, split_text
from metier.settings.fields import PATH_KEYS, all_leaves
from metier.settings.file import FileLayer, read_file
from metier.settings.model import Settings
from metier.settings.nearest import find_nearest_key
from metier.settings.origin import Given, Layer, Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSettings:
    settings: Settings
    origins: Mapping[str, Origin]
    """Who set each value, by dotted key; every setting is in it."""
    file: Path | None
    """The file that was read, if one was found."""
    warnings: tuple[Problem, ...]


def load_settings(
    *, flags: Mapping[str, str], environ: Mapping[str, str], cwd: Path, home: Path, config: Path | None
) -> LoadedSettings:
    """Read every source and compose them; `flags` are texts by dotted key. Writes and starts nothing.

    Raises `ConfigError` with every problem found.
    """
    file = find_file(config=config, environ=environ, cwd=cwd, home=home)
    from_file = read_file(file) if file else FileLayer({}, ())
    from_environment = read_environment(environ)
    from_flags = _read_flags(flags)
    merged = _expand_home(from_file.values | from_environment.values | from_flags.values, home)
    problems = [
        *sorted([*from_file.problems, *check_alone(from_file.values)], key=lambda problem: problem.line or 0),
        *check_alone(from_environment.values),
        *from_flags.problems,
        *check_alone(from_flags.values),
        *check_together(merged),
    ]
    problems += [*from_environment.warnings, *find_unknown_variables(environ, used=_named_variables(merged))]
    if has_errors(problems):
        raise _refusal(problems)
    return LoadedSettings(
        settings=build_settings(merged),
        origins={key: merged[key].origin if key in merged else Origin(kind="default") for key in all_leaves()},
        file=file.path if file else None,
        warnings=tuple(problems),
    )


def _refusal(problems: list[Problem]) -> ConfigError:
    errors = sum(problem.severity == "error" for problem in problems)
    count = "a problem" if errors == 1 else f"{errors} problems"
    hint = "Nothing was started or changed; `agent config init PATH` writes a file that explains every setting"
    return ConfigError(f"The settings have {count}", hint=hint, problems=problems)


def _named_variables(layer: Layer) -> set[str]:
    """The variables that settings name, such as the one that holds a key."""
    keys = [key for key in all_leaves() if key.endswith("_env")]
    return {str(layer[key].value if key in layer else all_leaves()[key].default) for key in keys}


def _read_flags(flags: Mapping[str, str]) -> FileLayer:
    values: Layer = {}
    problems: list[Problem] = []
    for key, text in flags.items():
        leaf = all_leaves().get(key)
        if leaf is None:
            hint = suggest(find_nearest_key(key, (), all_leaves()))
            problems.append(Problem(severity="error", code="unknown_key", message=f"Unknown key {key!r}", hint=hint))
            continue
        values[key] = Given(split_text(leaf, text), Origin(kind="flag"))
    return FileLayer(values, tuple(problems))


def _expand_home(layer: Layer, home: Path) -> Layer:
    expanded = dict(layer)
    for key in PATH_KEYS & layer.keys():
        given = layer[key]
        if isinstance(given.value, str) and (given.value == "~" or given.value.startswith("~/")):
            expanded[key] = replace(given, value=str(home / given.value[2:]))
    return expanded
