"""Names and arguments of scripts: accepted ones have one form, others are rejected."""

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from metier.tools.scripts.active_scripts import ScriptFailed, add_json_flag, parse_script_name, parse_skill_name

pytestmark = pytest.mark.slow

PLAIN = st.from_regex(r"[a-zA-Z0-9_-]{1,64}", fullmatch=True).filter(lambda name: name.lower() != "__pycache__")
CANONICAL = re.compile(r"[a-z0-9-]{1,64}(/[a-z0-9-]{1,64})*", re.ASCII)
CANONICAL_SCRIPT = re.compile(r"[a-z0-9_-]{1,64}\.py", re.ASCII)


@given(st.text(max_size=80))
@example("0/0")
def test_any_text_is_a_canonical_name_or_refused(text: str) -> None:
    for parse, form in ((parse_skill_name, CANONICAL), (parse_script_name, CANONICAL_SCRIPT)):
        name = parse_or_code(parse, text)
        assert name == "invalid name" or form.fullmatch(name)
        assert parse_or_code(parse, name) == name


def parse_or_code(parse: Callable[[str], str], text: str) -> str:
    try:
        return parse(text)
    except ScriptFailed as error:
        return error.code.replace("_", " ")


@given(PLAIN)
def test_every_spelling_of_a_plain_name_is_the_same_name(name: str) -> None:
    skill = parse_skill_name(name)
    script = parse_script_name(name)

    assert parse_skill_name(name.upper()) == parse_skill_name(name.replace("_", "-")) == skill
    assert (
        parse_script_name(name.upper()) == parse_script_name(f"{name}.py") == parse_script_name(f"{name}.PY") == script
    )


@pytest.mark.parametrize("name", ["../etc", "a/../b", "..", "a\nb", "status.py/", "status.sh", "a" * 65])
def test_rejection_quotes_the_name(name: str) -> None:
    with pytest.raises(ScriptFailed) as caught:
        parse_script_name(name)

    assert caught.value.message == f"Invalid script name: {name!r}"


@given(st.lists(st.sampled_from(["a", "-x", "--json", "--", "--json=1"]), max_size=6))
def test_json_flag_is_added_once_and_changes_no_other_option(args: list[str]) -> None:
    result = add_json_flag(args)

    options = result[: result.index("--")] if "--" in result else result
    assert "--json" in options
    if result != args:
        assert options.count("--json") == 1
        assert [*options[:-1], *result[len(options) :]] == args
