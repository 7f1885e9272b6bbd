"""Precedence for every setting: flag, environment, file, default; the origin is shown."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from metier.settings.keys import OLDER_NAMES, Leaf, all_leaves, variables_of
from metier.settings.resolution import LoadedSettings, load_settings
from metier.settings.sections import Settings
from metier.settings.setting_values import Origin, get_value

type Tree = dict[str, str | list[str] | Tree]

LEAVES = all_leaves()
SMALL_STEPS = {"at most 1": 0.25, "at most 2": 0.5}
SOURCES = ("file", "environment", "flag")


PATTERNED = {
    "server.root_path": ("/one", "/two", "/three"),
    "server.push_hosts": ("one:1", "two:2,three:3", "four:4"),
    "server.users": tuple(f"{name}:viewer:{digit * 64}" for name, digit in (("ann", "1"), ("ben", "2"), ("cat", "3"))),
    "server.proxy_roles": ("staff:viewer", "on-call:approver,admins:operator", "admins:operator"),
}
"""Settings whose text has a form of its own."""


def texts(leaf: Leaf) -> tuple[str, str, str]:
    """Return valid values for file, environment and flag, different if possible."""
    if leaf.key in PATTERNED:
        first, second, third = PATTERNED[leaf.key]
        return (first, second, third)
    if leaf.is_bool:
        return ("no", "true", "off") if leaf.default is True else ("yes", "false", "on")
    if leaf.words:
        words = [word for word in leaf.words if word != leaf.default] + list(leaf.words)
        return (words[0], words[1 % len(words)], words[0])
    if leaf.key == "notify.events":
        return ("approval", "input,ended", "budget")
    if leaf.takes_list:
        return ("one", "two,three", "four")
    if int in leaf.kinds or float in leaf.kinds:
        start = int(leaf.default) if isinstance(leaf.default, int | float) else 0
        size = next((size for bound, size in SMALL_STEPS.items() if bound in leaf.bounds), 1)
        return (str(start + size), str(start + 2 * size), str(start + 3 * size))
    if leaf.key == "model.providers.a2a.agents":
        form = '{{"a": {{"url": "http://{}"}}}}'
        return (form.format("one"), form.format("two"), form.format("three"))
    if leaf.is_structured:
        return ('{"import": "none"}', '{"import": "claude"}', '{"Stop": []}')
    form = {"address": "http://host{}/v1", "name of a variable": "NAME_{}", "path": "./folder{}"}
    pattern = form.get(leaf.type.removesuffix(" or null"), "text{}")
    return (pattern.format(1), pattern.format(2), pattern.format(3))


def in_file(leaf: Leaf, text: str) -> str:
    """Return the value as one line of YAML in flow style, including sections."""
    value = json.dumps(text.split(",")) if leaf.takes_list and text not in leaf.words else json.dumps(text)
    for name in reversed(leaf.key.split(".")):
        value = f"{{{name}: {value}}}"
    return value


def as_value(leaf: Leaf, text: str) -> object:
    if leaf.is_bool:
        return text in {"yes", "true", "on"}
    if leaf.takes_list and text not in leaf.words:
        return tuple(text.split(","))
    if int in leaf.kinds or float in leaf.kinds:
        return float(text)
    return text


def load(
    folder: Path, *, text: str = "", environ: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None
) -> LoadedSettings:
    if text:
        (folder / "agent.yaml").write_text(text, encoding="utf-8")
    return load_settings(flags=flags or {}, environ=environ or {}, cwd=folder, home=folder / "home", config=None)


def held(loaded: LoadedSettings, key: str) -> tuple[object, str, str]:
    origin = loaded.origins[key]
    return get_value(loaded.settings, key), origin.kind, origin.detail


@pytest.mark.parametrize("key", LEAVES)
def test_each_source_overrides_lower_ones(key: str, tmp_path: Path) -> None:
    leaf = LEAVES[key]
    file_text, variable_text, flag_text = texts(leaf)
    variable = variables_of(key)[0]
    environ, flags, text = {variable: variable_text}, {key: flag_text}, in_file(leaf, file_text)

    by_default = load(tmp_path)
    by_file = load(tmp_path, text=text)
    by_variable = load(tmp_path, text=text, environ=environ)
    by_flag = load(tmp_path, text=text, environ=environ, flags=flags)

    assert held(by_default, key) == (get_value(Settings(), key), "default", "")
    assert held(by_file, key) == (as_value(leaf, file_text), "file", "agent.yaml:1")
    assert held(by_variable, key) == (as_value(leaf, variable_text), "environment", variable)
    assert held(by_flag, key) == (as_value(leaf, flag_text), "flag", "")


@given(st.dictionaries(st.sampled_from(sorted(LEAVES)), st.sets(st.sampled_from(SOURCES))))
@settings(max_examples=60, deadline=None)
def test_sources_are_merged_per_setting(chosen: dict[str, set[str]]) -> None:
    # Embeddings come from a folder or from a server: settings with both are rejected.
    assume(not (chosen.get("routing.embeddings.folder") and chosen.get("routing.embeddings.base_url")))
    nested: Tree = {}
    environ: dict[str, str] = {}
    flags: dict[str, str] = {}
    for key, sources in chosen.items():
        leaf = LEAVES[key]
        given_texts = dict(zip(SOURCES, texts(leaf), strict=True))
        if "file" in sources:
            merge(
                nested,
                key,
                given_texts["file"].split(",") if leaf.takes_list and not leaf.words else given_texts["file"],
            )
        if "environment" in sources:
            environ[variables_of(key)[0]] = given_texts["environment"]
        if "flag" in sources:
            flags[key] = given_texts["flag"]

    with tempfile.TemporaryDirectory() as folder:
        loaded = load(Path(folder), text=json.dumps(nested, indent=1), environ=environ, flags=flags)

    for key, leaf in LEAVES.items():
        if key == "model.name":  # belongs to the provider that was set with it
            continue
        winner = next((source for source in reversed(SOURCES) if source in chosen.get(key, set())), "default")
        assert loaded.origins[key].kind == winner
        expected = as_value(leaf, texts(leaf)[SOURCES.index(winner)]) if winner in SOURCES else leaf.default
        assert get_value(loaded.settings, key) == expected


def merge(nested: Tree, key: str, value: str | list[str]) -> None:
    name, _, rest = key.partition(".")
    if not rest:
        nested[name] = value
        return
    section = nested.setdefault(name, {})
    assert isinstance(section, dict)
    merge(section, rest, value)


@pytest.mark.parametrize("key", OLDER_NAMES)
def test_older_name_works_with_a_warning_and_the_new_one_overrides_it(key: str, tmp_path: Path) -> None:
    leaf = LEAVES[key]
    _, winner, loser = texts(leaf)
    new, older = variables_of(key)

    alone = load(tmp_path, environ={older: loser})
    both = load(tmp_path, environ={older: loser, new: winner})

    assert alone.origins[key] == Origin(kind="environment", variable=older)
    assert get_value(alone.settings, key) == as_value(leaf, loser)
    assert alone.warnings == ()
    assert held(both, key) == (as_value(leaf, winner), "environment", new)
    assert [older in warning.message for warning in both.warnings] == [True]


def test_no_two_settings_share_a_variable() -> None:
    names = [name for key in LEAVES for name in variables_of(key)]

    assert len(names) == len(set(names))


def test_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    environ = {"AGENT_MODEL_NAME": "", "AGENT_SKILLS": "", "AGENT_RUNTIME_MAX_TURNS": "  "}

    loaded = load(tmp_path, text="model:\n  name: from-file\n", environ=environ)

    assert held(loaded, "model.name") == ("from-file", "file", "agent.yaml:2")
    assert held(loaded, "skills.enabled") == ("none", "default", "")
    assert held(loaded, "runtime.max_turns") == (8, "default", "")


def test_empty_new_name_does_not_hide_the_older_one(tmp_path: Path) -> None:
    loaded = load(tmp_path, environ={"AGENT_SHELL_MODE": "", "SHELL_TOOL_MODE": "off"})

    assert held(loaded, "shell.mode") == ("off", "environment", "SHELL_TOOL_MODE")


def test_an_optional_setting_can_be_null_in_the_file(tmp_path: Path) -> None:
    loaded = load(tmp_path, text="runtime:\n  max_cost_usd: null\n")

    assert held(loaded, "runtime.max_cost_usd") == (None, "file", "agent.yaml:2")


def test_tilde_in_a_path_is_the_home_folder(tmp_path: Path) -> None:
    text = (
        "skills: {dir: ~/my-skills}\nlogging: {jsonl_dir: runs~}\nmodel: {facts_file: ~/facts.yaml}\n"
        "routing: {embeddings: {folder: ~/model}}\n"
    )
    loaded = load(tmp_path, text=text)

    assert loaded.settings.skills.dir == str(tmp_path / "home" / "my-skills")
    assert loaded.settings.model.facts_file == str(tmp_path / "home" / "facts.yaml")
    assert loaded.settings.routing.embeddings.folder == str(tmp_path / "home" / "model")
    assert loaded.settings.logging.jsonl_dir == "runs~"
